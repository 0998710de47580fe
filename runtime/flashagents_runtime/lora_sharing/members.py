"""The adapters of the sharing groups: who is loaded, in which namespace they meet."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from .adapters import Misfit, ValueLora, same_down, strip_value_part, value_part
from .config import SharingConfig

_generations = itertools.count()
"""Never repeats in a process, so no namespace is ever used again."""


@dataclass
class Group:
    """One sharing group. A new `generation` makes a new namespace: what is cached is left behind."""

    name: str
    generation: int = field(default_factory=lambda: next(_generations))

    @property
    def namespace(self) -> str:
        """What takes the place of the adapter's id in a radix key."""
        return f"lora-group:{self.name}:{self.generation}"


class Members:
    """Who belongs to which group, by SGLang's adapter ids.

    An adapter's *number* is its place among all members, from 1; it does not change while the engine
    lives. 0 stands for every request that adds nothing to V.
    """

    def __init__(self, config: SharingConfig) -> None:
        self.config = config
        self.groups = {name: Group(name) for name in config.groups}
        self.numbers = {name: i for i, name in enumerate(config.members, 1)}
        self.values: dict[str, ValueLora] = {}
        """V's part of each loaded member, by name; empty under `full`."""
        self.refused: dict[str, str] = {}
        """Adapters that did not fit, with the reason; until one of that name fits."""
        self._names: dict[str, str] = {}

    @property
    def loaded(self) -> list[str]:
        """Names of the members that are loaded, in the order of their numbers."""
        return sorted(self._names.values(), key=self.numbers.__getitem__)

    def name_of(self, lora_id: str | None) -> str | None:
        """The member that an adapter id belongs to; None for the model itself and for other adapters."""
        return self._names.get(lora_id) if lora_id is not None else None

    def number(self, lora_id: str | None) -> int:
        """A member's number; 0 for the model itself and for other adapters."""
        name = self.name_of(lora_id)
        return self.numbers[name] if name is not None else 0

    def group(self, lora_id: str | None) -> Group | None:
        """The group that a request with this adapter id (None: without adapter) belongs to."""
        if lora_id is None:
            name = self.config.base_group
        else:
            member = self.name_of(lora_id)
            name = self.config.group_of(member) if member is not None else None
        return self.groups[name] if name is not None else None

    def admit(
        self, name: str, lora_id: str, adapter: Any, q_size: int, kv_size: int, max_rank: int | None
    ) -> None:
        """A member has been loaded: check it, and take V's part out of it where the scheme keeps rows.

        Args:
            adapter: SGLang's `LoRAAdapter`.
            q_size: rows of Q's part of the stacked `lora_B`.
            kv_size: rows of K's and of V's part.
            max_rank: the width of the rows, None while it is open.

        Raises:
            Misfit: it does not fit; `adapter` is as it was.
        """
        if self.config.keeps_rows:
            value = value_part(adapter, q_size, kv_size)
            self._check(name, value, max_rank)
            strip_value_part(adapter, q_size, kv_size)
            self.values[name] = value
        self._names[lora_id] = name
        self.refused.pop(name, None)

    def _check(self, name: str, value: ValueLora, max_rank: int | None) -> None:
        if max_rank is not None and value.rank > max_rank:
            raise Misfit(f"its rank is {value.rank}, and the rows of this engine have width {max_rank}")
        other = next((other for other in self.values if other != name), None)
        if self.config.scheme != "base_lr" or other is None:
            return
        first = self.values[other]
        if value.rank != first.rank:
            raise Misfit(f"its rank is {value.rank} and that of {other!r} is {first.rank}")
        if not same_down(value, first):
            raise Misfit(
                f"its v_proj.lora_A differs from that of {other!r}; under base_lr all members of a group "
                "share it bit by bit (`flashagents train-roles --shared-a` trains them so, "
                '"precomputed" takes these)'
            )

    def forget(self, lora_id: str) -> str | None:
        """A member has been unloaded; returns its name, None where it was none."""
        name = self._names.pop(lora_id, None)
        if name is not None:
            self.values.pop(name, None)
        return name

    def leave_behind(self, group: Group) -> None:
        """Nothing that is cached for a group is found again; eviction takes it in time."""
        group.generation = next(_generations)


__all__ = ["Group", "Members"]
