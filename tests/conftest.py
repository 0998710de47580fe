"""For all tests."""

from __future__ import annotations

import asyncio

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """asyncio's own loops, whatever ran before: importing SGLang makes uvloop's the default of a process."""
    if type(asyncio.get_event_loop_policy()) is not asyncio.DefaultEventLoopPolicy:
        asyncio.set_event_loop_policy(None)
