"""What `flashagents doctor` asks of torch and SGLang, in a process of its own.

Importing them takes a quarter of a minute, prints, and may crash; none of that should touch the doctor.
Run as ``python -m flashagents_runtime._doctor_probe FILE [--quick]``; the answer is JSON in FILE, and lines
of standard output that begin with `STAGE` say what is being looked at.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

STAGE = "flashagents-doctor: "


class Probe(msgspec.Struct, kw_only=True):
    """The answer.

    Attributes:
        device: "cuda", "cpu" or "" (torch is missing or does not work).
        gpus: names of the CUDA devices.
        cuda: version of CUDA that torch was built for, None for a CPU build.
        shims: names of the CPU shims that are active.
        seams: how many SGLang seams there are; 0 where they were not looked at.
        misfits: one line for each seam that does not fit.
        error: what stopped the probe, "" if nothing did.
    """

    device: str = ""
    gpus: list[str] = []
    cuda: str | None = None
    shims: list[str] = []
    seams: int = 0
    misfits: list[str] = []
    error: str = ""


def probe(tell: Callable[[str], None] = lambda stage: None, *, quick: bool = False) -> Probe:
    """Import torch and SGLang as an engine's host process does, and look.

    Args:
        tell: told what is being looked at.
        quick: torch alone.
    """
    from . import cpu_shims, sglang_seams

    answer = Probe()
    try:
        tell("torch")
        import torch

        answer.cuda = torch.version.cuda
        if torch.cuda.is_available():
            answer.device = "cuda"
            answer.gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        else:
            answer.device = "cpu"
        cpu_shims.install()
        answer.shims = cpu_shims.active()
        if not quick:
            answer.seams = len(sglang_seams.SEAMS)
            for i, seam in enumerate(sglang_seams.SEAMS):
                tell(f"SGLang, seam {i + 1} of {answer.seams}: {seam.target}")
                answer.misfits += sglang_seams.check([seam])
    except Exception as error:  # whatever an import may raise: it is what the doctor reports
        answer.error = f"{type(error).__name__}: {error}"
    return answer


def _print(stage: str) -> None:
    sys.stdout.write(f"{STAGE}{stage}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    gc.disable()  # imports make objects that stay: collecting while they run costs an eighth of the time
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(probe(_print, quick="--quick" in sys.argv)))
