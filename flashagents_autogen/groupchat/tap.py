"""Follows one call of an agent: hands its text on, and keeps the books."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_orchestrator import (
    MagenticOneOrchestrator,
)
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, CreateResult

from flashagents_runtime import Delta, GenerateRequest
from flashagents_runtime.handoff import Prefiller

from .._side_channel import ClientCall
from .guess import Upstream
from .members import task_runners
from .next_speakers import handoff_in
from .scope import Speaker
from .turns import Expected, Turn
from .watch import LedgerWatch, TaskWatch, ToolNameWatch

if TYPE_CHECKING:
    from .runtime import FlashGroupChatRuntime


class PlainTap:
    """A call of somebody unknown: warm-ups make room for it, and nothing else happens."""

    def __init__(self, prefiller: Prefiller) -> None:
        self._prefiller = prefiller

    def answer(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Tap`."""
        return self._prefiller.generate(request)

    def said(self, delta: Delta, text: str) -> None:
        """See `Tap`."""

    def done(self, result: CreateResult) -> None:
        """See `Tap`."""

    def failed(self, error: BaseException) -> None:
        """See `Tap`."""


class CallTap:
    """A call of an agent that we know. No method raises but `answer`, with what the engine raises."""

    def __init__(
        self,
        runtime: FlashGroupChatRuntime,
        speaker: Speaker,
        call: ClientCall,
        prefiller: Prefiller,
        expected: Expected | None,
        turn: Turn,
    ) -> None:
        self.speaker = speaker
        self.call = call
        agent = speaker.key
        # A structured message is written anew for those who read it.
        structured = isinstance(agent, AssistantAgent) and agent._output_content_type is not None
        feeds = not structured and runtime.trust.believes(speaker)
        self.upstream = Upstream(speaker.name, feeds=feeds)
        self._runtime = runtime
        self._prefiller = prefiller
        self._expected = expected
        self._turn = turn
        self._tool_watch: ToolNameWatch | None = None
        self._handoff: HandoffMessage | None = None
        self._ledger: LedgerWatch | None = None
        self._instruction: Upstream | None = None
        self._task_watch: TaskWatch | None = None
        self._task: Upstream | None = None
        self._guard(self._begin)

    def _begin(self) -> None:
        agent, side = self.speaker.key, self.call.client._prompt_side()
        if isinstance(agent, AssistantAgent) and agent._handoffs and side is not None:
            shown = {tool.name for tool in self.call.call.tools}
            names = [name for name in agent._handoffs if name in shown]
            if names and self.speaker.role == "member":
                self._tool_watch = ToolNameWatch(side.tokenizer, names)
        runners = [tool.name for tool in task_runners(agent)] if self.call.call.tools else []
        if runners and side is not None:
            self._task_watch = TaskWatch(side.tokenizer, runners)
        if isinstance(agent, MagenticOneOrchestrator):
            self._ledger = LedgerWatch()

    def answer(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """See `Tap`."""
        expected = self._expected
        if expected is not None and expected.downstream.session.state not in ("generating", "closed"):
            return expected.downstream.generate(request)
        return self._prefiller.generate(request)

    def said(self, delta: Delta, text: str) -> None:
        """See `Tap`."""
        try:
            if text:
                self.upstream.say(text)
            if self._tool_watch is not None and delta.token_ids:
                self._look_for_tools(delta, text)
            if self._task_watch is not None and delta.token_ids:
                self._read_task(self._task_watch, delta, text)
            if self._ledger is not None and text:
                self._read_ledger(self._ledger, text)
        except Exception as error:
            self._runtime.stumbled(self.speaker.scope, self.speaker.name, error)

    def _look_for_tools(self, delta: Delta, text: str) -> None:
        assert self._tool_watch is not None
        name = self._tool_watch.feed(delta.token_ids, text)
        if name is not None:
            self._tool_watch = None
            self._hand_off([name], self.upstream.text.strip() or None)

    def _read_task(self, watch: TaskWatch, delta: Delta, text: str) -> None:
        """A call gives an agent behind a tool its task: that is what it will be asked."""
        new = watch.feed(delta.token_ids, text)
        if watch.name is None:
            return
        if self._task is None:
            self._task = Upstream("user")  # as `run(task="...")` has it
            self._runtime.plan_task(self.speaker, watch.name, self._task)
        if new:
            self._task.say(new)
        if watch.done:
            self._runtime.note_end(self._task)
            self._task.end()
            self._task_watch = None

    def _read_ledger(self, ledger: LedgerWatch, text: str) -> None:
        new = ledger.feed(text)
        if ledger.satisfied:
            self._ledger = None
            self._runtime.plan_final_answer(self.speaker)
        if ledger.satisfied or ledger.speaker is None:
            return
        if self._instruction is None:
            self._instruction = Upstream(self.speaker.name)
            self._runtime.plan_instruction(self.speaker, ledger.speaker, self._instruction)
        if new:
            self._instruction.say(new)
        if ledger.done and not self._instruction.ended:
            self._runtime.note_end(self._instruction)
            self._instruction.end()

    def _hand_off(self, names: list[str], thought: str | None) -> None:
        """The agent hands off: its message is known before its tool has run."""
        handoff = handoff_in(self.speaker.key, names)
        if handoff is None or any(name not in self.speaker.key._handoffs for name in names):
            return  # results of other tools go with the message
        source = self.speaker.name
        context = [AssistantMessage(content=thought, source=source)] if thought else []
        message = HandoffMessage(
            content=handoff.message, target=handoff.target, source=source, context=list(context)
        )
        if self._handoff is None or not _same(self._handoff, message):
            self._handoff = message
            self._runtime.plan_handoff(self.speaker, message)

    def done(self, result: CreateResult) -> None:
        """See `Tap`."""
        self._guard(lambda: self._finish(result))
        self._guard(lambda: self._runtime.finish_turn(self, self._turn, self._expected, result))

    def _finish(self, result: CreateResult) -> None:
        if isinstance(result.content, str):
            self._runtime.note_end(self.upstream)
            self.upstream.end()
            self._runtime.ended(self.speaker, self.upstream)
            return
        self._runtime.retract(self.speaker, self.upstream)
        names = [call.name for call in result.content if isinstance(call, FunctionCall)]
        if self.speaker.role == "member":
            self._hand_off(names, result.thought)

    def failed(self, error: BaseException) -> None:
        """See `Tap`."""
        self._guard(lambda: self._runtime.retract(self.speaker, self.upstream))
        task = self._task
        if task is not None:
            self._guard(lambda: self._runtime.retract(self.speaker, task))

    def _guard(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except Exception as error:
            self._runtime.stumbled(self.speaker.scope, self.speaker.name, error)


def _same(a: HandoffMessage, b: HandoffMessage) -> bool:
    return (a.content, a.target, a.context) == (b.content, b.target, b.context)


__all__ = ["CallTap", "PlainTap"]
