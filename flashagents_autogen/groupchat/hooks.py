"""Where AutoGen is hooked: the run of a team, and the turn of an agent. Two methods, nothing else.

`attach` wraps `run_stream` of one team object. `install` wraps `BaseGroupChat.run_stream` and
`AssistantAgent.on_messages_stream` for all of them, those that exist already too. The wrappers hand
through what the originals yield, unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import update_wrapper, wraps
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import BaseGroupChat

_MARK = "_flashagents_original"


class RunFollower(Protocol):
    """What the wrappers tell: implemented by `FlashGroupChatRuntime`."""

    def begin_run(self, team: Any) -> object | None:
        """A team starts a run; None where it is being followed already. Does not raise."""
        ...

    async def end_run(self, run: object) -> None:
        """That run has ended, in whatever way."""
        ...

    def note_agent(self, agent: AssistantAgent) -> None:
        """An agent takes its turn. Does not raise."""
        ...


_attached: WeakKeyDictionary[Any, RunFollower] = WeakKeyDictionary()
_everywhere: RunFollower | None = None
_mend: Callable[[Any], object] | None = None


def follower_of(team: Any) -> RunFollower | None:
    """Who follows this team: the runtime that it was attached to, else the installed one."""
    return _attached.get(team, _everywhere)


def original_of(method: Any) -> Any:
    """AutoGen's own method behind a hooked one, or the method itself."""
    return getattr(method, _MARK, method)


def hook_team(team: Any, follower: RunFollower) -> None:
    """Follow one team; a later call replaces the follower."""
    _attached[team] = follower
    if not hasattr(team.run_stream, _MARK):
        team.run_stream = _FollowedRun(team)


class _FollowedRun:
    """`run_stream` of one team object. A copy of the team, or its pickle, is followed by nobody."""

    def __init__(self, team: Any) -> None:
        self._team = team
        self._run = _wrap_run(team.run_stream, lambda args: (team, args))
        update_wrapper(self, team.run_stream)
        setattr(self, _MARK, getattr(self._run, _MARK))

    def __call__(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        stream: AsyncGenerator[Any, None] = self._run(*args, **options)
        return stream

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._team, "run_stream")


def unhook_team(team: Any) -> None:
    """Follow it no more; fine where it is not followed."""
    _attached.pop(team, None)
    if hasattr(vars(team).get("run_stream"), _MARK):
        del team.run_stream


def hook_everywhere(follower: RunFollower, mend: Callable[[Any], object] | None = None) -> None:
    """Follow every team and agent of the process; a later call replaces the follower.

    `mend` is shown each team before a run, and may change its class.
    """
    global _everywhere, _mend
    _everywhere, _mend = follower, mend
    if not hasattr(BaseGroupChat.run_stream, _MARK):
        original = BaseGroupChat.run_stream
        _set(BaseGroupChat, "run_stream", _wrap_run(original, lambda args: (args[0], args)))
    if not hasattr(AssistantAgent.on_messages_stream, _MARK):
        _set(AssistantAgent, "on_messages_stream", _wrap_turn(AssistantAgent.on_messages_stream))


def unhook_everywhere() -> None:
    """Put AutoGen's own methods back; fine where they are there."""
    global _everywhere, _mend
    _everywhere = _mend = None
    for cls, name in ((BaseGroupChat, "run_stream"), (AssistantAgent, "on_messages_stream")):
        original = getattr(getattr(cls, name), _MARK, None)
        if original is not None:
            _set(cls, name, original)


def _set(cls: type, name: str, method: Any) -> None:
    setattr(cls, name, method)


def _wrap_run(
    original: Callable[..., AsyncGenerator[Any, None]], read: Callable[[tuple[Any, ...]], tuple[Any, Any]]
) -> Any:
    @wraps(original)
    async def run_stream(*args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        team, passed = read(args)
        follower = follower_of(team)
        run = None if follower is None else follower.begin_run(team)
        before = type(team)
        if _mend is not None:
            _mend(team)
        try:
            # A class of its own may run it in another way.
            stock = (
                original(*passed, **options)
                if type(team) is before
                else type(team).run_stream(team, **options)
            )
            async with aclosing(stock) as stream:
                async for item in stream:
                    yield item
        finally:
            if follower is not None and run is not None:
                await follower.end_run(run)

    setattr(run_stream, _MARK, original)
    return run_stream


def _wrap_turn(original: Callable[..., AsyncGenerator[Any, None]]) -> Any:
    @wraps(original)
    def on_messages_stream(self: AssistantAgent, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        if _everywhere is not None:
            _everywhere.note_agent(self)
        return original(self, *args, **options)

    setattr(on_messages_stream, _MARK, original)
    return on_messages_stream


__all__ = [
    "RunFollower",
    "follower_of",
    "hook_everywhere",
    "hook_team",
    "original_of",
    "unhook_everywhere",
    "unhook_team",
]
