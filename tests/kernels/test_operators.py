"""The operators' tests under Triton's CPU interpreter.

Triton decides at import whether it interprets, for the whole process, and SGLang imports Triton too: so
these tests run in a process of their own. On a CUDA machine, run them on the GPU directly:
`python -m pytest tests/kernels/operators/operator_*.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "operators"
FILES = sorted(p.name for p in HERE.glob("operator_*.py"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_under_the_interpreter(name: str) -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "--tb=short", str(HERE / name)],
        env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
