"""Cores of an engine's ranks on a machine without CUDA."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flashagents_runtime.host.ranks import bind_cores

VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"


@pytest.mark.parametrize(
    ("args", "cores", "bound"),
    [
        ({}, {0, 1}, None),
        ({"tp_size": None}, {0, 1}, None),
        ({"tp_size": 1}, {0, 1}, None),
        ({"tp_size": 2}, {0, 1}, "0|1"),
        ({"tp_size": 2}, {8, 3, 5, 6, 7}, "3,6,8|5,7"),
        ({"tp_size": 2}, {4}, "4|4"),
    ],
)
def test_each_rank_has_cores(
    args: dict[str, Any], cores: set[int], bound: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "x")  # so that it is put back
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    bind_cores(args)
    assert os.environ.get(VARIABLE) == bound


def test_the_user_s_own_binding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0-3|4-7")
    bind_cores({"tp_size": 2})
    assert os.environ[VARIABLE] == "0-3|4-7"
