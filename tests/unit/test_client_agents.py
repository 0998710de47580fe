"""AutoGen's own agents and teams on our client, with a scripted engine."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.memory import ListMemory, MemoryContent

from flashagents_autogen import FlashRequestUsage
from helpers.clients import prompt, scripted


async def test_an_agent_streams_its_answer() -> None:
    client, _ = scripted("Hello!")
    agent = AssistantAgent("writer", model_client=client, model_client_stream=True)
    items = [item async for item in agent.run_stream(task="Greet.")]
    chunks = [item.content for item in items if isinstance(item, ModelClientStreamingChunkEvent)]
    assert "".join(chunks) == "Hello!"
    final = items[-1].messages[-1]  # type: ignore[union-attr]
    assert isinstance(final, TextMessage) and final.content == "Hello!"
    assert isinstance(final.models_usage, FlashRequestUsage)


async def test_a_round_robin_team_sees_who_said_what() -> None:
    client, engine = scripted("Go to Rome.", "Try Testaccio.", "Say ciao.")
    team = RoundRobinGroupChat(
        [
            AssistantAgent(
                name, model_client=client, model_client_stream=True, system_message=f"You: {name}."
            )
            for name in ("planner", "local", "language")
        ],
        termination_condition=MaxMessageTermination(4),
    )
    result = await team.run(task="Plan a trip.")
    assert [m.source for m in result.messages] == ["user", "planner", "local", "language"]
    assert prompt(engine, 2) == (
        "<|im_start|>system\nYou: language.<|im_end|>\n<|im_start|>user\nPlan a trip.<|im_end|>\n"
        "<|im_start|>user\nplanner said:\nGo to Rome.<|im_end|>\n"
        "<|im_start|>user\nlocal said:\nTry Testaccio.<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_memory_comes_as_a_late_system_message() -> None:
    client, engine = scripted("Noted.")
    memory = ListMemory()
    await memory.add(MemoryContent(content="Likes trains.", mime_type="text/plain"))
    agent = AssistantAgent("writer", model_client=client, memory=[memory])
    await agent.run(task="Plan.")
    assert prompt(engine).index("Plan.") < prompt(engine).index("Likes trains.")


async def test_a_cancelled_agent_leaves_no_callback_of_ours() -> None:
    client, _ = scripted("Hello!")
    token = CancellationToken()
    agent = AssistantAgent("writer", model_client=client, model_client_stream=True)
    await agent.run(task="Greet.", cancellation_token=token)
    assert not any("CancelGuard" in repr(callback) for callback in token._callbacks)
