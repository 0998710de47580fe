"""Cores of an engine's ranks on a machine without CUDA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime.host import ranks
from flashagents_runtime.host.ranks import bind_cores

VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"


@pytest.mark.parametrize(
    ("args", "cores", "nodes", "bound"),
    [
        ({}, {0, 1}, 1, None),
        ({"tp_size": None}, {0, 1}, 1, None),
        ({"tp_size": 1}, {0, 1}, 1, None),
        ({"tp_size": 1}, {0, 1}, 0, None),
        ({"tp_size": 2}, {0, 1}, 1, "0|1"),
        ({"tp_size": 2}, {0, 1}, 0, "0|1"),  # a kernel that shows none
        ({"tp_size": 2}, {8, 3, 5, 6, 7}, 1, "3,5|6,7,8"),
        ({"tp_size": 2}, {4}, 1, "4|4"),
        ({"tp_size": 3}, {4, 5}, 1, "4|4|5"),
        ({"tp_size": 2}, {0, 1, 2, 3}, 2, None),  # SGLang gives each rank a node
        ({"tp_size": 4}, {0, 1, 2, 3}, 2, "0|1|2|3"),
    ],
)
def test_each_rank_has_cores(
    args: dict[str, Any],
    cores: set[int],
    nodes: int,
    bound: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for node in range(nodes):
        (tmp_path / f"node{node}").mkdir()
    monkeypatch.setattr(ranks, "_NODES", tmp_path)
    monkeypatch.setenv(VARIABLE, "x")  # so that it is put back
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    bind_cores(args)
    assert os.environ.get(VARIABLE) == bound


def test_the_user_s_own_binding_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ranks, "_NODES", tmp_path)
    monkeypatch.setenv(VARIABLE, "0-3|4-7")
    bind_cores({"tp_size": 2})
    assert os.environ[VARIABLE] == "0-3|4-7"
