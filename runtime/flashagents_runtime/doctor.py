"""Look at the machine and the installation, and say what is wrong and what to do about it."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Literal

import msgspec
from packaging.specifiers import SpecifierSet

from . import _extras, model_cache, sglang_seams
from ._doctor_probe import STAGE, Probe
from ._version import __version__
from .model_store import DEFAULT_MODEL, default_model_folder
from .sglang_seams import IMPORT_FAILS

Status = Literal["ok", "note", "problem"]
PROBE_SECONDS = 300
# What an embedded engine needs, and what releases fit. Distributions of the extra come last.
VERSIONS = {
    "autogen-core": ">=0.7.5,<0.8",
    "autogen-agentchat": ">=0.7.5,<0.8",
    "transformers": ">=5.12,<5.13",
    "tokenizers": ">=0.22,<0.23",
}
ENGINE_VERSIONS = {"sglang": "==0.5.18", "torch": "==2.13.*", "triton": ""}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `advice` says what to do about a problem, or what a note means."""

    name: str
    status: Status
    found: str
    advice: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings; `ok` is False where one of them is a problem."""

    ok: bool
    checks: list[Check]

    def problems(self) -> list[str]:
        """What is wrong, and what to do about it, a line each."""
        wrong = [check for check in self.checks if check.status == "problem"]
        return [": ".join(filter(None, (check.name, check.found, check.advice))) for check in wrong]

    def advice(self) -> list[str]:
        """What to do, problems first."""
        by_weight = sorted(self.checks, key=lambda check: check.status != "problem")
        return [f"{check.name}: {check.advice}" for check in by_weight if check.advice]


def examine(
    run_probe: Callable[[], Probe] | None = None,
    *,
    quick: bool = False,
    tell: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Make all checks.

    Args:
        run_probe: stands in for the child process that imports torch and SGLang (tests).
        quick: do not import SGLang, which takes a quarter of a minute: compare its files with what was
            released. A package that SGLang lacks is not noticed then.
        tell: told what is being looked at.
    """
    checks = [*_check_machine(), *_check_versions()]
    if not _extras.find_missing(["torch", "sglang"]):
        probe = run_probe() if run_probe is not None else probe_in_child(tell, quick=quick)
        checks += check_probe(probe)
        if quick and not probe.error:
            checks.append(check_files())
    checks += [*_check_folders(), _check_model()]
    return Report(ok=all(check.status != "problem" for check in checks), checks=checks)


def probe_command(answer: Path, quick: bool) -> list[str]:
    """The command line of the child process that imports torch and SGLang."""
    command = [sys.executable, "-m", f"{__package__}._doctor_probe", str(answer)]
    return [*command, "--quick"] if quick else command


def probe_in_child(tell: Callable[[str], None] = lambda stage: None, *, quick: bool = False) -> Probe:
    """Run the probe in a child process; its crash is a Probe with an error."""
    with tempfile.TemporaryDirectory(prefix="flashagents-doctor-") as folder:
        answer = Path(folder, "answer.json")
        last: deque[str] = deque(["no output"], maxlen=1)
        with subprocess.Popen(
            probe_command(answer, quick),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            late = threading.Event()

            def give_up() -> None:
                late.set()
                child.kill()

            timer = threading.Timer(PROBE_SECONDS, give_up)
            timer.start()
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    if line.startswith(STAGE):
                        tell(line.removeprefix(STAGE).strip())
                    elif line.strip():
                        last.append(line.strip())
                status = child.wait()
            except BaseException:
                child.kill()
                raise
            finally:
                timer.cancel()
        if late.is_set():
            return Probe(error=f"importing torch and SGLang took more than {PROBE_SECONDS} s")
        if status == 0 and answer.exists():
            return msgspec.json.decode(answer.read_bytes(), type=Probe)
        return Probe(error=f"importing torch and SGLang ended with status {status}: {last[0]}")


def check_files() -> Check:
    """Whether the files that hold the seams are those that SGLang released, by the hashes of its wheel.

    The seams are checked against that release in our tests, so files that are the same have them in place.
    """
    distribution = importlib.metadata.distribution("sglang")
    recorded = {str(path): path for path in distribution.files or []}
    wanted = {name for seam in sglang_seams.SEAMS if (name := _file_of(seam.target, recorded)) is not None}
    changed = []
    for name in sorted(wanted):
        hash_, path = recorded[name].hash, Path(str(distribution.locate_file(name)))
        if hash_ is None or not path.exists():
            changed.append(name)
            continue
        digest = hashlib.new(hash_.mode, path.read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != hash_.value:
            changed.append(name)
    if changed or not wanted:
        found = f"not as released: {', '.join(changed) or 'no list of files'}"
        release = f"sglang{ENGINE_VERSIONS['sglang']}"
        advice = f"`flashagents doctor` without --quick looks into them; or install {release} anew"
        return Check(name="SGLang files", status="problem", found=found, advice=advice)
    return Check(
        name="SGLang files",
        status="ok",
        found=f"{len(wanted)} files with {len(sglang_seams.SEAMS)} seams as released (not imported: --quick)",
    )


def _file_of(target: str, files: Container[str]) -> str | None:
    """The file of the module that `target` stands in, None where it is no file of the distribution."""
    parts = target.split(".")
    for end in range(len(parts), 0, -1):
        base = "/".join(parts[:end])
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in files:
                return name
    return None


def _check_machine() -> Iterator[Check]:
    yield Check(name="flashagents-autogen", status="ok", found=__version__)
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Check(
        name="python",
        status="ok" if fits else "problem",
        found=f"{version} ({sys.executable})",
        advice="" if fits else "use Python 3.11 or 3.12",
    )
    system = f"{platform.system()} {platform.machine()}"
    fits = system == "Linux x86_64"
    yield Check(
        name="system",
        status="ok" if fits else "problem",
        found=f"{system}, {os.cpu_count()} cores",
        advice="" if fits else "embedded engines run on Linux on x86-64",
    )


def _check_versions() -> Iterator[Check]:
    for name, wanted in VERSIONS.items():
        yield _check_version(name, wanted, "install it again: `pip install flashagents-autogen`")
    for name, wanted in ENGINE_VERSIONS.items():
        yield _check_version(name, wanted, _extras.missing_message([name], "gpu"))


def _check_version(name: str, wanted: str, how_to_get: str) -> Check:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, status="problem", found="not installed", advice=how_to_get)
    if not SpecifierSet(wanted).contains(found, prereleases=True):
        advice = f"this release works with {name}{wanted}: install that"
        return Check(name=name, status="problem", found=f"{found}, wanted {wanted}", advice=advice)
    return Check(name=name, status="ok", found=found)


def check_probe(probe: Probe) -> list[Check]:
    """What torch and SGLang said."""
    checks: list[Check] = []
    if probe.device:
        where = ", ".join(probe.gpus) or f"CPU ({os.cpu_count()} cores)"
        build = f"torch built for CUDA {probe.cuda}" if probe.cuda else "CPU build of torch"
        idle_gpu = probe.device == "cpu" and shutil.which("nvidia-smi") is not None
        advice = (
            "there is an NVIDIA driver, but torch does not use it: install the CUDA build (README.md,"
            " Installation), or update the driver; until then engines run on the CPU"
        )
        checks.append(
            Check(
                name="device",
                status="note" if idle_gpu else "ok",
                found=f"{probe.device}: {where}, {build}",
                advice=advice if idle_gpu else "",
            )
        )
        checks.append(
            Check(name="CPU shims", status="ok", found=", ".join(probe.shims) or "none (not needed)")
        )
    if probe.error:
        advice = (
            "an engine cannot start like this: set up anew in an empty environment (README.md, Installation)"
        )
        return [*checks, Check(name="SGLang seams", status="problem", found=probe.error, advice=advice)]
    if probe.misfits:
        found = f"{len(probe.misfits)} do not fit: {'; '.join(probe.misfits)}"
        advice = f"install sglang{ENGINE_VERSIONS['sglang']}, the release that this version extends"
        if any(IMPORT_FAILS in line for line in probe.misfits):
            found = "; ".join(probe.misfits)
            advice = "set up anew in an empty environment (README.md, Installation)"
            if probe.device == "cpu" and probe.cuda:
                advice = (
                    "SGLang's CUDA kernels load only where an NVIDIA driver is: install the driver, or set "
                    "up anew for the CPU with FLASHAGENTS_DEVICE=cpu"
                )
        return [*checks, Check(name="SGLang seams", status="problem", found=found, advice=advice)]
    if probe.seams:
        checks.append(Check(name="SGLang seams", status="ok", found=f"all {probe.seams} in place"))
    return checks


def _check_folders() -> Iterator[Check]:
    cache = model_cache.cache_dir()
    yield check_writable(
        "cache folder", cache, f"set {model_cache.CACHE_VARIABLE} to a folder that can be written"
    )
    yield check_writable(
        "temporary folder", Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written"
    )


def check_writable(name: str, folder: Path, advice: str) -> Check:
    """Write a file into `folder`, or into its nearest parent where it does not exist yet."""
    existing = next(parent for parent in [folder, *folder.parents] if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        return Check(name=name, status="problem", found=f"{folder}: {error.strerror}", advice=advice)
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {_size(free)} free"
    if free < DEFAULT_MODEL.space:
        return Check(name=name, status="problem", found=found, advice=f"make room there, or {advice}")
    return Check(name=name, status="ok", found=found)


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


def _check_model() -> Check:
    folder = default_model_folder()
    if folder is not None:
        return Check(name="default model", status="ok", found=f"{DEFAULT_MODEL.title} in {folder}")
    advice = "it is prepared at its first use; `flashagents prepare-model` does so now"
    return Check(name="default model", status="note", found="not prepared yet", advice=advice)


__all__ = ["Check", "Report", "check_files", "check_probe", "check_writable", "examine", "probe_in_child"]
