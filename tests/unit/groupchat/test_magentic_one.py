"""MagenticOne: agents speak into the ledger's prompt, the instruction streams into the agent it names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.teams import MagenticOneGroupChat

from flashagents_autogen.groupchat.watch import LedgerWatch
from flashagents_runtime.scripted import Reply
from helpers.overlap import assistant, both, words

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 3


def ledger(speaker: str, instruction: str, satisfied: bool = False) -> Reply:
    def entry(answer: Any) -> dict[str, Any]:
        return {"reason": 'because "so"', "answer": answer}

    text = json.dumps(
        {
            "is_request_satisfied": entry(satisfied),
            "is_in_loop": entry(False),
            "is_progress_being_made": entry(True),
            "next_speaker": entry(speaker),
            "instruction_or_question": entry(instruction),
        }
    )
    return Reply(text=[text[i : i + 7] for i in range(0, len(text), 7)])


SCRIPT = [
    words("Facts: none."),
    words("Plan: ask the planner, then the writer."),
    ledger("planner", f"Planner: {LONG}"),
    words(f"I have planned it. {LONG}"),
    ledger("writer", f'Writer, "please":\n{LONG} é中'),
    words(f"I have written it. {LONG}"),
    ledger("writer", "", satisfied=True),
    words("Final answer."),
]


def team(client: Any) -> MagenticOneGroupChat:
    agents = [assistant(name, client) for name in ("planner", "writer")]
    return MagenticOneGroupChat(agents, model_client=client)


async def test_a_whole_run() -> None:
    runtime, _ = await both(team, SCRIPT)
    turns = list(runtime.turns)
    planner, writer = (next(t for t in turns if t.agent == name) for name in ("planner", "writer"))
    ledgers = [t for t in turns if t.agent == "MagenticOneOrchestrator" and t.forecast == "message"]
    for turn in (planner, writer, *ledgers):
        assert turn.right is True
        slot = turn.slots[0]
        assert slot.prewarmed >= slot.end - slot.start - 16 and slot.issued_early > 0
    assert len(ledgers) == 2


async def test_a_limit_of_rounds_is_the_orchestrators_own() -> None:
    def limited(client: Any) -> MagenticOneGroupChat:
        agents = [assistant(name, client) for name in ("planner", "writer")]
        return MagenticOneGroupChat(agents, model_client=client, max_turns=1)

    runtime, _ = await both(limited, [*SCRIPT[:6], SCRIPT[-1]])
    ledgers = [turn for turn in runtime.turns if turn.forecast == "message" and "Magentic" in turn.agent]
    assert [turn.right for turn in ledgers] == [True]


TEXT = 'He said "go" \\ to\nRome \u4e2d \U0001f600 now.'


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_the_ledger_is_read_in_any_pieces(step: int, ascii_only: bool) -> None:
    text = json.dumps(
        {
            "is_request_satisfied": {"reason": "x", "answer": False},
            "next_speaker": {"reason": 'the "answer": "x"', "answer": "web_surfer"},
            "instruction_or_question": {"reason": "y", "answer": TEXT},
        },
        ensure_ascii=ascii_only,
        indent=2,
    )
    watch = LedgerWatch()
    said = "".join(watch.feed(text[i : i + step]) for i in range(0, len(text), step))
    assert said == TEXT
    assert watch.speaker == "web_surfer" and watch.done and not watch.satisfied


def test_a_text_that_is_no_ledger() -> None:
    watch = LedgerWatch()
    assert watch.feed('Here is "next_speaker" and nothing else.') == ""
    assert watch.speaker is None and not watch.done
