"""What SGLang runs in the processes that it spawns: the same as ever, after our shims are in place.

The spawned process imports this module to find its function, and only then unpickles the arguments,
which imports SGLang: so the shims go in when this module is imported.
"""

from __future__ import annotations

from typing import Any

from .. import cpu_shims
from .. import sglang_seams as seams
from ..plugin import register

cpu_shims.install()


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """`sglang.srt.managers.scheduler.run_scheduler_process`, shims and plug-in first."""
    register()  # SGLang finds it by its entry point too, but only where the package is installed
    return seams.symbol("sglang.srt.managers.scheduler.run_scheduler_process")(*args, **kwargs)


def run_detokenizer_process(*args: Any, **kwargs: Any) -> Any:
    """`sglang.srt.managers.detokenizer_manager.run_detokenizer_process`, shims first."""
    return seams.symbol("sglang.srt.managers.detokenizer_manager.run_detokenizer_process")(*args, **kwargs)
