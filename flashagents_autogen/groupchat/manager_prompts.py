"""What the manager of a team, or the head of a society of mind, will ask its model next."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams._group_chat._magentic_one._magentic_one_orchestrator import (
    MagenticOneOrchestrator,
)
from autogen_agentchat.teams._group_chat._selector_group_chat import SelectorGroupChatManager
from autogen_core.models import LLMMessage, ModelFamily, SystemMessage, UserMessage

from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.handoff import slot_marker

from . import contexts
from .guess import Guess, Upstream, filled, side_of, to_model


def guess_selector(
    manager: SelectorGroupChatManager, seat: str, message: BaseChatMessage, source: Upstream
) -> Guess | None:
    """The selector's prompt once `message`, with a gap for the source's text, has been said.

    None where a function of the user's selects, or filters the candidates: it is not called for a guess.
    """
    if manager._selector_func is not None or manager._candidate_func is not None:
        return None
    side = side_of(manager._model_client)
    if side is None or not contexts.is_known(manager._model_context):
        return None
    names = manager._participant_names
    candidates = names if manager._allow_repeated_speaker else [name for name in names if name != seat]
    if len(candidates) < 2:
        return None
    lines = zip(names, manager._participant_descriptions, strict=True)
    roles = "\n".join(re.sub(r"\s+", " ", f"{name}: {text}").strip() for name, text in lines)
    openai = ModelFamily.is_openai(side.info["family"])
    marker = slot_marker(0)
    so_far = contexts.grow(manager._model_context, [])  # the team goes on, the guess does not

    def chat(texts: Sequence[str]) -> list[ChatMessage]:
        new = [_with_text(m, marker, texts) for m in to_model([message])]
        history = contexts.messages_of(contexts.grow(so_far, new))
        prompt = manager._selector_prompt.format(
            roles=roles, participants=str(candidates), history=manager.construct_message_history(history)
        )
        ask = SystemMessage(content=prompt) if openai else UserMessage(content=prompt, source="user")
        return side.chat([ask])

    return Guess(manager, manager._name, side, chat, sources=(source,))


def guess_ledger(manager: MagenticOneOrchestrator, message: TextMessage, source: Upstream) -> Guess | None:
    """The prompt of MagenticOne's progress ledger once `message` has been said."""
    side = side_of(manager._model_client)
    if side is None or (manager._max_turns is not None and manager._n_rounds > manager._max_turns):
        return None
    later = copy.copy(manager)
    later._message_thread = [*manager._message_thread, message]
    prompt = manager._get_progress_ledger_prompt(
        manager._task, manager._team_description, manager._participant_names
    )
    context = [*later._thread_to_context(), UserMessage(content=prompt, source=manager._name)]
    chat = side.chat(manager._get_compatible_context(context))
    return Guess(manager, manager._name, side, filled(chat), sources=(source,))


def guess_final_answer(manager: MagenticOneOrchestrator) -> Guess | None:
    """The prompt of MagenticOne's final answer, once its ledger says that the request is satisfied."""
    side = side_of(manager._model_client)
    if side is None:
        return None
    prompt = manager._get_final_answer_prompt(manager._task)
    context = [*manager._thread_to_context(), UserMessage(content=prompt, source=manager._name)]
    chat = side.chat(manager._get_compatible_context(context))
    return Guess(manager, manager._name, side, filled(chat))


def guess_society(
    agent: SocietyOfMindAgent, said: Sequence[BaseChatMessage], sources: Sequence[Upstream]
) -> Guess | None:
    """The question at the end of a society's run, if `said` is all that its team has said by then."""
    side = side_of(agent._model_client)
    if side is None:
        return None
    several = bool(side.info.get("multiple_system_messages", False))

    def instruction(text: str) -> LLMMessage:
        return SystemMessage(content=text) if several else UserMessage(content=text, source="user")

    messages = [
        instruction(agent._instruction),
        *(message.to_model_message() for message in said),
        instruction(agent._response_prompt),
    ]
    return Guess(agent, agent.name, side, filled(side.chat(messages)), sources=tuple(sources))


def _with_text(message: LLMMessage, marker: str, texts: Sequence[str]) -> LLMMessage:
    if isinstance(message.content, str) and texts:
        return message.model_copy(update={"content": message.content.replace(marker, texts[0])})
    return message


__all__ = ["guess_final_answer", "guess_ledger", "guess_selector", "guess_society"]
