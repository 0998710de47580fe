from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.kv_model import KvModel
from helpers.scheduler_harness import SchedulerHarness

Tokens = Callable[[int], list[int]]


@pytest.fixture
def tokens() -> Tokens:
    """`tokens(n)`: n random token ids, the same ones in every run of a test."""
    rng = random.Random(7)
    return lambda n: [rng.randrange(4, 500) for _ in range(n)]


CONFIGURATIONS = {
    "page1": {},
    "page1-overlap": {"overlap": True},
    "page16": {"page_size": 16},
    "page16-overlap": {"page_size": 16, "overlap": True},
}


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def scheduler(model: Path, request: pytest.FixtureRequest) -> Iterator[SchedulerHarness]:
    """A scheduler for a whole test module, its KV checked after every step."""
    with SchedulerHarness(model, check=KvModel(), **CONFIGURATIONS[request.param]) as s:
        yield s
