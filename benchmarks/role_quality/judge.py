"""What is asked of an engine, or of a definition, for one turn; and of all turns in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .metrics import exact, kl_from_tops, token_f1
from .trajectories import Tokens

Top = dict[int, float]


@dataclass(frozen=True)
class Ask:
    """A turn: `role` reads `ids[:start]` and is scored on `ids[start:] + [end]`.

    Attributes:
        key: of the trajectory; turns of one key are asked in order, and each finds what those before cached.
        longest: tokens that the greedy answer may have.
    """

    key: int
    role: str
    ids: list[int]
    start: int
    longest: int


@dataclass
class Said:
    """What came of it.

    Attributes:
        answer: greedy tokens, without the end token.
        logprobs: of the reference's tokens and the end token.
        tops: at each of these places the most likely tokens and their log-probs.
        kl: a definition's exact KL to Non-Shared at each place; an engine leaves it empty.
    """

    answer: list[int]
    logprobs: list[float]
    tops: list[Top] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)


class Judge(Protocol):
    """An engine under one scheme, or a scheme's definition."""

    def turns(self, asks: Sequence[Ask]) -> list[Said]:
        """Answer one turn each of several trajectories; their contexts are cached for what comes."""
        ...


@dataclass(frozen=True)
class Record:
    """One turn of one trajectory, measured.

    Attributes:
        crossed: another role has spoken before, so its cache is read; elsewhere no scheme approximates.
        nll: of the reference with its end token, nats in all.
        kl: from Non-Shared, nats in all.
    """

    question: str
    source: str
    turn: int
    role: str
    crossed: bool
    nll: float
    tokens: int
    exact: float
    f1: float
    kl: float | None
    answer: str


def play(
    judge: Judge,
    found: Sequence[Tokens],
    decode: Callable[[list[int]], str],
    *,
    batch: int = 32,
    longest: int = 48,
    base: dict[tuple[str, int], list[Top]] | None = None,
    tops: dict[tuple[str, int], list[Top]] | None = None,
) -> Iterator[Record]:
    """All turns of all trajectories: `batch` trajectories at once, turn by turn.

    Args:
        decode: tokens to text.
        longest: tokens of an answer, at most.
        base: Non-Shared's tops, to measure the divergence from; None leaves it out.
        tops: filled with this judge's tops.
    """
    for first in range(0, len(found), batch):
        together = list(enumerate(found))[first : first + batch]
        for i in range(max((len(t.turns) for _, t in together), default=0)):
            at_turn = [(key, t) for key, t in together if i < len(t.turns)]
            asks = [_ask(key, t, i, longest) for key, t in at_turn]
            for (_, t), said in zip(at_turn, judge.turns(asks), strict=True):
                if tops is not None:
                    tops[t.question, i] = said.tops
                known = None if base is None else base[t.question, i]
                yield _record(t, i, said, decode, known)


def _ask(key: int, t: Tokens, i: int, longest: int) -> Ask:
    turn = t.turns[i]
    room = min(longest, 2 * (turn.stop - turn.start) + 8)
    return Ask(key, turn.role, t.ids[: turn.stop], turn.start, room)


def _record(
    t: Tokens, i: int, said: Said, decode: Callable[[list[int]], str], base: list[Top] | None
) -> Record:
    turn = t.turns[i]
    answer, reference = decode(said.answer), decode(t.ids[turn.start : turn.stop])
    kl = sum(said.kl) if said.kl else None
    if base is not None and kl is None:
        kl = sum(kl_from_tops(p, q) for p, q in zip(base, said.tops, strict=True))
    return Record(
        question=t.question,
        source=t.source,
        turn=i,
        role=turn.role,
        crossed=any(earlier.role != turn.role for earlier in t.turns[:i]),
        nll=-sum(said.logprobs),
        tokens=len(said.logprobs),
        exact=exact(answer, reference),
        f1=token_f1(answer, reference),
        kl=kl,
        answer=answer,
    )


def to_json(record: Record) -> dict[str, Any]:
    """For a line of a file."""
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in vars(record).items()}
