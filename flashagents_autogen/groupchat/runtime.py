"""The one object behind overlapping teams."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core.models import CreateResult

from flashagents_runtime.chat import ChatTokenizer

from .. import _side_channel
from .._client import FlashAgentsChatCompletionClient
from .._side_channel import ClientCall, Tap
from . import hooks
from .chains import Chains
from .engines import Engines
from .expectations import Expectations
from .guess import Guess, Upstream
from .members import agents_within, inner_team, participant_of, speaking_agent, teams_within
from .planner import Planner, in_order
from .policy import GroupChatPolicy
from .scope import RunScope, Seat, Speaker
from .shapes import check_shapes
from .speakers import Speakers
from .tap import CallTap, PlainTap
from .trace import Event, Kind
from .trust import Trust
from .turns import Expected, HitRate, Turn, hit_rate

_log = logging.getLogger(__name__)


class FlashGroupChatRuntime:
    """Lets the agents of AutoGen teams overlap: while one speaks, the next one's prompt is prefilled.

    It follows teams that were attached to it, or all of them where it is installed, and model clients of
    ours; it changes nothing that agents say, and AutoGen's own agent runtime stays as it is. Nothing that
    goes wrong in it disturbs a team: it is logged once, noted as an event, and left out.

    Args:
        policy: what it may do.
        on_event: called with every event, in the event loop; what it raises is logged.

    Raises:
        AutoGenShapeError: the installed AutoGen is not one that we know how to hook.
        TypeError: a policy that is none.

    Attributes:
        policy: as given.
        events: the latest events, oldest first.
        turns: the latest requests of agents and managers, oldest first.
        engines: the prefillers by engine and event loop.
        expectations: what is kept warm now.
        trust: which agents' messages are what their models say.

    Example:
        >>> async with FlashGroupChatRuntime() as runtime:
        ...     runtime.attach(team)
        ...     await team.run(task="Plan a trip.")
        ...     print(runtime.hit_rate())
    """

    def __init__(
        self, policy: GroupChatPolicy | None = None, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        check_shapes()
        if policy is not None and not isinstance(policy, GroupChatPolicy):
            raise TypeError(f"policy should be a GroupChatPolicy, not {policy!r:.100}")
        self.policy = policy or GroupChatPolicy()
        self.events: deque[Event] = deque(maxlen=self.policy.keep)
        self.turns: deque[Turn] = deque(maxlen=self.policy.keep)
        self.engines = Engines(self.policy)
        self.expectations = Expectations(self.policy, self.engines)
        self._planner = Planner(self.policy)
        self._chains = Chains()
        self._speakers = Speakers()
        self._on_event = on_event
        self._teams: WeakSet[Any] = WeakSet()
        self._running: dict[int, RunScope] = {}  # by id of the team
        self._free = RunScope(None)
        self._reported: set[tuple[str, str]] = set()
        self.trust = Trust()

    # ---- life

    def attach(self, team: Any) -> None:
        """Follow a team, and the teams inside it, from its next run on; it leaves any other runtime.

        Args:
            team: any AutoGen team (`BaseGroupChat`).

        Raises:
            TypeError: it is none.
        """
        if not isinstance(team, BaseGroupChat):
            raise TypeError(f"attach takes an AutoGen team, not {type(team).__name__}; for agents see link()")
        _side_channel.listen(self, first=True)  # before one that listens to everybody
        for each in teams_within(team):
            self._teams.add(each)
            hooks.hook_team(each, self)

    def detach(self, team: Any) -> None:
        """Follow it no more, nor the teams inside it; fine where it is not followed."""
        for each in teams_within(team):
            self._teams.discard(each)
            hooks.unhook_team(each)

    def link(self, upstream: AssistantAgent, downstream: AssistantAgent, *, source: str = "user") -> None:
        """Two agents that are called by hand, one after the other: the second reads the first one's text.

        With `install` this is learnt from seeing it once; here it is said beforehand.

        Args:
            upstream: who speaks first.
            downstream: who is run with the text as its task.
            source: the name that the task carries; "user" is what `run(task="...")` makes of a text.
        """
        self.start()
        self._speakers.note(upstream)
        self._speakers.note(downstream)
        self._chains.link(upstream, downstream, source)

    def start(self) -> None:
        """Listen to the model clients of this process; twice is fine. `attach` and `install` call it."""
        _side_channel.listen(self)

    def stop(self) -> None:
        """Listen no more; what is warm stays so until its run ends."""
        _side_channel.unlisten(self)

    async def close(self) -> None:
        """Let all teams go and close all sessions. Closing twice is fine."""
        for team in list(self._teams):
            self.detach(team)
        self.stop()
        await self._free.cancel()
        self._free = RunScope(None)
        await self.expectations.close(None)
        await self.engines.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def hit_rate(self, team: str | None = None) -> HitRate:
        """How often forecasts were right, of the turns that are kept; of one team by its name, or of all."""
        return hit_rate(turn for turn in self.turns if team is None or turn.team == team)

    def record(self, kind: Kind, team: str, agent: str, **data: Any) -> None:
        """Note an event."""
        event = Event(monotonic(), kind, team, agent, data)
        self.events.append(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                _log.exception("on_event failed")

    def stumbled(self, scope: RunScope, agent: str, error: BaseException) -> None:
        """Something of ours has failed: log it once for each kind of error and agent, and go on."""
        key = (agent, type(error).__name__)
        if key not in self._reported:
            self._reported.add(key)
            _log.warning("no forecast for what follows %s; the team goes on without", agent, exc_info=error)
        self.record("error", scope.name, agent, error=repr(error))

    # ---- what the hooks tell

    def begin_run(self, team: Any) -> object | None:
        """See `hooks.RunFollower`."""
        if id(team) in self._running or hooks.follower_of(team) is not self:
            return None
        scope = RunScope(team)
        try:
            scope.outer = self._speakers.seat_here()
            scope.host = self._host(team, scope.outer)
            self._speakers.enter(scope)
        except Exception as error:
            self.stumbled(scope, "", error)
        self._running[id(team)] = scope
        self.record("run", scope.name, "", state="begins")
        return scope

    async def end_run(self, run: object) -> None:
        """See `hooks.RunFollower`."""
        assert isinstance(run, RunScope)
        self._running.pop(id(run.team), None)
        self._speakers.leave(run)
        closing = run.cancel()
        if run.outer is None:
            closed = self.expectations.abandon(run)
            self.record("close", run.name, "", sessions=len(closed))
            await closing
            await self.expectations.wait(closed)
        else:
            await closing
        self.record("run", run.name, "", state="ends")

    def note_agent(self, agent: AssistantAgent) -> None:
        """See `hooks.RunFollower`."""
        try:
            self._speakers.note(agent)
        except Exception as error:
            self.stumbled(self._free, "", error)

    def _host(self, team: BaseGroupChat, outer: Seat | None) -> Any:
        """The agent or team object that runs this team inside another one."""
        if outer is None or outer.scope.team is None:
            return None
        member = speaking_agent(participant_of(outer.scope.team, outer.name))
        return member if inner_team(member) is team else None

    # ---- what the clients tell

    def on_call(self, call: ClientCall) -> Tap | None:
        """See `_side_channel.Listener`."""
        try:
            speaker = self._speakers.who(call, self._free)
        except Exception as error:
            self.stumbled(self._free, "", error)
            return None
        if speaker is None or (speaker.scope.team is None and speaker.role == "member"):
            return None
        scope = speaker.scope
        turn = Turn(scope.name, speaker.seat or speaker.name, scope.last)
        expected = self.expectations.take(speaker.key, call)
        tap = CallTap(self, speaker, call, self.engines.prefiller(call.client.engine), expected, turn)
        self.record("call", scope.name, turn.agent, role=speaker.role, warm=expected is not None)
        try:
            self._started(tap)
        except Exception as error:
            self.stumbled(scope, speaker.name, error)
        return tap

    def tokens_of(self, tokenizer: ChatTokenizer, prompt: str) -> list[int] | None:
        """See `_side_channel.known_tokens`."""
        return self.expectations.tokens_of(tokenizer, prompt)

    def on_stranger(self, call: ClientCall) -> Tap | None:
        """See `_side_channel.Listener`."""
        known = [p for p in self.engines.known() if p.engine is call.client.engine]
        return PlainTap(known[0]) if known else None

    def _started(self, tap: CallTap) -> None:
        speaker, scope = tap.speaker, tap.speaker.scope
        if tap.call.call.tools and isinstance(speaker.key, AssistantAgent):
            self._planner.tools[speaker.key] = tap.call.call.tools
        first = scope.team is not None and not scope.began
        if speaker.role == "member":
            self._planner.followed(scope, speaker.seat)
            scope.speaks(speaker.key, speaker.seat, tap.upstream)
        else:
            scope.began[id(speaker.key)] = scope.began.get(id(speaker.key), 0) + 1
            if isinstance(speaker.key, AssistantAgent):
                self._chains.seen(speaker.key, tap.call.messages)
        if self.policy.stream:
            scope.spawn(self._place(scope, speaker.name, lambda: self._guesses(speaker, tap.upstream)))
        if first and self.policy.heads:
            scope.spawn(self._place(scope, "", lambda: self._planner.heads(scope, [speaker.key]), new=True))

    def _guesses(self, speaker: Speaker, upstream: Upstream) -> Iterable[Guess]:
        if speaker.role in ("tool", "free"):
            owned = self._speakers.owner_of(speaker.key)
            found = [] if owned is None else self._planner.tool_result(*owned, speaker.key, upstream)
            return found or self._chains.guesses(speaker.key, upstream, self._planner.tools)
        return self._planner.while_speaking(speaker, upstream)

    def plan_handoff(self, speaker: Speaker, message: HandoffMessage) -> None:
        """An agent's message is known to be this hand-off."""
        scope = speaker.scope
        scope.spawn(self._place(scope, speaker.name, lambda: self._planner.after_handoff(speaker, message)))

    def plan_instruction(self, speaker: Speaker, name: str, upstream: Upstream) -> None:
        """MagenticOne's manager speaks to this participant."""
        scope = speaker.scope
        scope.spawn(self._place(scope, speaker.name, lambda: self._planner.instructed(scope, name, upstream)))

    def plan_task(self, speaker: Speaker, name: str, upstream: Upstream) -> None:
        """An agent gives a task to an agent or a team behind a tool of this name."""
        scope, owner = speaker.scope, speaker.key
        scope.spawn(self._place(scope, speaker.name, lambda: self._planner.task_given(owner, name, upstream)))

    def plan_final_answer(self, speaker: Speaker) -> None:
        """MagenticOne's manager has found that the request is satisfied."""
        scope = speaker.scope
        scope.spawn(self._place(scope, speaker.name, lambda: self._planner.satisfied(scope)))

    async def _place(
        self, scope: RunScope, about: str, guesses: Callable[[], Iterable[Guess]], *, new: bool = False
    ) -> None:
        """Make guesses and keep them warm. `new`: only where nothing is expected yet."""
        began = dict(scope.began)
        try:
            await self._load(scope)
            found = guesses()
            iterator: Iterator[Guess] = iter(found if isinstance(found, Sequence) else list(found))
        except Exception as error:
            self.stumbled(scope, about, error)
            return
        for guess in iterator:
            try:
                home = scope.root
                seen = began.get(id(guess.key))
                still = partial(scope.has_begun, guess.key, seen)
                expected = await self.expectations.expect(guess, home, still=still, new=new)
                if expected is not None:
                    self._noted(scope, guess, expected)
            except Exception as error:
                self.stumbled(scope, guess.name, error)

    async def _load(self, scope: RunScope) -> None:
        """Once a run: the tokenizers of those that have not spoken yet, where their engines are up."""
        if scope.loaded or scope.team is None:
            return
        scope.loaded = True
        members = [agent for p in scope.team._participants for agent in agents_within(p)]
        clients = {id(c): c for c in (getattr(agent, "_model_client", None) for agent in members)}
        for client in clients.values():
            if isinstance(client, FlashAgentsChatCompletionClient):
                await client._load_prompt_side()

    def _noted(self, scope: RunScope, guess: Guess, expected: Expected) -> None:
        forecast = expected.forecast
        self.record(
            "forecast",
            scope.name,
            guess.name,
            after=[source.source for source in guess.sources],
            known=guess.known,
            certain=guess.certain,
            head_chars=len(forecast.head),
            reason=forecast.reason,
        )
        if scope.root.team is None:
            self._let_go(guess.key)

    def _let_go(self, key: Any) -> None:
        """Outside of runs nobody says when an agent is no longer expected: the clock does."""
        expected = self.expectations.get(key)
        if expected is not None and expected.scope is self._free:
            asyncio.get_running_loop().call_later(
                self.policy.linger, self.expectations.drop_if, key, expected.downstream
            )

    # ---- what the taps tell

    def note_end(self, upstream: Upstream) -> None:
        """A text is about to be whole."""
        self.expectations.note_end(upstream)

    def ended(self, speaker: Speaker, upstream: Upstream) -> None:
        """A text is whole: in a fan-in its place among the others may be another one now."""
        scope = speaker.scope
        if speaker.role in ("tool", "free"):
            self._chains.said(speaker.key, upstream.text)
        self.trust.learn(speaker, upstream)
        running = [said for said in scope.said if not said.upstream.ended]
        if (
            running
            and self.policy.stream
            and [s.upstream for s in in_order(scope)] != [s.upstream for s in scope.said]
        ):
            scope.said = in_order(scope)
            again = Speaker(None, running[0].upstream.source, "member", scope, running[0].seat)
            scope.spawn(
                self._place(
                    scope, again.name, lambda: self._planner.while_speaking(again, running[0].upstream)
                )
            )

    def retract(self, speaker: Speaker, upstream: Upstream) -> None:
        """It was no message: readers go back to what they knew before."""
        speaker.scope.drop(upstream)
        self.expectations.retract(upstream)

    def finish_turn(self, tap: CallTap, turn: Turn, expected: Expected | None, result: CreateResult) -> None:
        """A call has ended well."""
        turn.finish(tap.call, expected, result)
        if expected is not None:
            self.expectations.book(expected)
        self.turns.append(turn)
        self.record(
            "turn",
            turn.team,
            turn.agent,
            forecast=turn.forecast,
            right=turn.right,
            prompt=turn.prompt,
            cached=turn.cached,
            prewarmed=turn.prewarmed,
            wasted=turn.wasted,
        )


def check_runtime(given: Any) -> None:
    """Refuse what is given in a runtime's place and is none, before it is kept anywhere.

    Raises TypeError.
    """
    if given is None or isinstance(given, FlashGroupChatRuntime):
        return
    hint = ""
    if isinstance(given, GroupChatPolicy):
        hint = ": give FlashGroupChatRuntime(policy)"
    elif isinstance(given, bool):
        hint = ": did you mean install(mend=True)?"
    raise TypeError(f"this should be a FlashGroupChatRuntime, not {given!r:.100}{hint}")


__all__ = ["FlashGroupChatRuntime", "check_runtime"]
