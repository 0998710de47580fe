"""Metrics, intervals, and the walk through the turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.role_quality.judge import Ask, Said, play
from benchmarks.role_quality.measure import load_tops, save_tops
from benchmarks.role_quality.metrics import exact, interval, kl_from_tops, token_f1
from benchmarks.role_quality.trajectories import Tokens, Turn


def test_answers_are_compared_by_words() -> None:
    assert exact(" The Red lamp.", "red lamp") == 1.0
    assert exact("red", "red lamp") == 0.0
    assert token_f1("red red lamp", "red lamp shade") == pytest.approx(2 * 2 / 6)
    assert token_f1("", "red") == 0.0
    assert token_f1("the", "") == 1.0


def test_the_bound_of_the_divergence() -> None:
    rng = np.random.default_rng(0)
    p, q = (np.exp(x) / np.exp(x).sum() for x in rng.normal(size=(2, 50)))
    whole = float((p * np.log(p / q)).sum())

    def top(values: np.ndarray, n: int) -> dict[int, float]:
        return {int(i): math.log(values[i]) for i in np.argsort(-values)[:n]}

    bounds = [kl_from_tops(top(p, n), top(q, n)) for n in (5, 20, 50)]
    assert 0 < bounds[0] <= whole + 1e-9 and 0 < bounds[1] <= whole + 1e-9
    assert bounds[2] == pytest.approx(whole)
    assert kl_from_tops(top(p, 5), top(p, 5)) == pytest.approx(0, abs=1e-9)
    assert kl_from_tops({1: math.log(0.5)}, {2: math.log(0.5)}) == pytest.approx(0, abs=1e-9)


def test_an_interval_holds_its_mean_and_shrinks() -> None:
    rng = np.random.default_rng(1)
    few, many = rng.normal(3, 1, size=(20, 3)), rng.normal(3, 1, size=(500, 3))
    mean, low, high = interval(few.tolist())
    assert low < mean < high and mean == pytest.approx(float(few.mean()))
    _, low_2, high_2 = interval(many.tolist())
    assert high_2 - low_2 < high - low
    assert interval([[1.0]] * 5) == pytest.approx((1.0, 1.0, 1.0))


def test_tops_on_disk(tmp_path: Path) -> None:
    tops = {("a?", 0): [{5: -0.5, 7: -1.5}, {1: -0.25}], ("ä", 2): [{9: -3.0}]}
    save_tops(tmp_path / "x.npz", tops)
    assert load_tops(tmp_path / "x.npz") == tops


class Echo:
    """Answers with the reference, surely but for the end."""

    def __init__(self) -> None:
        self.asked: list[list[Ask]] = []

    def turns(self, asks: Sequence[Ask]) -> list[Said]:
        self.asked.append(list(asks))
        return [
            Said(ask.ids[ask.start :], [0.0] * (len(ask.ids) - ask.start) + [-0.5], [{1: -0.1}])
            for ask in asks
        ]


def test_turns_are_played_in_order() -> None:
    found = [
        Tokens("a", "x", list(range(10)), [Turn("plan", 2, 4), Turn("plan", 5, 6), Turn("action", 7, 9)]),
        Tokens("b", "x", list(range(20, 25)), [Turn("action", 1, 2)]),
        Tokens("c", "x", list(range(30, 35)), [Turn("plan", 1, 2)]),
    ]
    judge, tops = Echo(), {}
    records = list(play(judge, found, lambda ids: " ".join(map(str, ids)), batch=2, tops=tops))
    assert [[(a.key, a.role, a.ids[a.start :], a.start) for a in asks] for asks in judge.asked] == [
        [(0, "plan", [2, 3], 2), (1, "action", [21], 1)],
        [(0, "plan", [5], 5)],
        [(0, "action", [7, 8], 7)],
        [(2, "plan", [31], 1)],
    ]
    assert [(r.question, r.turn, r.crossed, r.tokens) for r in records] == [
        ("a", 0, False, 3),
        ("b", 0, False, 2),
        ("a", 1, False, 2),
        ("a", 2, True, 3),
        ("c", 0, False, 2),
    ]
    assert all((r.f1, r.exact, r.nll, r.kl) == (1.0, 1.0, 0.5, None) for r in records)
    compared = list(play(Echo(), found, str, base=tops))
    assert all(r.kl == 0 for r in compared)
