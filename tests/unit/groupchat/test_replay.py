"""Whole conversations through every kind of team: the overlap changes no message and no prompt.

The conversations are made up. Real ones are added where FLASHAGENTS_CONVERSATIONS names a folder of
`*.jsonl` files; `benchmarks/groupchat/run.py` says what they look like.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flashagents_autogen import FlashGroupChatRuntime
from flashagents_autogen.groupchat.turns import hit_rate

pytestmark = pytest.mark.long


def _load() -> Any:
    path = Path(__file__).parents[3] / "benchmarks/groupchat/replay.py"
    spec = importlib.util.spec_from_file_location("groupchat_replay", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


replay = _load()
CONVERSATIONS = replay.made_up(40, seed=7)
if folder := os.environ.get("FLASHAGENTS_CONVERSATIONS"):
    for file in sorted(Path(folder).glob("*.jsonl")):
        CONVERSATIONS += replay.load(file)

#: Every turn of these is certain.
STATIC = (
    *("RoundRobin", "Swarm", "GraphFlow chain", "GraphFlow fan-out and fan-in", "nested", "SocietyOfMind"),
    *("AgentTool", "FlashMapReduce", "MagenticOne"),
)


@pytest.mark.parametrize("kind", replay.KINDS)
async def test_the_overlap_changes_nothing(kind: str) -> None:
    async with FlashGroupChatRuntime(replay.POLICY) as runtime:
        turns: list[Any] = []
        for conversation, play in replay.plays(kind, CONVERSATIONS):
            stock = await replay.run(play, None)
            flash = await replay.run(play, runtime)
            assert flash.messages == stock.messages, conversation.name
            assert sorted(flash.prompts) == sorted(stock.prompts), conversation.name
            turns += replay.readers(kind, list(runtime.turns))
            runtime.turns.clear()
        assert not [event for event in runtime.events if event.kind == "error"]
    rate = hit_rate(turns)
    assert rate.turns >= 40
    if kind in STATIC:
        assert rate.turns == rate.foreseen == rate.right
    else:
        assert rate.right > rate.turns / 4
