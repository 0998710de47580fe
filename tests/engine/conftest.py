"""One real engine with the real default model for the whole test run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flashagents_runtime.embedded import EmbeddedEngine
from helpers.idle import settle

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs an engine, and its first test pays for the start."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def model_path() -> str:
    """The default model's folder; downloaded and converted where it is not there yet."""
    from flashagents_runtime.model_store import resolve_model

    return str(resolve_model(None))


@pytest.fixture(scope="session")
def session_engine(model_path: str) -> Iterator[EmbeddedEngine]:
    """The one engine; use `real_engine`, which checks that each test leaves it as it found it."""
    engine = EmbeddedEngine(model_path)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLASHAGENTS_CHECK", "1")  # integrity of its cache, whenever it is idle
        asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture
async def real_engine(session_engine: EmbeddedEngine) -> AsyncIterator[EmbeddedEngine]:
    """The one engine with an empty radix cache; afterwards no request may be left in it."""
    await settle(session_engine)
    assert await session_engine.flush_cache()
    yield session_engine
    await settle(session_engine)
