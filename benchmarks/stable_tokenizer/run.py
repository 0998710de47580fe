"""The cost of tokenising a text while it grows, and how many tokens are held back.

    python benchmarks/stable_tokenizer/run.py [--conversations FOLDER] [--tokenizers qwen3 ...]

`relative_time`: all of a text of 100k tokens in deltas of one token, against one pass over the whole.
`held_tokens`: after each token of a message, tokens that have come and are not committed (every delta is
tried at once, batch 1); with a folder of conversations (JSON lines with "history" of "content"), on those.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

from tokenizers import Tokenizer

_ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "runtime"), str(_ROOT / "tests")]

from benchmarks.rows import RESULTS, append, common, row
from flashagents_runtime.handoff import CutRules, StableTokenizer
from flashagents_runtime.model_store import resolve_model
from helpers.npm_tokenizers import NAMES, tokenizer_folder

TOKENS = 100_000
PROSE = (
    "Rivers aren't straight; they wander. The Rhine flows 1,233 km through 6 countries (see the map).\n\n"
    "```python\ndef length(points: list[float]) -> float:\n    return sum(abs(b - a) for a, b in points)\n"
    "- first, what's upstream\n- second: \u201cwhat's downstream\u201d \u2014 caf\u00e9, na\u00efve\n\n"
)


def messages_of(folder: Path | None) -> list[str]:
    """The texts of conversations, or prose of our own."""
    if folder is None:
        return [PROSE * 20]
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            found += [m["content"] for m in json.loads(line)["history"] if isinstance(m["content"], str)]
    return found


def deltas_of(tokenizer: Tokenizer, text: str) -> tuple[list[str], int]:
    """The text in deltas of one token, and the number of tokens."""
    encoded = tokenizer.encode(text, add_special_tokens=False)
    out, done = [], 0
    for _, end in encoded.offsets:
        if end > done:
            out.append(text[done:end])
            done = end
    return [*out, text[done:]], len(encoded.ids)


def relative_times(rules: CutRules, tokenizer: Tokenizer, text: str, batch: int, repeats: int) -> list[float]:
    """Time of the growing text over the time of one pass, one after the other each time."""
    deltas, _ = deltas_of(tokenizer, text)
    out = []
    for _ in range(repeats):
        begin = perf_counter()
        whole = rules.encode(text)
        between = perf_counter()
        growing = StableTokenizer(rules, batch=batch)
        for delta in deltas:
            growing.feed(delta)
        ids = growing.finish()
        out.append((perf_counter() - between) / (between - begin))
        if ids != whole:
            raise SystemExit("the tokens differ: a bug")
    return out


def held(rules: CutRules, tokenizer: Tokenizer, texts: list[str]) -> list[float]:
    """Tokens held back after each delta."""
    out: list[float] = []
    for text in texts:
        growing, done = StableTokenizer(rules, batch=1), 0
        for i, (_, end) in enumerate(tokenizer.encode(text, add_special_tokens=False).offsets):
            if end > done:
                growing.feed(text[done:end])
                done = end
            out.append(i + 1 - len(growing.ids))
    return out


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=Path)
    parser.add_argument("--tokenizers", nargs="*", default=[*NAMES, "smollm2"])
    parser.add_argument("--messages", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    messages = messages_of(arguments.conversations)
    shared = common("tokenizers")
    shared["command"] = "python benchmarks/stable_tokenizer/run.py --conversations FOLDER"
    rows = []
    for name in arguments.tokenizers:
        folder = resolve_model(None) if name == "smollm2" else tokenizer_folder(name)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        rules = CutRules(tokenizer)
        text = "\n\n".join(messages)
        text = (text * (1 + 6 * TOKENS // len(text)))[: 6 * TOKENS]
        ends = tokenizer.encode(text, add_special_tokens=False).offsets
        text = text[: ends[min(TOKENS, len(ends)) - 1][1]]
        for batch in (1, 256, 2048):
            case = {"tokenizer": name, "tokens": TOKENS, "batch": batch}
            values = relative_times(rules, tokenizer, text, batch, arguments.repeats)
            rows.append(row("stable_tokenizer", "ours", case, "relative_time", values, shared))
        texts = [message[:4000] for message in messages[: arguments.messages]]
        values = held(rules, tokenizer, texts)
        case = {"tokenizer": name, "text": "conversations" if arguments.conversations else "prose"}
        entry = row("stable_tokenizer", "ours", case, "held_tokens", values, shared)
        ordered = sorted(values)
        entry |= {f"p{p}": ordered[int(len(ordered) * p / 100)] for p in (90, 99)} | {"max": ordered[-1]}
        rows.append(entry)
    append(RESULTS / "stable_tokenizer.jsonl", rows)


if __name__ == "__main__":
    main()
