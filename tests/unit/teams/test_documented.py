"""AutoGen's documented programs run unchanged but for an import, and say the same with the overlap.

Each runs three times on a scripted engine: with our client alone, with `install()`, and with our teams in
place of AutoGen's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import flashagents_autogen
from flashagents_autogen import FlashGroupChatRuntime
from flashagents_runtime import GenerateRequest, ScriptedEngine
from flashagents_runtime.scripted import Reply, ScriptItem
from helpers.documented import Example, documented, run, shown, stand_in
from helpers.overlap import EAGER, call, counted_ids, prompts, words

EXAMPLES = documented()

#: Programs that build no model client: they are AutoGen's own matter.
WITHOUT_A_MODEL = {
    "CodeExecutorAgent-0",
    "CodeExecutorAgent-1",
    "ExternalTermination-0",
    "FunctionalTermination-0",
    "StructuredMessage-0",
    "StructuredMessage-1",
    "StructuredMessageFactory-0",
    "TerminationCondition-0",
}
#: The token is cancelled after a second: the program ends with that, as its comment says.
CANCELLED = {"BaseGroupChat.run-1", "BaseGroupChat.run_stream-1"}

#: Requests that come after another agent has spoken; all of them are foreseen.
FORESEEN = {
    "BaseGroupChat.reset-0": 2,
    "BaseGroupChat.run-0": 3,
    "BaseGroupChat.run_stream-0": 3,
    "GraphFlow-0": 2,
    "GraphFlow-1": 2,
    "GraphFlow-2": 1,
    "GraphFlow-3": 4,
    "MagenticOneGroupChat-0": 2,
    "RoundRobinGroupChat-1": 2,
    "RoundRobinGroupChat-2": 4,
    "SocietyOfMindAgent-0": 3,
    "Swarm-0": 1,
    "TeamTool-0": 2,
}

TEXT = "and so it goes on, with all that has been said before and a little more. " * 2


def talks(request: GenerateRequest) -> Reply:
    """An answer that depends on the prompt alone; the third one in a conversation ends it."""
    prompt = bytes(request.input_ids).decode()
    number = prompt.count("Answer ") + 1
    end = " TERMINATE APPROVE Correct!" if number >= 3 else ""
    return words(f"Answer {number}: {TEXT}{end}")


def talks_slowly(request: GenerateRequest) -> Reply:
    return Reply(text=talks(request).text, interval=0.2)


def ledger(done: bool) -> str:
    answers = {
        "is_request_satisfied": done,
        "is_progress_being_made": True,
        "is_in_loop": False,
        "instruction_or_question": f"Prove it: {TEXT}",
        "next_speaker": "Assistant",
    }
    return json.dumps({key: {"reason": "so", "answer": answer} for key, answer in answers.items()})


CODE = "Here it is:\n```python\nprint('Hello World!')\n```\n"
#: What the model says, where the program is about more than talk.
SCRIPTS: dict[str, list[ScriptItem]] = {
    "AssistantAgent-2": [call("get_current_time")],
    "AssistantAgent-3": [
        *[call("increment_counter")] * 3,
        call("get_counter"),
        talks,
        talks,
    ],
    "AssistantAgent-4": [call("fetch", url="https://github.com/microsoft/autogen"), talks],
    "AssistantAgent-5": [
        call("sentiment_analysis", text="I am happy today!"),
        '{"thoughts":"They say so.","response":"happy"}',
    ],
    "CodeExecutorAgent-2": [CODE, talks],
    "CodeExecutorAgent-3": [CODE, '{"approved":true,"reason":"It prints."}', talks],
    "GraphFlow-2": ["yes", talks],
    "GraphFlow-3": [talks, f"No: {TEXT}", talks, f"APPROVE: {TEXT}", talks],
    "MagenticOneGroupChat-0": ["Facts.", "A plan.", ledger(False), talks, ledger(True), talks],
    "RoundRobinGroupChat-0": [call("get_weather", location="New York"), f"It is sunny. TERMINATE {TEXT}"],
    "SelectorGroupChat-0": [
        *("Flight_Agent", call("lookup_flight", origin="Rome", destination="New York")),
        *("Hotel_Agent", call("lookup_hotel", location="New York")),
        *("Travel_Advisor", call("book_trip"), "Hotel_Agent", f"TERMINATE {TEXT}"),
    ],
    "SelectorGroupChat-1": [
        f"1 + 1 is 3. {TEXT}",
        call("check_calculation", x=1, y=1, answer=3),
        f"1 + 1 is 2. {TEXT}",
        call("check_calculation", x=1, y=1, answer=2),
    ],
    "Swarm-0": [call("transfer_to_bob"), talks],
    "Swarm-1": [call("transfer_to_user"), talks, talks, talks],
    "AgentTool-0": [call("writer", task="A poem about the sea."), talks],
    "TeamTool-0": [call("writing_team", task="A robot learns to love."), talks, talks, talks],
}
SCRIPTS["SelectorGroupChat-2"] = SCRIPTS["SelectorGroupChat-0"]
TYPED = ["make it shorter", "exit"]


def engine_for(name: str) -> ScriptedEngine:
    slow = name in CANCELLED
    script = SCRIPTS.get(name) or [talks_slowly if slow else talks] * 40
    return ScriptedEngine(
        [words(item) if isinstance(item, str) else item for item in script], context_length=1 << 20
    )


class Played:
    """What a program came to: what it printed, what the model was asked, and whether it was cancelled."""

    def __init__(
        self,
        example: Example,
        source: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        engine = engine_for(example.name)
        self.cancelled = False
        sleep = asyncio.sleep
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", lambda seconds: sleep(min(seconds, 0.1)))
            stand_in(patch, TYPED)
            try:
                with counted_ids():
                    run(source, engine, patch)
            except asyncio.CancelledError:
                self.cancelled = True
        self.printed = shown(capsys.readouterr().out)
        self.prompts = sorted(prompts(engine))
        self.warmed = sum(request.sampling.max_new_tokens == 0 for request in engine.requests)
        self.left = len(engine._running)


def overlapped(play: Callable[[], Played]) -> tuple[Played, FlashGroupChatRuntime]:
    runtime = flashagents_autogen.install(FlashGroupChatRuntime(EAGER))
    try:
        played = play()
    finally:
        flashagents_autogen.uninstall()
        asyncio.run(runtime.close())
    assert not [event for event in runtime.events if event.kind == "error"]
    return played, runtime


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - WITHOUT_A_MODEL))
def test_a_documented_program_runs_and_says_the_same_with_the_overlap(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = EXAMPLES[name]
    plain = Played(example, example.swapped(), monkeypatch, capsys)
    assert plain.prompts and plain.warmed == 0
    assert plain.cancelled is (name in CANCELLED)
    for teams in (False, True):
        source = example.swapped(teams=teams)
        if teams and source == example.swapped():
            continue  # no team in it
        flash, runtime = overlapped(lambda source=source: Played(example, source, monkeypatch, capsys))  # type: ignore[misc]
        assert flash.cancelled is plain.cancelled and flash.left == 0
        if not plain.cancelled:  # how far they had come by then is a matter of time
            assert flash.printed == plain.printed
            assert flash.prompts == plain.prompts
        assert len(runtime.expectations) == 0
        if name in FORESEEN:
            rate = runtime.hit_rate()
            assert rate.turns == rate.right == FORESEEN[name]


PAGE = Path(__file__).parents[3] / "docs" / "autogen-examples.md"


def test_the_page_names_every_program_and_every_test() -> None:
    """A release with other programs is noticed here."""
    text = PAGE.read_text(encoding="utf-8")
    for name, example in EXAMPLES.items():
        assert f"`{name}`" in text, name
        assert example.calls_a_model is (name not in WITHOUT_A_MODEL), name
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", text):
        source = (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
        assert f"def {test}(" in source, test


def test_teams_of_ours_are_imported_in_place_of_autogens() -> None:
    source = EXAMPLES["GraphFlow-0"].swapped(teams=True)
    assert "from flashagents_autogen import FlashGraphFlow as GraphFlow" in source
    assert "from autogen_agentchat.teams import DiGraphBuilder" in source
    assert "autogen_ext" not in source
