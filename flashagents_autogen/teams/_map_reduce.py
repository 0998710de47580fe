"""`FlashMapReduce`: several agents work on the same task at the same time, one puts it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from autogen_agentchat.base import ChatAgent, TerminationCondition
from autogen_agentchat.teams import DiGraph, DiGraphBuilder
from autogen_core import ComponentModel

from ._graph import FlashGraphFlow
from ._team import FlashTeamConfig


def map_reduce_graph(mappers: Sequence[ChatAgent], reducer: ChatAgent) -> DiGraph:
    """The graph of a map and a reduce, for a `GraphFlow` or a `FlashGraphFlow`.

    Raises:
        ValueError: no mappers, or the reducer among them.
    """
    if not mappers:
        raise ValueError("a map-reduce team needs at least one mapper")
    if reducer.name in [mapper.name for mapper in mappers]:
        raise ValueError(
            f"{reducer.name!r} is the reducer and a mapper: the reducer needs to be another agent"
        )
    builder = DiGraphBuilder()
    builder.add_node(reducer)
    for mapper in mappers:
        builder.add_node(mapper).add_edge(mapper, reducer)
    return builder.build()


class FlashMapReduceConfig(FlashTeamConfig):
    """Configuration of a `FlashMapReduce`."""

    mappers: list[ComponentModel]
    reducer: ComponentModel
    name: str | None = None
    description: str | None = None
    termination_condition: ComponentModel | None = None
    max_turns: int | None = None


class FlashMapReduce(FlashGraphFlow):
    """Mappers answer the task at the same time, without hearing each other; the reducer hears all of them.

    The reducer's prompt has the answers in the order of the mappers, whoever was done first, and is
    warmed in that order. The same as a parallel `FlashGraphFlow` over `map_reduce_graph`.

    Args:
        mappers: one or more agents.
        reducer: one agent.
        arguments: those of `GraphFlow` and `FlashTeam`.

    Raises:
        ValueError: no mappers, or two agents of one name.

    Example:
        >>> team = FlashMapReduce([novelty, soundness, clarity], meta_reviewer)
        >>> review = (await team.run(task=paper)).messages[-1]
    """

    component_config_schema = FlashMapReduceConfig  # type: ignore[assignment]
    component_provider_override = "flashagents_autogen.FlashMapReduce"

    DEFAULT_NAME = "FlashMapReduce"

    def __init__(self, mappers: Sequence[ChatAgent], reducer: ChatAgent, **arguments: Any) -> None:
        self.mappers = list(mappers)
        self.reducer = reducer
        super().__init__([*mappers, reducer], map_reduce_graph(mappers, reducer), parallel=True, **arguments)

    def _to_config(self) -> Any:
        condition = self._termination_condition
        return FlashMapReduceConfig(
            mappers=[mapper.dump_component() for mapper in self.mappers],
            reducer=self.reducer.dump_component(),
            name=self._name,
            description=self._description,
            termination_condition=condition.dump_component() if condition else None,
            max_turns=self._max_turns,
            overlap=self.overlap,
            fixes=self.fixes,
        )

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        condition = config.termination_condition
        return cls(
            [ChatAgent.load_component(mapper) for mapper in config.mappers],
            ChatAgent.load_component(config.reducer),
            name=config.name,
            description=config.description,
            termination_condition=TerminationCondition.load_component(condition) if condition else None,
            max_turns=config.max_turns,
            overlap=config.overlap,
            fixes=config.fixes,
        )


__all__ = ["FlashMapReduce", "FlashMapReduceConfig", "map_reduce_graph"]
