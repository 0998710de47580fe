"""SGLang's own server, untouched on a GPU; on a machine without one, with the CPU shims alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """The command line is SGLang's."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime"))
    from flashagents_runtime import cpu_shims
    from flashagents_runtime.host.children import run_detokenizer_process, run_scheduler_process

    if cpu_shims.install():
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as our own engines have it
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(
        prepare_server_args(sys.argv[1:]),
        run_scheduler_process_func=run_scheduler_process,
        run_detokenizer_process_func=run_detokenizer_process,
    )


if __name__ == "__main__":
    main()
