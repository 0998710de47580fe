"""What `lora_sharing` and `lora_groups` take, and how it reaches the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from flashagents_runtime.errors import UnsupportedFeatureError
from flashagents_runtime.lora_sharing import ENVIRONMENT, configured
from flashagents_runtime.lora_sharing.config import parse


def test_one_group_of_all_adapters_is_the_default() -> None:
    config = parse("base_lr", None, ["plan", "act"])
    assert config is not None
    assert config.groups == {"agents": ["plan", "act"]}
    assert config.members == ["plan", "act"]
    assert config.base_group is None


@pytest.mark.parametrize("scheme", [None, "none"])
def test_none_is_stock(scheme: str | None) -> None:
    assert parse(scheme, None, ["plan"]) is None
    with pytest.raises(ValueError, match="lora_groups needs lora_sharing"):
        parse(scheme, {"team": ["plan"]}, ["plan"])


def test_it_travels_in_the_environment() -> None:
    config = parse("precomputed", {"a": ["base", "plan"], "b": ["act"]}, [])
    assert config is not None
    environment: dict[str, str] = {}
    config.put(environment)
    assert configured(environment) == config
    assert config.base_group == "a"
    assert config.group_of("act") == "b"
    assert config.group_of("other") is None
    assert configured({}) is None


def test_groups_from_a_command_line() -> None:
    config = parse("full", '{"team": ["plan"]}', [])
    assert config is not None
    assert config.groups == {"team": ["plan"]}


@pytest.mark.parametrize(
    ("scheme", "groups", "message"),
    [
        ("best", None, "must be one of none, full, base, base_lr, precomputed"),
        ("full", ["plan"], "must map a group's name"),
        ("full", {"team": "plan"}, "must be a list of adapter names"),
        ("full", {"a": ["plan"], "b": ["plan"]}, "'plan' is there in 'a' too"),
        ("full", {"a": ["plan", "plan"]}, "'plan' is there twice"),
        ("full", {"a": ["base"], "b": ["base", "x"]}, "'base' is there in 'a' too"),
        ("full", {"a": ["base"]}, "shares nothing"),
        ("full", "{team", "no JSON"),
    ],
)
def test_what_makes_no_sense_is_refused(scheme: str, groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(scheme, groups, ["plan"])


def test_base_lr_takes_one_group() -> None:
    with pytest.raises(UnsupportedFeatureError, match="base_lr takes one group"):
        parse("base_lr", {"a": ["x"], "b": ["y"]}, [])


@pytest.mark.parametrize("text", ["x", "{}", '{"scheme": "best", "groups": {}}'])
def test_a_variable_that_holds_something_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read|must be one of"):
        configured({ENVIRONMENT: text})
