"""What was asked for: the scheme and the sharing groups."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import msgspec

from ..errors import UnsupportedFeatureError

SCHEMES = ("none", "full", "base", "base_lr", "precomputed")
"""Values of `lora_sharing`; what each shares stands in docs/lora-sharing.md."""

ENVIRONMENT = "FLASHAGENTS_LORA_SHARING"
"""The environment variable that carries a `SharingConfig` to the scheduler processes, as JSON."""

BASE_MEMBER = "base"
"""In a group's list: requests without an adapter belong to this group too."""


class SharingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scheme and its groups.

    Attributes:
        scheme: one of `SCHEMES`, not "none".
        groups: names of adapters, by the name of their group; `BASE_MEMBER` stands for the model itself.
    """

    scheme: str
    groups: dict[str, list[str]]

    @property
    def keeps_rows(self) -> bool:
        """Low-rank rows are kept beside the KV pool, and our attention backend reads them."""
        return self.scheme != "full"

    @property
    def row_per_member(self) -> bool:
        """Each member has a row of its own at every slot; else all share one."""
        return self.scheme in ("base", "precomputed")

    @property
    def members(self) -> list[str]:
        """All adapters of all groups. An adapter's number is its place here, counted from 1."""
        return [name for names in self.groups.values() for name in names if name != BASE_MEMBER]

    @property
    def base_group(self) -> str | None:
        """The group that requests without an adapter belong to."""
        return next((group for group, names in self.groups.items() if BASE_MEMBER in names), None)

    def group_of(self, name: str) -> str | None:
        """The group of an adapter; None where it shares with nobody."""
        return next((group for group, names in self.groups.items() if name in names), None)

    def put(self, environment: MutableMapping[str, str]) -> None:
        """Pass it on to processes that are started with `environment`."""
        environment[ENVIRONMENT] = msgspec.json.encode(self).decode()


def parse(scheme: Any, groups: Any, adapters: Iterable[str]) -> SharingConfig | None:
    """`lora_sharing` and `lora_groups` as a user gives them; None is stock.

    Args:
        scheme: one of `SCHEMES`, or None.
        groups: adapter names by group, or None: all of `adapters` in one group.
        adapters: names of the adapters that the engine loads at its start.

    Raises:
        ValueError: an unknown scheme, or groups that are no such mapping, overlap or are empty.
        UnsupportedFeatureError: the scheme does not take these groups.
    """
    if scheme is None or scheme == "none":
        if groups:
            raise ValueError('lora_groups needs lora_sharing: "full", "base", "base_lr" or "precomputed"')
        return None
    if scheme not in SCHEMES:
        raise ValueError(f"lora_sharing must be one of {', '.join(SCHEMES)}, not {scheme!r}")
    if groups is None:
        groups = {"agents": list(adapters)}
    config = SharingConfig(scheme, _checked(groups))
    if not config.members:
        raise ValueError(
            f"lora_sharing={scheme!r} shares nothing: name adapters in lora_paths, or, for adapters that "
            'are loaded later, in lora_groups, such as {"team": ["planner", "coder"]}'
        )
    if scheme == "base_lr" and len(config.groups) > 1:
        raise UnsupportedFeatureError(
            "base_lr takes one group: its adapters share one v_proj.lora_A and one row at each slot. Start "
            'an engine for each group, or use "precomputed"'
        )
    return config


def _checked(groups: Any) -> dict[str, list[str]]:
    if isinstance(groups, str):  # from a command line
        try:
            groups = json.loads(groups)
        except ValueError as e:
            raise ValueError(f"lora_groups is no JSON: {e}") from None
    if not isinstance(groups, Mapping):
        raise ValueError("lora_groups must map a group's name to the names of its adapters")
    out: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    for group, names in groups.items():
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"lora_groups[{group!r}] must be a list of adapter names")
        for name in names:
            if name in seen:
                where = "twice" if seen[name] == group else f"in {seen[name]!r} too"
                raise ValueError(f"lora_groups[{group!r}]: {name!r} is there {where}; a member has one group")
            seen[name] = group
        out[str(group)] = list(names)
    return out


def configured(environment: Mapping[str, str] = os.environ) -> SharingConfig | None:
    """What `SharingConfig.put` has passed on; None is stock.

    Raises:
        ValueError: the variable does not hold a `SharingConfig`, or names an unknown scheme.
    """
    text = environment.get(ENVIRONMENT)
    if not text:
        return None
    try:
        config = msgspec.json.decode(text, type=SharingConfig)
    except msgspec.MsgspecError as e:
        raise ValueError(f"{ENVIRONMENT} cannot be read: {e}") from None
    return parse(config.scheme, config.groups, ())


__all__ = ["BASE_MEMBER", "ENVIRONMENT", "SCHEMES", "SharingConfig", "configured", "parse"]
