"""The prefillers of a runtime, one for each engine and event loop, and the seams of each tokenizer."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from flashagents_runtime import Engine
from flashagents_runtime.chat import ChatTokenizer
from flashagents_runtime.handoff import CutRules, Prefiller

from .policy import GroupChatPolicy

_rules: WeakKeyDictionary[Any, CutRules] = WeakKeyDictionary()


async def rules_of(tokenizer: ChatTokenizer) -> CutRules:
    """The seams of a tokenizer; worked out once, beside the event loop."""
    rules = _rules.get(tokenizer)
    if rules is None:
        # Of a vocabulary it may take half a second; without one there is nothing to work out.
        slow = hasattr(tokenizer, "backend_tokenizer")
        rules = await asyncio.to_thread(CutRules, tokenizer) if slow else CutRules(tokenizer)
        _rules[tokenizer] = rules
    return rules


class Engines:
    """Prefillers by engine. An engine is known by its identity: equal ones may be different."""

    def __init__(self, policy: GroupChatPolicy) -> None:
        self._policy = policy
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Prefiller]] = WeakKeyDictionary()

    def prefiller(self, engine: Engine) -> Prefiller:
        """The one of this engine in the running loop."""
        here = self._loops.setdefault(asyncio.get_running_loop(), {})
        found = here.get(id(engine))
        if found is None or found.engine is not engine:
            found = Prefiller(engine, chunk_size=self._policy.chunk_size, share=self._policy.share)
            here[id(engine)] = found
        return found

    def known(self) -> list[Prefiller]:
        """Those of the running loop."""
        return list(self._loops.get(asyncio.get_running_loop(), {}).values())

    async def close(self) -> None:
        """Close all sessions of the running loop. The engines stay as they are."""
        for prefiller in self._loops.pop(asyncio.get_running_loop(), {}).values():
            await prefiller.close()


__all__ = ["Engines", "rules_of"]
