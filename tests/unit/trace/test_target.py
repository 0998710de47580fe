"""Where a trace is to be saved is looked at before the run that it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashagents_runtime.trace import Trace, check_target


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = tmp_path / "no" / "x.jsonl"
    for check in (check_target, Trace("t").save):
        with pytest.raises(FileNotFoundError, match="no such folder") as refused:
            check(target)
        assert refused.value.filename == str(tmp_path / "no")
    check_target(tmp_path / "x.jsonl")
