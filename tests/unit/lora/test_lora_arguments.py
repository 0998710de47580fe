"""`lora_sharing` among engine arguments and on a command line."""

from __future__ import annotations

from typing import Any

import pytest

from flashagents_runtime.lora_sharing import ENVIRONMENT, configured
from flashagents_runtime.lora_sharing.arguments import (
    adapter_names,
    doubtful_members,
    sharing_of,
    take_arguments,
    take_argv,
)

PATHS = {"plan": "/a/plan", "act": "/a/act"}


@pytest.mark.parametrize(
    "paths",
    [
        PATHS,
        ["plan=/a/plan", "act=/a/act"],
        [{"lora_name": "plan", "lora_path": "/a/plan"}, {"lora_name": "act", "lora_path": "x"}],
    ],
)
def test_names_of_adapters(paths: Any) -> None:
    assert adapter_names(paths) == ["plan", "act"]
    assert adapter_names(None) == []


def test_stock_arguments_pass_unchanged_and_clear_what_was_set() -> None:
    environment = {ENVIRONMENT: "old"}
    args = {"lora_paths": PATHS, "lora_sharing": "none", "dtype": "float32"}
    assert take_arguments(args, cuda=True, environment=environment) == {
        "lora_paths": PATHS,
        "dtype": "float32",
    }
    assert environment == {}


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("scheme", ["full", "base", "base_lr", "precomputed"])
def test_what_sharing_needs(scheme: str, cuda: bool) -> None:
    environment: dict[str, str] = {}
    out = take_arguments({"lora_paths": PATHS, "lora_sharing": scheme}, cuda=cuda, environment=environment)
    assert out["enable_lora"] is True
    assert out["max_loras_per_batch"] == 8
    assert "lora_sharing" not in out
    ours = cuda and scheme != "full"
    assert out.get("attention_backend") == ("flashagents" if ours else None)
    assert environment.get("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING") == ("0" if ours else None)
    config = configured(environment)
    assert config is not None
    assert (config.scheme, config.members) == (scheme, ["plan", "act"])


def test_sixteen_roles_need_seventeen_slots() -> None:
    roles = {f"r{i}": "x" for i in range(16)}
    args = {"lora_paths": roles, "lora_sharing": "base_lr"}
    assert take_arguments(args, cuda=False, environment={})["max_loras_per_batch"] == 17
    args["max_loras_per_batch"] = 4
    assert take_arguments(args, cuda=False, environment={})["max_loras_per_batch"] == 4


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"enable_lora": False}, "contradict"),
        ({"attention_backend": "fa3"}, "leave attention_backend='fa3' out"),
        ({"decode_attention_backend": "triton"}, "leave decode_attention_backend='triton' out"),
    ],
)
def test_contradictions(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        take_arguments({"lora_paths": PATHS, "lora_sharing": "base_lr", **extra}, cuda=True, environment={})


def test_a_command_line() -> None:
    argv = ["--port", "1", "--lora-sharing", "full", "--lora-paths", "plan=/a", "act=/b", "--tp", "1"]
    rest, given = take_argv([*argv, "--lora-groups", '{"team": ["plan"]}'])
    assert rest == ["--port", "1", "--lora-paths", "plan=/a", "act=/b", "--tp", "1"]
    assert given == {
        "lora_sharing": "full",
        "lora_groups": '{"team": ["plan"]}',
        "lora_paths": ["plan=/a", "act=/b"],
    }
    assert take_argv(["--port", "1"]) == (["--port", "1"], {})


def test_adapters_that_are_all_loaded_later_need_a_kind() -> None:
    args: dict[str, Any] = {"lora_sharing": "base_lr", "lora_groups": {"team": ["plan", "act"]}}
    with pytest.raises(ValueError, match="max_lora_rank and lora_target_modules"):
        take_arguments(args, cuda=False, environment={})
    args |= {"max_lora_rank": 8, "lora_target_modules": ["q_proj", "v_proj"]}
    assert take_arguments(args, cuda=False, environment={})["max_lora_rank"] == 8
    words = ["--lora-sharing", "base_lr", "--lora-groups", '{"team": ["plan"]}', "--max-lora-rank", "8"]
    words += ["--lora-target-modules", "q_proj", "v_proj"]
    assert sharing_of(take_argv(words)[1]) is not None


def test_a_member_that_is_spelt_like_an_adapter_without_a_group() -> None:
    def doubt(*members: str) -> str | None:
        config = sharing_of({"lora_paths": PATHS, "lora_sharing": "full", "lora_groups": {"team": members}})
        return doubtful_members(config, list(PATHS))

    assert "did you mean 'act'?" in str(doubt("plan", "actt"))
    assert doubt("plan", "act") is None
    assert doubt("plan", "reflect") is None  # may be loaded later
    assert doubt("plan", "act", "actt") is None
    assert doubtful_members(None, list(PATHS)) is None
