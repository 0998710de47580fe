"""Fixtures of several files."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from autogen_core import EVENT_LOGGER_NAME

from helpers.engine_kinds import rig

__all__ = ["rig"]


@pytest.fixture
def events() -> Iterator[list[object]]:
    """What AutoGen's event logger is given."""
    seen: list[object] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.msg)

    logger, handler = logging.getLogger(EVENT_LOGGER_NAME), Handler()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield seen
    logger.removeHandler(handler)
    logger.setLevel(level)
