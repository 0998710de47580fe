"""Further ways to break teams and what surrounds them; engines and clients are in test_more_faults.py."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat

import flashagents_autogen
from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGroupChatRuntime,
    FlashRoundRobinGroupChat,
)
from flashagents_runtime import (
    ModelError,
    ScriptedEngine,
)
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.embedded import EmbeddedEngine
from flashagents_runtime.handoff.warmup_budget import WarmupBudget
from flashagents_runtime.model_cache import build_once
from flashagents_runtime.scheduling.pass_budget import PassBudget
from flashagents_runtime.trace import Trace
from helpers.clients import scripted, user
from helpers.notebooks import tiny_model
from helpers.overlap import EAGER, assistant, client_on, overlapping, shown
from helpers.sglang_server import FakeSGLang


def agents(client: Any) -> list[Any]:
    return [assistant("a", client), assistant("b", client)]


# ---- copies of a followed team


def pair(cls: Any, client: Any) -> Any:
    agents = [AssistantAgent(name, client, system_message=f"You are {name}.") for name in ("a", "b")]
    return cls(agents, max_turns=2)


@pytest.mark.parametrize("cls", [RoundRobinGroupChat, FlashRoundRobinGroupChat])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda team: pickle.loads(pickle.dumps(team))])
@pytest.mark.parametrize("followed", ["no", "attached", "installed"])
async def test_a_copy_of_a_team_is_a_team_of_its_own(cls: Any, how: Any, followed: str) -> None:
    """As AutoGen's own can be copied, so can a followed one; the copy runs its own agents."""
    engine = ScriptedEngine(itertools.repeat("a word or two"))
    server = await FakeSGLang(engine).serve()
    client = FlashAgentsChatCompletionClient(engine_url=str(server.make_url("")))
    team = pair(cls, client)
    async with FlashGroupChatRuntime(EAGER) as runtime:
        if followed == "attached":
            runtime.attach(team)
        elif followed == "installed":
            flashagents_autogen.install()
        try:
            other = how(team)
            for each in (other, team):
                for agent in each._participants:
                    # The server's model is none that has a tokenizer.
                    source = agent._model_client._source
                    source._tokenizer = ByteChatTokenizer()
            result = await other.run(task="Go.")
            assert [m.source for m in result.messages] == ["user", "a", "b"]
            assert other._participants[0] is not team._participants[0]
            assert other._initialized and not team._initialized, "the original ran in place of its copy"
            if followed == "attached":
                assert not runtime.turns, "a copy is followed by nobody until it is attached"
            assert len((await team.run(task="Go.")).messages) == 3
        finally:
            if followed == "installed":
                flashagents_autogen.uninstall()
    for each in (team, other):
        await each._participants[0]._model_client.close()
        await each._participants[1]._model_client.close()
    await server.close()


# ---- two runtimes, one client


async def test_two_runtimes_on_one_client_and_one_of_them_ends_first() -> None:
    script = [f"{i} and something about the river and its banks" for i in range(8)]
    alone = [
        shown(await RoundRobinGroupChat(agents(client_on(*part)), max_turns=4).run(task="Go."))
        for part in (script[:4], script[4:])
    ]
    client = client_on(*script)
    async with overlapping() as first:
        async with FlashGroupChatRuntime(EAGER) as second:
            teams = [RoundRobinGroupChat(agents(client), max_turns=4) for _ in range(2)]
            first.attach(teams[0])
            second.attach(teams[1])
            assert shown(await teams[0].run(task="Go.")) == alone[0]
        # Its runtime has gone; the team goes on without.
        assert shown(await teams[1].run(task="Go.")) == alone[1]
        assert len(first.turns) == 4 and len(second.turns) == 0


# ---- an engine that is closed under a team


async def test_an_engine_is_closed_under_a_team() -> None:
    """By whoever thought that it was no longer needed."""
    client = client_on(*[f"{i} and something about the river" for i in range(6)])
    team = RoundRobinGroupChat(agents(client), max_turns=6)
    async with overlapping(team):
        with pytest.raises(RuntimeError, match="EngineClosedError"):
            async for item in team.run_stream(task="Go."):
                if getattr(item, "source", "") == "b":
                    await client.engine.close()
    assert not client.engine._running  # type: ignore[attr-defined]


SAID = [f"{i} and then along the river to the old bridge" for i in range(6)]


@pytest.mark.parametrize("what", ["close", "uninstall", "detach", "another client", "close from an event"])
@pytest.mark.parametrize("after", range(1, 5))
async def test_the_overlap_is_taken_away_under_a_team(what: str, after: int) -> None:
    """In the middle of a run, after any of its messages: the team says what it would have said."""
    stock = shown(await RoundRobinGroupChat(agents(client_on(*SAID)), max_turns=5).run(task="Go."))
    before = asyncio.all_tasks()
    client = client_on(*SAID)
    team = RoundRobinGroupChat(agents(client), max_turns=5)
    closing: list[asyncio.Task[None]] = []
    runtime = FlashGroupChatRuntime(EAGER)

    def on_event(event: Any) -> None:
        if what == "close from an event" and event.kind == "turn" and len(runtime.turns) == after:
            closing.append(asyncio.ensure_future(runtime.close()))

    runtime._on_event = on_event
    if what == "uninstall":
        flashagents_autogen.install(runtime)
    else:
        runtime.attach(team)
    seen = []
    async for item in team.run_stream(task="Go."):
        seen.append(item)
        if len(seen) == 1 + after:
            if what == "close":
                await runtime.close()
            elif what == "uninstall":
                flashagents_autogen.uninstall()
            elif what == "detach":
                runtime.detach(team)
            elif what == "another client":
                for agent in team._participants:
                    agent._model_client = client_on()  # type: ignore[attr-defined]
                    agent._model_client._engine = client.engine  # type: ignore[attr-defined]
    assert shown(seen[-1]) == stock
    await asyncio.gather(*closing)
    flashagents_autogen.uninstall()
    await runtime.close()
    assert len(runtime.expectations) == 0 and not client.engine._running  # type: ignore[attr-defined]
    assert asyncio.all_tasks() <= before


# ---- clocks that go back


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_that_was_set_back_starves_no_warm_ups(seed: int) -> None:
    """A budget may be held, and never for longer than it would be from now on."""
    import random

    rng = random.Random(seed)
    now = [1000.0]
    passes = PassBudget(0.05, lambda: now[0])
    client = WarmupBudget(lambda: now[0])
    with client.decode():
        for _ in range(50):
            now[0] += rng.choice([0.01, 1.0, -3600.0, 3600.0, -1e9])
            passes.pass_time(True)
            passes.pay(rng.random() * 0.1)
            client.charge(rng.random() * 0.1)
            now[0] += 0.001
        now[0] = 5.0
        passes.pass_time(True)
        for _ in range(200):  # 50 passes of 0.1 s at most, at a share of 5%, cost 105 s
            now[0] += 1.0
            passes.pass_time(True)
        assert passes.may_start(True, 0.05)
        assert client.delay() <= 105


# ---- disks and folders


def test_a_disk_that_fills_up_takes_no_earlier_trace_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = scripted("one", "two")
    with Trace("first") as first:
        asyncio.run(client.create([user()]))
    target = tmp_path / "run.jsonl"
    first.save(target)
    before = target.read_bytes()
    with Trace("second") as second:
        asyncio.run(client.create([user()]))
    write = Path.write_bytes

    def half(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", half)
    for name in ("run.jsonl", "new.json"):
        with pytest.raises(OSError, match="No space left"):
            second.save(tmp_path / name)
    monkeypatch.undo()
    assert target.read_bytes() == before and os.listdir(tmp_path) == ["run.jsonl"]
    second.save(target)
    assert Trace.load(target).name == "second"
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")  # a real one: what is no file is written to in place
    with pytest.raises(OSError, match="No space left"):
        second.save(full)
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    "folder", ["/proc/flashagents", "/sys/flashagents", "/dev/null/x", "/tmp/" + "x" * 300, "{loop}"]
)
def test_a_cache_folder_that_cannot_be_written_is_named(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    folder = folder.format(loop=tmp_path / "loop")
    monkeypatch.setenv("FLASHAGENTS_CACHE", folder)

    def build(_: Path) -> None:
        raise AssertionError("there is no folder to build in")

    with pytest.raises(ModelError, match="set FLASHAGENTS_CACHE to a folder that can"):
        build_once("m", lambda f: (f / "config.json").exists(), build, space=1, progress=print)


@pytest.mark.parametrize("name", ["model", "./model", "../here/model"])
def test_a_model_folder_is_the_one_that_was_named_wherever_the_application_goes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine starts late, and again after its death: by then there may be another folder of that name."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        tiny_model(tmp_path / place)
    monkeypatch.chdir(tmp_path / "here")
    client = FlashAgentsChatCompletionClient(name)
    engine = EmbeddedEngine(name)
    monkeypatch.chdir(tmp_path / "there")
    assert engine.model == client.engine.engine.model == str(tmp_path / "here" / "model")  # type: ignore[attr-defined]
    (tmp_path / "there" / "model" / "tokenizer_config.json").write_text("{}")
    assert client.count_tokens([user()]) > 0, "the tokenizer of another model"
    assert client.dump_component().config["model"] == client._source.load().card.name == name
    asyncio.run(client.close())
