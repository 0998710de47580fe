"""Which agent makes a call, for traces and spans: the client itself is not told."""

from __future__ import annotations

from autogen_core import MessageHandlerContext

from flashagents_runtime.trace import current_scope


def whose_call() -> tuple[str, str]:
    """(agent, workflow) of the call that is being made; "" for what nobody says.

    `trace.scope` decides; else AutoGen's runtime knows: a team registers its participants under
    "<name>_<team id>", with the team's id as their key.
    """
    scope = current_scope()
    agent, workflow = scope.agent, scope.workflow
    if not agent or not workflow:
        try:
            handler = MessageHandlerContext.agent_id()
        except RuntimeError:  # called outside of a runtime
            return agent, workflow
        agent = agent or handler.type.removesuffix(f"_{handler.key}")
        workflow = workflow or handler.key
    return agent, workflow


__all__ = ["whose_call"]
