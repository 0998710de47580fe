"""What `flashagents doctor` asks of torch and SGLang, in a process of its own.

Importing them takes seconds, prints, and may crash; none of that should touch the doctor.
Run as ``python -m flashagents_runtime._doctor_probe FILE``; the answer is JSON in FILE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec


class Probe(msgspec.Struct, kw_only=True):
    """The answer.

    Attributes:
        device: "cuda", "cpu" or "" (torch is missing or does not work).
        gpus: names of the CUDA devices.
        cuda: version of CUDA that torch was built for, None for a CPU build.
        shims: names of the CPU shims that are active.
        seams: how many SGLang seams there are.
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


def probe() -> Probe:
    """Import torch and SGLang as an engine's host process does, and look."""
    from . import cpu_shims, sglang_seams

    answer = Probe(seams=len(sglang_seams.SEAMS))
    try:
        import torch

        answer.cuda = torch.version.cuda
        if torch.cuda.is_available():
            answer.device = "cuda"
            answer.gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        else:
            answer.device = "cpu"
        cpu_shims.install()
        answer.shims = cpu_shims.active()
        answer.misfits = sglang_seams.check()
    except Exception as error:  # whatever an import may raise: it is what the doctor reports
        answer.error = f"{type(error).__name__}: {error}"
    return answer


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(probe()))
