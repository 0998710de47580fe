"""A policy of wrong values is refused by the value's name."""

from __future__ import annotations

from typing import Any

import pytest

from flashagents_autogen.groupchat.policy import GroupChatPolicy


@pytest.mark.parametrize("name", ["candidates", "waste", "grace", "chunk_size", "share", "linger", "keep"])
@pytest.mark.parametrize("value", ["a", [], float("nan"), True], ids=repr)
def test_what_is_no_number(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} should be a number"):
        GroupChatPolicy(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("candidates", -1),
        ("waste", 1.1),
        ("grace", -1),
        ("chunk_size", 0),
        ("share", 0),
        ("linger", 0),
        ("keep", 0),
    ],
)
def test_numbers_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        GroupChatPolicy(**{name: value})


def test_defaults_and_an_open_chunk_size() -> None:
    assert GroupChatPolicy(chunk_size=None).share == GroupChatPolicy().share
