"""What warm-ups are worth, by what became of the latest of them."""

from __future__ import annotations

from flashagents_runtime.scheduling.worth import Worth

POOL = 1600


def test_before_anything_is_known_they_have_all() -> None:
    worth = Worth(POOL)
    assert worth.share() == 1.0
    worth.wasted(POOL // 50)  # little is said by the first one that was wrong
    assert worth.share() == 1.0


def test_a_quarter_of_use_is_enough() -> None:
    worth = Worth(POOL)
    for _ in range(50):
        worth.used(100)
        worth.wasted(250)
    assert worth.share() == 1.0


def test_less_is_less_and_some_is_left() -> None:
    worth = Worth(POOL)
    shares = []
    for _ in range(60):
        worth.wasted(100)
        worth.used(5)
        shares.append(worth.share())
    assert shares == sorted(shares, reverse=True)
    assert 0.15 < shares[-1] < 0.25  # four times a twenty-first
    for _ in range(100):
        worth.wasted(100)
    assert worth.share() == 1 / 16


def test_those_who_are_of_use_again_have_all_again() -> None:
    worth = Worth(POOL)
    worth.wasted(100 * POOL)
    for _ in range(5):
        worth.used(POOL // 10)
    assert worth.share() == 1.0


def test_a_pool_of_nothing_and_numbers_beyond_all_measure() -> None:
    for pool in (0, 1, 10**9):
        worth = Worth(pool)
        worth.wasted(10**12)
        worth.used(0)
        assert 1 / 16 <= worth.share() <= 1.0
