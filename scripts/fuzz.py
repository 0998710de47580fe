"""Coverage-guided fuzzing (atheris) of what comes from outside.

    python scripts/fuzz.py --seconds 60 gguf wire      these two, a minute each; without names, all

gguf      the conversion of a GGUF file
adapter   the folder of a LoRA adapter: configuration and weights
wire      frames of a host process, and of an application
events    a server's stream
answers   a server's JSON in all places, its streams and HTTP, over a socket
calls     arguments, messages, tools, schemas, configs and templates of the client's calls

An input that raises anything but the documented errors is a crash: atheris prints it and stops. Without
atheris (it has wheels for Linux and CPython 3.11 to 3.13) the same targets are tried with random changes of
sound inputs, seeded and without guidance.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT), str(ROOT / "tests")]

Target = Callable[[bytes], None]


def gguf_target() -> tuple[Target, list[bytes]]:
    """Conversion of a GGUF file."""
    from flashagents_runtime import ModelIntegrityError, UnsupportedFeatureError
    from flashagents_runtime.gguf_convert import convert_gguf

    tiny = importlib.import_module("helpers.tiny_gguf")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir()
    source = folder / "x.gguf"

    def target(data: bytes) -> None:
        source.write_bytes(data)
        with contextlib.suppress(ModelIntegrityError, UnsupportedFeatureError):
            convert_gguf(source, out)

    return target, [tiny.write_gguf(folder / "seed.gguf").read_bytes()]


def wire_target() -> tuple[Target, list[bytes]]:
    """Frames of a host process, and of an application."""
    import msgspec

    from flashagents_runtime import GenerateRequest, wire
    from flashagents_runtime.types import Delta

    seeds = [
        wire.encode(wire.Deltas([("a" * 32, Delta("hi", [1, 2]))])),
        wire.encode(wire.Failed("r", "no", True)),
        wire.encode(wire.Generate(GenerateRequest(input_ids=[1, 2, 3]))),
        wire.encode(wire.Setup("m", {"a": [1, {"b": None}]}, 1, "/run", "t")),
    ]

    def target(data: bytes) -> None:
        for kind in (wire.FromHost, wire.ToHost):
            reader = wire.FrameReader(kind)
            half = len(data) // 2
            try:
                messages = [*reader.feed(data[:half]), *reader.feed(data[half:])]
            except (ValueError, msgspec.DecodeError, RecursionError):
                continue
            for message in messages:  # what was read can be written, and shown
                wire.encode(message)
                repr(message)

    return target, seeds


def events_target() -> tuple[Target, list[bytes]]:
    """A server's stream."""
    from flashagents_runtime import EngineError, GenerateRequest
    from flashagents_runtime.remote.engine import _delta
    from flashagents_runtime.remote.outputs import EventReader, Increments

    request = GenerateRequest(input_ids=[1], logprobs=True)
    seed = (
        b'data: {"text": "a", "output_ids": [1], "meta_info": {"finish_reason": null, '
        b'"output_token_logprobs": [[-0.5, 1, "a"]]}}\n\n'
        b'data: {"text": "ab", "output_ids": [1, 2], "meta_info": {"finish_reason": {"type": "stop", '
        b'"matched": 2}, "prompt_tokens": 1, "completion_tokens": 2}}\n\ndata: [DONE]\n\n'
    )

    def target(data: bytes) -> None:
        for increments in (None, Increments()):
            try:
                for event in EventReader().feed(data):
                    if event.get("error") is None:
                        _delta(event, increments, request, False)
            except (ValueError, EngineError):
                continue

    return target, [seed]


_BETWEEN = b"\n---\n"


def adapter_target() -> tuple[Target, list[bytes]]:
    """A LoRA adapter's folder: its configuration, a mark, its weights."""
    from flashagents_runtime import ModelError
    from flashagents_runtime.adapter_check import check_adapter

    bad = importlib.import_module("reliability.test_bad_adapters")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "config.json").write_text(json.dumps(bad.MODEL))
    adapter = folder / "adapter"
    adapter.mkdir()

    def target(data: bytes) -> None:
        config, _, weights = data.partition(_BETWEEN)
        (adapter / "adapter_config.json").write_bytes(config)
        (adapter / "adapter_model.safetensors").write_bytes(weights)
        with contextlib.suppress(ModelError):
            check_adapter("fuzz", adapter, folder)

    config = json.dumps(bad.CONFIG).encode()
    return target, [config + _BETWEEN + weights for weights in (bad.save(bad.sound()), bad.bfloat16(1.0))]


def _properties(module: str) -> tuple[Target, list[bytes]]:
    """The hypothesis properties of a test module: the first byte chooses one, the others its examples."""
    tests = vars(importlib.import_module(module))
    found = [tests[name] for name in sorted(tests) if hasattr(tests[name], "hypothesis")]

    def target(data: bytes) -> None:
        if data:
            found[data[0] % len(found)].hypothesis.fuzz_one_input(data[1:])

    rng = random.Random(0)
    return target, [bytes([i]) + rng.randbytes(600) for i in range(len(found))]


def answers_target() -> tuple[Target, list[bytes]]:
    """A hostile server."""
    return _properties("reliability.test_hostile_server")


def calls_target() -> tuple[Target, list[bytes]]:
    """Calls of the client."""
    return _properties("reliability.test_bad_calls")


TARGETS = {
    "gguf": gguf_target,
    "adapter": adapter_target,
    "wire": wire_target,
    "events": events_target,
    "answers": answers_target,
    "calls": calls_target,
}


def change(data: bytes, rng: random.Random) -> bytes:
    """Some random changes."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        kind = rng.random()
        at = rng.randrange(len(out)) if out else 0
        if kind < 0.5 and out:
            out[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif kind < 0.7:
            out[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, (1 << 62).to_bytes(8, "little")])
        elif kind < 0.85:
            del out[at : at + rng.choice([1, 8, len(out)])]
        else:
            out[at:at] = out[at : at + rng.randint(1, 40)]
    return bytes(out)


def unguided(name: str, seconds: float, seed: int = 0) -> int:
    """Random changes of the seeds; the number of inputs tried. Raises what an input raises."""
    target, seeds = TARGETS[name]()
    for sound in seeds:  # what is imported at the first call is not in the time
        target(sound)
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        data = rng.choice(seeds)
        for _ in range(rng.randint(1, 3)):
            data = change(data, rng)
        try:
            target(data)
        except BaseException:
            sys.stderr.write(f"fuzz: {name}: this input is a crash: {data!r}\n")
            raise
        tried += 1
    return tried


def guided(name: str, arguments: list[str]) -> None:
    """Runs atheris in this process; it ends the process itself."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["flashagents_autogen", "flashagents_runtime", "gguf"]):
        target, _ = TARGETS[name]()
    atheris.Setup([sys.argv[0], *arguments], target)
    atheris.Fuzz()


def main() -> int:
    """See the module's docstring."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.child:
        guided(options.targets[0], rest)
        return 0
    try:
        importlib.import_module("atheris")
    except ImportError:
        for name in options.targets:
            print(f"{name}: {unguided(name, options.seconds)} inputs, without guidance (no atheris here)")
        return 0
    for name in options.targets:
        with tempfile.TemporaryDirectory() as corpus:
            for i, seed in enumerate(TARGETS[name]()[1]):
                (Path(corpus) / f"seed{i}").write_bytes(seed)
            command = [
                sys.executable,
                __file__,
                name,
                "--child",
                corpus,
                f"-max_total_time={options.seconds}",
            ]
            limits = ["-max_len=65536", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"]
            environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
            status = subprocess.run([*command, *limits], check=False, env=environment).returncode
        if status:
            print(f"{name}: a crash was found")
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
