"""Which launch configuration serves a call."""

from __future__ import annotations

from flashagents_kernels.configs import COPIED, extend_config, may_copy

HEADS = (32, 8, 128)  # query heads, KV heads, head dim


def test_a_prefix_is_gathered_for_many_new_tokens() -> None:
    assert extend_config(*HEADS, 8, 1, 512, 30_000, 132, slots=100_000).gather
    assert not extend_config(*HEADS, 8, 1, 500, 30_000, 132, slots=100_000).gather


def test_no_more_is_gathered_than_twice_the_cache() -> None:
    """A hundred requests on one shared prefix, of which one has a long prompt."""
    many = 100 * 30_000
    assert not extend_config(*HEADS, 8, 100, 8192, many, 132, slots=100_000).gather
    assert may_copy(200_000, 100_000, 8, 128)
    assert not may_copy(200_001, 100_000, 8, 128)


def test_what_is_gathered_is_bounded_in_bytes() -> None:
    most = COPIED // (4 * 8 * 128)
    assert may_copy(most, most, 8, 128)
    assert not may_copy(most + 1, most, 8, 128)


def test_nothing_is_gathered_from_no_prefix() -> None:
    """But the low-rank part is added to the new tokens' V."""
    assert extend_config(*HEADS, 8, 1, 8192, 0, 132, slots=0).gather
