"""`lora_sharing` and `lora_groups` among an engine's arguments."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from ..adapter_check import adapter_paths
from .config import ENVIRONMENT, SCHEMES, SharingConfig, parse

ATTENTION = "flashagents"
"""Our attention backend's name (`attention.NAME`; that module imports torch)."""

_SGLANG_DEFAULT_LORAS = 8

_KIND = ("max_lora_rank", "lora_target_modules")
"""What SGLang has to be told where no adapter is there at its start."""


def take_arguments(
    args: Mapping[str, Any], *, cuda: bool, environment: MutableMapping[str, str] = os.environ
) -> dict[str, Any]:
    """The arguments without ours, and with what sharing needs; the scheduler is told by `environment`.

    Args:
        args: engine arguments as a user gives them.
        cuda: the engine runs on a GPU.

    Raises:
        ValueError: arguments that contradict each other; see also `config.parse`.
        UnsupportedFeatureError: the scheme does not take these groups.
    """
    out = {k: v for k, v in args.items() if k not in ("lora_sharing", "lora_groups")}
    config = sharing_of(args)
    environment.pop(ENVIRONMENT, None)
    if config is None:
        return out
    if out.get("enable_lora") is False:
        raise ValueError(f"lora_sharing={config.scheme!r} and enable_lora=False contradict each other")
    out["enable_lora"] = True
    # SGLang counts the model itself among the adapters of a batch.
    out.setdefault("max_loras_per_batch", max(_SGLANG_DEFAULT_LORAS, len(config.members) + 1))
    if config.keeps_rows and cuda:
        _use_our_attention(out, config)
        # The rows are allocated with the pool, which therefore must not grow afterwards.
        environment["SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"] = "0"
    config.put(environment)
    return out


def sharing_of(args: Mapping[str, Any]) -> SharingConfig | None:
    """What engine arguments say of sharing; None is stock.

    Raises:
        ValueError: see `config.parse`; or members are all loaded later, and SGLang has not been told of what
            kind they will be.
        UnsupportedFeatureError: the scheme does not take these groups.
    """
    adapters = adapter_names(args.get("lora_paths"))
    config = parse(args.get("lora_sharing"), args.get("lora_groups"), adapters)
    missing = [name for name in _KIND if not args.get(name)]
    if config is not None and not adapters and missing:
        raise ValueError(
            "adapters that are loaded later must be of a kind that the engine knows from its start: give "
            "max_lora_rank and lora_target_modules too, such as max_lora_rank=8, "
            'lora_target_modules=["q_proj", "v_proj"], or name adapters in lora_paths'
        )
    return config


def doubtful_members(config: SharingConfig | None, adapters: Sequence[str]) -> str | None:
    """A warning where a group's member is none of `adapters` and is spelt much like one that has no group.

    It may be loaded later, so it cannot be refused.
    """
    if config is None:
        return None
    alone = [name for name in adapters if config.group_of(name) is None]
    for name in config.members:
        near = difflib.get_close_matches(name, alone, 1) if name not in adapters else []
        if near:
            return (
                f"lora_groups[{config.group_of(name)!r}] has {name!r}, which is not in lora_paths, and "
                f"{near[0]!r} is in no group and shares with nobody; did you mean {near[0]!r}?"
            )
    return None


def _use_our_attention(out: dict[str, Any], config: SharingConfig) -> None:
    for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        if out.get(name) not in (None, ATTENTION):
            raise ValueError(
                f"lora_sharing={config.scheme!r} attends in its own backend; leave {name}={out[name]!r} out"
            )
    out["attention_backend"] = ATTENTION


def adapter_names(lora_paths: Any) -> list[str]:
    """Names of the adapters in SGLang's `lora_paths`: a mapping, or a list of texts or mappings."""
    return [name for name, _ in adapter_paths(lora_paths)]


def take_argv(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """A command line without `--lora-sharing` and `--lora-groups`, and what `take_arguments` needs of it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--lora-sharing", choices=SCHEMES)
    parser.add_argument("--lora-groups")
    ours, rest = parser.parse_known_args(argv)
    parser.add_argument("--lora-paths", nargs="*")
    parser.add_argument("--attention-backend")
    parser.add_argument("--max-loras-per-batch", type=int)
    parser.add_argument("--max-lora-rank")
    parser.add_argument("--lora-target-modules", nargs="*")
    theirs, _ = parser.parse_known_args(rest)
    given = {**vars(theirs), "lora_sharing": ours.lora_sharing, "lora_groups": ours.lora_groups}
    return rest, {name: value for name, value in given.items() if value is not None}


__all__ = ["adapter_names", "doubtful_members", "sharing_of", "take_arguments", "take_argv"]
