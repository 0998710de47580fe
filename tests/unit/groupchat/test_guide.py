"""What the pages of AutoGen's AgentChat guide show, as programs of our own: the overlap changes none of it.

Each is played without and with the overlap: messages and prompts have to be the same. What page of the
guide each stands for is in docs/autogen-examples.md.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    PerSourceFilter,
    UserProxyAgent,
)
from autogen_agentchat.base import Response, TerminatedException, TerminationCondition
from autogen_agentchat.conditions import (
    ExternalTermination,
    HandoffTermination,
    MaxMessageTermination,
    TextMentionTermination,
    TextMessageTermination,
)
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    HandoffMessage,
    StopMessage,
    StructuredMessage,
    TextMessage,
    ToolCallExecutionEvent,
)
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import CancellationToken
from autogen_core.memory import ListMemory, MemoryContent
from pydantic import BaseModel

from flashagents_autogen import FlashGroupChatRuntime
from flashagents_runtime import GenerateRequest
from flashagents_runtime.scripted import ScriptItem
from helpers.overlap import assistant, call, client_on, counted_ids, overlapping, prompts, shown

LONG = "look at the old town, then walk on along the river, and write down what you see. " * 2
Play = Callable[[Any], Awaitable[list[Any]]]


def says(text: str) -> str:
    return f"{text}: {LONG}"


async def both_ways(
    make: Callable[[Any], Any], script: Sequence[ScriptItem], play: Play
) -> FlashGroupChatRuntime:
    """Play a team without and with the overlap; returns the runtime of the latter."""
    outcomes = []
    for overlap in (False, True):
        client = client_on(*script)
        team = make(client)
        async with overlapping(team if overlap else None) as runtime:
            with counted_ids():
                said = await play(team)
        outcomes.append((said, prompts(client.engine)))  # type: ignore[arg-type]
    assert outcomes[0] == outcomes[1]
    assert not [event for event in runtime.events if event.kind == "error"]
    return runtime


def tasks(*given: Any) -> Play:
    """Run a team once for each of these."""

    async def play(team: Any) -> list[Any]:
        return [shown(await team.run(task=task)) for task in given]

    return play


# ---- teams


async def test_a_team_that_is_stopped_from_outside_is_resumed_and_reset() -> None:
    stops: list[ExternalTermination] = []

    def make(client: Any) -> RoundRobinGroupChat:
        stops.append(ExternalTermination())
        agents = [assistant("primary", client), assistant("critic", client)]
        return RoundRobinGroupChat(
            agents, termination_condition=stops[-1] | TextMentionTermination("APPROVE")
        )

    def stopped(request: GenerateRequest) -> str:
        stops[-1].set()
        return says("Not bad")

    async def play(team: Any) -> list[Any]:
        said = [shown(await team.run(task="Write a poem.")), shown(await team.run())]
        await team.reset()
        return [*said, shown(await team.run(task="Write another one."))]

    script = [says("poem"), stopped, says("again"), says("APPROVE"), says("poem"), says("APPROVE")]
    runtime = await both_ways(make, script, play)
    assert runtime.hit_rate().right == 3


def increment(number: int) -> int:
    """Increment a number."""
    return number + 1


async def test_one_agent_with_a_tool_in_a_loop() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        agent = assistant("looped", client, tools=[increment])
        return RoundRobinGroupChat([agent], termination_condition=TextMessageTermination("looped"))

    await both_ways(make, [call("increment", number=5), call("increment", number=6), "7"], tasks("5 to 7."))


# ---- a person in the loop


async def test_a_person_is_asked_in_his_turn() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        answers = iter(["Make it rhyme.", "APPROVE"])
        person = UserProxyAgent("person", input_func=lambda prompt: next(answers))
        return RoundRobinGroupChat(
            [assistant("writer", client), person],
            termination_condition=TextMentionTermination("APPROVE", sources=["person"]),
        )

    await both_ways(make, [says("poem"), says("rhyme")], tasks("Write a poem."))


async def test_a_person_answers_between_runs() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        return RoundRobinGroupChat([assistant(name, client) for name in ("writer", "critic")], max_turns=1)

    runtime = await both_ways(make, [says(str(i)) for i in range(3)], tasks("Write.", "Rhyme.", "Shorter."))
    assert [turn.agent for turn in runtime.turns] == ["writer", "critic", "writer"]


async def test_a_hand_off_to_a_person_ends_the_run_until_he_answers() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        lazy = assistant("lazy", client, handoffs=["user"])
        end = HandoffTermination("user") | TextMentionTermination("TERMINATE")
        return RoundRobinGroupChat([lazy], termination_condition=end)

    await both_ways(
        make, [call("transfer_to_user"), "Sunny. TERMINATE"], tasks("The weather?", "It is sunny.")
    )


# ---- termination


class ToolWasCalled(TerminationCondition):
    """Ends a run once a tool of this name has run."""

    def __init__(self, name: str) -> None:
        self._name, self._ended = name, False

    @property
    def terminated(self) -> bool:
        return self._ended

    async def __call__(self, messages: Sequence[BaseAgentEvent | BaseChatMessage]) -> StopMessage | None:
        if self._ended:
            raise TerminatedException("ended already")
        for message in messages:
            if isinstance(message, ToolCallExecutionEvent):
                self._ended |= any(result.name == self._name for result in message.content)
        return StopMessage(content=f"{self._name} was called", source="end") if self._ended else None

    async def reset(self) -> None:
        self._ended = False


def approve() -> None:
    """Approve what was written."""


async def test_a_condition_of_the_users_own_looks_for_a_tool() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        agents = [assistant("writer", client), assistant("critic", client, tools=[approve])]
        return RoundRobinGroupChat(agents, termination_condition=ToolWasCalled("approve"))

    script = [says("poem"), says("no"), says("better"), call("approve")]
    runtime = await both_ways(make, script, tasks("Write a poem."))
    assert runtime.hit_rate().right == 3


# ---- state


async def test_a_team_goes_on_from_a_state_in_a_file() -> None:
    clients: list[Any] = []

    def make(client: Any) -> RoundRobinGroupChat:
        clients.append(client)
        return RoundRobinGroupChat([assistant(name, client) for name in "ab"], max_turns=2)

    async def play(team: Any) -> list[Any]:
        said = [shown(await team.run(task="Write a poem."))]
        state = json.loads(json.dumps(await team.save_state()))
        await team.reset()
        await team.load_state(state)
        return [*said, shown(await team.run(task="What was its last line?"))]

    await both_ways(make, [says(str(i)) for i in range(4)], play)


# ---- selector


def search(query: str) -> str:
    """Search the web."""
    return f"{query}: 214 and 398."


def change(start: float, end: float) -> float:
    """By how many percent."""
    return (end - start) / start * 100


PROMPT = "Choose an agent.\n\n{roles}\n\nSo far:\n{history}\n\nOne of {participants}; the planner first.\n"


def analysis(**args: Any) -> Callable[[Any], SelectorGroupChat]:
    def make(client: Any) -> SelectorGroupChat:
        agents = [
            assistant("planner", client, description="Plans."),
            assistant("searcher", client, description="Searches.", tools=[search]),
            assistant("analyst", client, description="Reckons.", tools=[change], reflect_on_tool_use=True),
        ]
        return SelectorGroupChat(
            agents,
            model_client=client,
            termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(25),
            selector_prompt=PROMPT,
            allow_repeated_speaker=True,
            **args,
        )

    return make


WORK = (
    says("1. searcher: find it"),
    call("search", query="rebounds"),
    call("change", start=214, end=398),
    says("86 percent"),
    says("TERMINATE"),
)


async def test_a_selector_with_a_prompt_of_the_users_own_and_tools() -> None:
    plan, find, reckon, told, end = WORK
    names = ("planner", "searcher", "analyst", "planner")
    script = [names[0], plan, names[1], find, names[2], reckon, told, names[3], end]
    await both_ways(analysis(), script, tasks("Who scored most?"))


async def test_a_function_selects_the_planner_and_leaves_the_rest_to_the_model() -> None:
    def select(thread: Sequence[BaseAgentEvent | BaseChatMessage]) -> str | None:
        return None if thread[-1].source == "planner" else "planner"

    plan, find, reckon, told, end = WORK
    script = [plan, "searcher", find, plan, "analyst", reckon, told, end]
    await both_ways(analysis(selector_func=select), script, tasks("Who scored most?"))


async def test_a_function_narrows_the_candidates() -> None:
    def candidates(thread: Sequence[BaseAgentEvent | BaseChatMessage]) -> list[str]:
        return ["searcher", "analyst"] if thread[-1].source == "planner" else ["planner"]

    plan, find, reckon, told, end = WORK
    script = [plan, "searcher", find, plan, "analyst", reckon, told, end]
    await both_ways(analysis(candidate_func=candidates), script, tasks("Who scored most?"))


# ---- swarm


def refund(flight: str) -> str:
    """Refund a flight."""
    return f"Flight {flight} refunded"


async def test_a_swarm_asks_a_person_and_goes_on() -> None:
    def make(client: Any) -> Swarm:
        travel = assistant("travel", client, handoffs=["refunds", "user"])
        refunds = assistant(
            "refunds", client, handoffs=["travel", "user"], tools=[refund], reflect_on_tool_use=True
        )
        end = HandoffTermination("user") | TextMentionTermination("TERMINATE")
        return Swarm([travel, refunds], termination_condition=end)

    script = [
        call("transfer_to_refunds"),
        call("transfer_to_user", "Which flight is it?"),
        call("refund", flight="507"),
        says("Refunded"),
        call("transfer_to_travel"),
        "TERMINATE",
    ]
    answer = HandoffMessage(source="user", target="refunds", content="Number 507.")
    runtime = await both_ways(make, script, tasks("Refund my flight.", answer))
    assert all(turn.right is not False for turn in runtime.turns)


# ---- graphs


async def test_a_join_a_filter_and_a_loop_with_activation_groups() -> None:
    """a -> b, c -> d; d sends back to a until it says DONE, and e reads d's last message alone."""

    def make(client: Any) -> GraphFlow:
        a, b, c, d, e = (assistant(name, client) for name in "abcde")
        last = MessageFilterAgent(
            "e", e, MessageFilterConfig(per_source=[PerSourceFilter(source="d", position="last", count=1)])
        )
        builder = DiGraphBuilder()
        for agent in (a, b, c, d, last):
            builder.add_node(agent)
        builder.add_edge(a, b).add_edge(a, c)
        builder.add_edge(b, d, activation_group="both", activation_condition="all")
        builder.add_edge(c, d, activation_group="both", activation_condition="all")
        builder.add_edge(d, a, condition=lambda m: "DONE" not in m.to_model_text(), activation_group="again")
        builder.add_edge(d, last, condition=lambda m: "DONE" in m.to_model_text())
        builder.set_entry_point(a)
        end = MaxMessageTermination(20)
        return GraphFlow(builder.get_participants(), builder.build(), termination_condition=end)

    def by_name(request: GenerateRequest) -> str:
        prompt = bytes(request.input_ids).decode()
        name = prompt.partition("You are ")[2][0]
        done = " DONE" if name == "d" and prompt.count("d says") else ""
        return f"{name} says{done}: {LONG}" + "and more " * (name == "c")

    runtime = await both_ways(make, [by_name] * 20, tasks("Write."))
    assert [turn.agent for turn in runtime.turns][-1] == "e"
    assert runtime.turns[1].right is True


# ---- memory, structured output, agents of one's own


async def test_preferences_in_a_memory_beside_a_tool() -> None:
    memories: list[ListMemory] = []

    def make(client: Any) -> RoundRobinGroupChat:
        memories.append(ListMemory())
        first = assistant("weather", client, tools=[search], memory=[memories[-1]])
        return RoundRobinGroupChat([first, assistant("writer", client)], max_turns=2)

    async def play(team: Any) -> list[Any]:
        await memories[-1].add(MemoryContent(content="Metric units, please.", mime_type="text/plain"))
        said = [shown(await team.run(task="New York?"))]
        await memories[-1].add(MemoryContent(content="No rain, please.", mime_type="text/plain"))
        return [*said, shown(await team.run(task="And Rome?"))]

    script = [call("search", query="weather"), says("1"), says("2"), says("3")]
    await both_ways(make, script, play)


class Verdict(BaseModel):
    thoughts: str
    good: bool


async def test_an_answer_in_a_class_of_the_users() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        judge = assistant("judge", client, output_content_type=Verdict)
        types = [StructuredMessage[Verdict]]
        agents = [judge, assistant("writer", client)]
        return RoundRobinGroupChat(agents, max_turns=2, custom_message_types=types)  # type: ignore[arg-type]

    await both_ways(make, ['{"thoughts":"Fine.","good":true}', says("so")], tasks("Is it good?"))


class Countdown(BaseChatAgent):
    """Counts down, with an event for each number, and without a model."""

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], token: CancellationToken) -> Response:
        inner = [TextMessage(content=str(i), source=self.name) for i in (3, 2, 1)]
        return Response(chat_message=TextMessage(content="Go!", source=self.name), inner_messages=inner)

    async def on_reset(self, token: CancellationToken) -> None: ...


class Operator(BaseChatAgent):
    """Does one thing to the last number it has read."""

    def __init__(self, name: str, does: Callable[[int], int]) -> None:
        super().__init__(name, f"{name} a number.")
        self._does = does
        self._number = 0

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], token: CancellationToken) -> Response:
        for message in messages:
            assert isinstance(message, TextMessage)
            self._number = int(message.content)
        self._number = self._does(self._number)
        return Response(chat_message=TextMessage(content=str(self._number), source=self.name))

    async def on_reset(self, token: CancellationToken) -> None:
        self._number = 0


async def test_agents_without_a_model_and_a_selector_with_one() -> None:
    def make(client: Any) -> SelectorGroupChat:
        agents = [
            Operator("adds_one", lambda n: n + 1),
            Operator("doubles", lambda n: 2 * n),
            Operator("negates", lambda n: -n),
        ]
        return SelectorGroupChat(
            agents,  # type: ignore[arg-type]
            model_client=client,
            termination_condition=MaxMessageTermination(4),
            allow_repeated_speaker=True,
            selector_prompt=PROMPT,
        )

    await both_ways(make, ["doubles", "adds_one", "adds_one"], tasks("10"))


async def test_an_agent_without_a_model_between_two_with_one() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        agents: list[Any] = [assistant("a", client), Countdown("counts", "Counts."), assistant("b", client)]
        return RoundRobinGroupChat(agents, max_turns=3)

    runtime = await both_ways(make, [says("a"), says("b")], tasks("Start."))
    assert runtime.turns[-1].agent == "b"


async def test_an_agent_without_a_system_message() -> None:
    def make(client: Any) -> RoundRobinGroupChat:
        agents = [AssistantAgent(name, model_client=client, system_message=None) for name in "ab"]
        return RoundRobinGroupChat(agents, max_turns=4)  # type: ignore[arg-type]

    await both_ways(make, [says(str(i)) for i in range(4)], tasks("Start."))
