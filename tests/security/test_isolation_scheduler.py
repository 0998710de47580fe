"""The same on SGLang's own scheduler with our cache: within one batch and across batches."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import pytest

from helpers.kv_model import KvModel
from helpers.scheduler_harness import Request, SchedulerHarness, tiny_model

pytestmark = pytest.mark.engine

SPACES: list[tuple[str | None, str | None]] = [
    (None, None),
    (None, "a"),
    (None, "b"),
    ("a", None),
    ("a", "b"),
    ("ab", None),
    (None, "ab"),
]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerHarness]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tiny_model(tmp_path_factory.mktemp("models"))
        with SchedulerHarness(model, check=KvModel()) as harness:
            yield harness


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4, 500) for _ in range(80)]


def requests(ids: list[int], tag: str) -> list[Request]:
    spaces = enumerate(SPACES)
    return [Request(f"{tag}{i:02}", ids, 2, extra_key=key, cache_salt=salt) for i, (key, salt) in spaces]


def test_tenants_in_one_batch_share_nothing(scheduler: SchedulerHarness) -> None:
    """The intra-turn cache publishes a prefix for the rest of its batch: for its own namespace alone."""
    scheduler.flush()
    ids, before = prompt(1), scheduler.computed()
    scheduler.submit(*requests(ids, "a"))
    scheduler.run()
    assert scheduler.computed() - before == len(SPACES) * len(ids)


def test_tenants_one_after_another_find_nothing_of_each_other(scheduler: SchedulerHarness) -> None:
    scheduler.flush()
    ids = prompt(2)
    for request in requests(ids, "b"):
        before = scheduler.computed()
        scheduler.submit(request)
        scheduler.run()
        assert scheduler.computed() - before == len(ids), f"{request.rid} has found another's prefix"
    for request in requests(ids, "c"):  # and each its own
        before = scheduler.computed()
        scheduler.submit(request)
        scheduler.run()
        assert scheduler.computed() - before == 1
