"""The examples' programs from their arguments to what they print, on a scripted engine."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from flashagents_runtime import Delta, EngineDiedError, GenerateRequest, ScriptedEngine
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.scripted import Reply
from flashagents_runtime.trace import Trace
from helpers.examples import load_example, scripted_example

COMPARED = ("overlap off: ", "overlap on: ", "same answers: yes")


def says(request: GenerateRequest) -> str:
    """The same answer for the same prompt, whoever asks first."""
    return f"answer {sum(request.input_ids) % 9973}"


def everything(n: int = 200, **options: Any) -> ScriptedEngine:
    return ScriptedEngine([says] * n, context_length=1 << 16, **options)


OUTLINE = {"slides": [{"title": f"T{i}", "point": f"P{i}"} for i in range(1, 13)]}


def slides_engine(calls: list[str], outlines: int = 1, cut: int | None = None) -> ScriptedEngine:
    """Writes the outline character by character, and one answer a slide; `calls` says when."""

    def answer(request: GenerateRequest) -> str | Reply:
        prompt = bytes(request.input_ids).decode()
        if "You plan presentations" in prompt:
            calls.append("outline")
            text = json.dumps(OUTLINE)
            return Reply(text=text[:cut] if cut else text, interval=0)
        calls.append(prompt.split("<|im_start|>user\n")[1].split(":")[0])
        return says(request)

    return ScriptedEngine([answer] * 13 * outlines * 2, context_length=1 << 16)


# ---- travel planner


def test_the_travel_planner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everything()
    example = scripted_example("travel_planner", engine, monkeypatch)
    assert example.main(["--task", "Plan Rome."]) == 0
    printed = capsys.readouterr().out
    for agent in example.AGENTS:
        assert agent in printed
    assert "Tokens and times a turn" in printed


def test_the_travel_planner_compares(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("travel_planner", everything(), monkeypatch)
    assert example.main(["--compare"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in COMPARED)
    assert printed.count("language_guide") == 2 and "█" in printed


def test_the_travel_planner_saves_a_time_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    example = scripted_example("travel_planner", everything(), monkeypatch)
    events, figure = tmp_path / "x.jsonl", tmp_path / "x.svg"
    assert example.main(["--trace", str(events)]) == 0
    assert [turn.agent for turn in Trace.load(events).view.turns] == list(example.AGENTS)
    assert example.main(["--compare", "--trace", str(figure)]) == 0
    assert "<svg" in figure.read_text()
    for wrong in (["--trace", "x.txt"], ["--compare", "--trace", "x.jsonl"]):
        with pytest.raises(SystemExit):
            example.main(wrong)


def test_the_guide_opens_every_agents_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everything()
    example = scripted_example("travel_planner", engine, monkeypatch)
    assert example.main(["--guide", "--no-overlap"]) == 0
    guide = example.GUIDE.read_text().strip()
    assert len(engine.requests) == 4
    for request, role in zip(engine.requests, example.AGENTS.values(), strict=True):
        assert bytes(request.input_ids).decode().startswith(f"<|im_start|>system\n{guide}\n\n{role}")
    # Shared by all: computed once.
    assert 10_000 < len(guide) < 12_000


def test_the_travel_planner_prints_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("travel_planner", everything(), monkeypatch)
    assert example.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [turn["agent"] for turn in found["turns"]] == list(example.AGENTS)
    assert example.main(["--json", "--compare"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert list(runs) == ["overlap off", "overlap on"]


# ---- map and reduce


@pytest.mark.parametrize("arguments", [[], ["--graph"]])
def test_map_reduce(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = everything()
    example = scripted_example("map_reduce", engine, monkeypatch)
    assert example.main([*arguments, "--compare"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in COMPARED)
    real = [bytes(r.input_ids).decode() for r in engine.requests if r.sampling.max_new_tokens != 0]
    metas = [prompt for prompt in real if "You are the meta-reviewer" in prompt]
    assert len(real) == 8 and len(metas) == 2 and metas[0] == metas[1]
    places = [metas[0].index(f"{name} said:") for name in example.REVIEWERS]
    assert places == sorted(places)
    for prompt in real:
        assert prompt in metas or "said:" not in prompt, "reviewers do not hear each other"


def test_map_reduce_prints_the_reviews(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("map_reduce", everything(), monkeypatch)
    assert example.main([]) == 0
    printed = capsys.readouterr().out
    assert printed.count("answer ") == 4 and "reviews: " in printed


def test_map_reduce_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("map_reduce", everything(), monkeypatch)
    assert example.main(["--papers", "/does/not/exist"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


# ---- slides


def test_a_slide_is_begun_with_its_item(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    engine = slides_engine(calls, outlines=2)
    begun: list[int] = []  # how much of the outline there was when a slide's request came
    written = 0
    generate = engine.generate

    async def counted(request: GenerateRequest) -> Any:
        nonlocal written
        outline = "You plan presentations" in bytes(request.input_ids).decode()
        if not outline:
            begun.append(written)
        async for delta in generate(request):
            written += len(delta.text) if outline else 0
            yield delta

    monkeypatch.setattr(engine, "generate", counted)
    example = scripted_example("slides", engine, monkeypatch)
    assert example.main(["--compare"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in COMPARED)
    assert sorted(calls) == sorted(["outline", *(f"T{i}" for i in range(1, 13))] * 2)
    whole = len(json.dumps(OUTLINE))
    off, on = begun[:12], [n - whole for n in begun[12:]]
    assert off == [whole] * 12
    assert on == sorted(on) and on[0] < whole / 6 and on[10] < whole
    ends = [json.dumps(OUTLINE).index(f'"P{i}"}}') + len(f'"P{i}"}}') for i in range(1, 13)]
    assert all(end <= n < end + 40 for end, n in zip(ends, on, strict=True)), (
        "a few characters after its item"
    )


def test_the_slides_are_printed_in_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("slides", slides_engine([]), monkeypatch)
    assert example.main([]) == 0
    printed = capsys.readouterr().out
    places = [printed.index(f"slide_{i:02}") for i in range(1, 13)]
    assert places == sorted(places)


def test_an_outline_that_is_cut_off_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("slides", slides_engine([], cut=100), monkeypatch)
    assert example.main([]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: the outline is not what was asked for")
    assert "Traceback" not in error


def test_a_slide_that_fails_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(request: GenerateRequest) -> Reply:
        if "You plan presentations" in bytes(request.input_ids).decode():
            return Reply(text=json.dumps(OUTLINE))
        return Reply(error=EngineDiedError("the engine died"))

    engine = ScriptedEngine([fails] * 13, context_length=1 << 16)
    example = scripted_example("slides", engine, monkeypatch)
    assert example.main([]) == 1
    assert capsys.readouterr().err.endswith("\nerror: the engine died\n")


def test_a_vision_model_needs_an_image(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = scripted_example("slides", everything(), monkeypatch)
    with pytest.raises(SystemExit):
        example.main(["--vision-model", "x"])
    assert "belong together" in capsys.readouterr().err


# ---- role agents


FILES = ("adapter_config.json", "adapter_model.safetensors")


class ManyRoles(ScriptedEngine):
    """In the place of an engine with adapters."""

    built: ClassVar[list[Any]] = []
    followers: ClassVar[dict[int, str]] = {}

    def __init__(self, model: Path, *, lora_paths: dict[str, str], lora_sharing: str) -> None:
        super().__init__([says] * 100, context_length=1 << 16)
        self.adapters, self.scheme = lora_paths, lora_sharing
        self.found = {name: sorted(p.name for p in Path(path).iterdir()) for name, path in lora_paths.items()}
        self.built.append(self)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """The last token of an answer that `followers` numbers comes after that role was warmed."""
        real = [r for r in self.requests if r.sampling.max_new_tokens != 0]
        follower = self.followers.get(len(real)) if request.sampling.max_new_tokens != 0 else None
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                if delta.result is not None and follower is not None:
                    async with asyncio.timeout(10):
                        while not any(r.lora == follower for r in self.warm_ups()):
                            await asyncio.sleep(0.001)
                yield delta

    def warm_ups(self) -> list[GenerateRequest]:
        return [request for request in self.requests if request.sampling.max_new_tokens == 0]

    async def __aenter__(self) -> ManyRoles:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def internal_state(self) -> dict[str, Any]:
        return {"flashagents": {"features": {}}}


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    example = load_example("role_agents")
    config = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(example, "EmbeddedEngine", ManyRoles)
    monkeypatch.setattr(example, "resolve_model", lambda model, **options: tmp_path)
    monkeypatch.setattr(ManyRoles, "built", [])
    return example


def test_role_agents_compare(
    roles: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The third run is the one with the overlap.
    monkeypatch.setattr(ManyRoles, "followers", {6: "act", 7: "reflect"})
    assert roles.main(["--compare", "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    for scheme in ("none", "base_lr"):
        assert f"{scheme}, overlap off: " in printed and f"{scheme}, overlap on: " in printed
    assert printed.count("same answers: yes") == 2
    for engine in ManyRoles.built:
        assert list(engine.adapters) == list(roles.ROLES)
        assert set(map(tuple, engine.found.values())) == {
            ("adapter_config.json", "adapter_model.safetensors")
        }
        # A run to warm the engine up, and two that are compared.
        real = [request for request in engine.requests if request.sampling.max_new_tokens != 0]
        assert [request.lora for request in real] == list(roles.ROLES) * 3
        assert {request.lora for request in engine.warm_ups()} >= {"act", "reflect"}
        # Each under its role's own adapter: the beginning of a prompt of that role, or of one that its next
        # turn would have had, had the conversation not ended.
        start_of_answer = "<|im_start|>assistant\n"
        ended = bytes(real[-1].input_ids).decode().removesuffix(start_of_answer)
        for chunk in engine.warm_ups():
            text = bytes(chunk.input_ids).decode().removesuffix(start_of_answer)
            asked = [bytes(request.input_ids).decode() for request in real if request.lora == chunk.lora]
            assert any(prompt.startswith(text) for prompt in asked) or text.startswith(ended)


def test_roles_read_one_transcript(roles: ModuleType) -> None:
    assert roles.main(["--schemes", "none", "--rounds", "2"]) == 0
    (engine,) = ManyRoles.built
    texts = [bytes(request.input_ids).decode() for request in engine.requests[3:]]
    for before, after in itertools.pairwise(texts):
        said = before.rpartition("<|im_start|>assistant")[0]
        assert after.startswith(said)


def test_an_unknown_scheme_is_one_line(
    roles: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roles, "EmbeddedEngine", EmbeddedEngine)
    assert roles.main(["--schemes", "best"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: lora_sharing must be one of") and len(error.splitlines()) == 1
