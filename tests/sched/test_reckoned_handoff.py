"""The hand-off in reckoned time: client, sessions and scheduler decide as they would on an H200."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.handoff.cells import Cell
from benchmarks.handoff.reckoned import Played, figures, harness, play, ratios

pytestmark = pytest.mark.engine

Play = Callable[..., dict[str, Played]]


@pytest.fixture(scope="module")
def cell(models: Path, model: Path) -> Iterator[Play]:
    """Plays a cell on one scheduler. (`model`: SGLang has been imported.)"""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FLASHAGENTS_WARMUP_SHARE", "0.05")
        patched.setenv("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "0")
        s, chat = harness(models / "handoff")
        with s:
            yield lambda *args, **more: play(s, chat, Cell(*args), **more)


def test_two_conversations_are_nearly_all_warm_at_the_hand_off(cell: Play) -> None:
    """A second chunk is due beside decodes, where no pass may be as large as the best one."""
    played = cell(512, 2000, 2)
    assert min(figures("ours", played["ours"])["cached_tokens"]) > 0.9 * 2512
    found = ratios(played)
    assert found["handoff/floor"] <= 1.25
    assert found["first_to_first off/ours"] >= 0.98
    assert found["upstream_itl ours/off"] <= 1.05


def test_the_same_again(cell: Play) -> None:
    first, second = (cell(128, 500, 2, variants=["ours"])["ours"] for _ in range(2))
    assert figures("ours", first) == figures("ours", second)
