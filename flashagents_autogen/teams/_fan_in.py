"""The order in which a node of a graph hears the others: by source, not by who was done first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import DiGraph


@dataclass(frozen=True)
class FanIn:
    """What a node hears, and in which order.

    Attributes:
        rank: place of each node: a predecessor comes before its successors, else as the participants stand.
        ancestors: of each node, those from which it can be reached; None hears all nodes.
    """

    rank: Mapping[str, int]
    ancestors: Mapping[str, frozenset[str]] | None = None

    def split(
        self, node: str, messages: Sequence[BaseChatMessage], earlier: int = 0
    ) -> tuple[list[BaseChatMessage], list[BaseChatMessage]]:
        """(what the node hears now, in order; what it does not hear in this run).

        The result depends on which messages there are, not on the order in which they came.

        Args:
            node: who listens.
            messages: what was said since it last spoke.
            earlier: so many of them are from runs before this one, and are heard in any case.
        """
        heard = list(messages[:earlier])
        from_outside, said, unheard = [], [], []
        seen: Counter[str] = Counter()
        for message in messages[earlier:]:
            source = message.source
            if source not in self.rank:
                from_outside.append(message)
            elif self.ancestors is None or source in self.ancestors[node]:
                # Loops: the second time that A speaks comes after the first time that B does.
                said.append((seen[source], self.rank[source], message))
                seen[source] += 1
            else:
                unheard.append(message)
        said.sort(key=lambda entry: entry[:2])
        return heard + from_outside + [message for _, _, message in said], unheard


def fan_in_of(graph: DiGraph, participants: Sequence[str], only_ancestors: bool) -> FanIn:
    """The order for a graph; `only_ancestors` leaves out branches that happen to be done already."""
    parents = {node: set(of_node) for node, of_node in graph.get_parents().items()}
    ancestors = {node: frozenset(_reach(node, parents)) for node in parents}
    order = {name: i for i, name in enumerate(participants)}
    # By the number of ancestors a predecessor comes first; nodes of one loop have the same number.
    nodes = sorted(parents, key=lambda node: (len(ancestors[node] | {node}), order.get(node, len(order))))
    return FanIn({node: i for i, node in enumerate(nodes)}, ancestors if only_ancestors else None)


def _reach(node: str, parents: Mapping[str, set[str]]) -> set[str]:
    """All nodes from which there is a way to this one; itself only where it lies on a loop."""
    found: set[str] = set()
    todo = list(parents[node])
    while todo:
        parent = todo.pop()
        if parent not in found:
            found.add(parent)
            todo += parents[parent]
    return found


__all__ = ["FanIn", "fan_in_of"]
