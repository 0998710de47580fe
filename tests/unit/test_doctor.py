"""The doctor's findings, without torch or SGLang: the probe is scripted, the versions are pretended."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from flashagents_runtime import _extras, doctor, model_cache, sglang_seams
from flashagents_runtime._doctor_probe import STAGE, Probe
from flashagents_runtime.sglang_seams import IMPORT_FAILS

HEALTHY = Probe(device="cpu", shims=["sgl-kernel"], seams=3)
RELEASES = {
    "autogen-core": "0.7.5",
    "autogen-agentchat": "0.7.5",
    "transformers": "5.12.1",
    "tokenizers": "0.22.2",
    "sglang": "0.5.18",
    "torch": "2.13.0+cpu",
    "triton": "3.7.1",
}


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """What is installed, as far as the doctor can see; tests change it."""
    installed = dict(RELEASES)

    def version(name: str) -> str:
        try:
            return installed[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(_extras, "find_missing", lambda modules: [m for m in modules if m not in installed])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv(model_cache.CACHE_VARIABLE, str(tmp_path / "not" / "there" / "yet"))
    return installed


def find(report: doctor.Report, name: str) -> doctor.Check:
    return next(check for check in report.checks if check.name == name)


def test_a_healthy_machine(releases: dict[str, str]) -> None:
    report = doctor.examine(lambda: HEALTHY)
    assert report.ok
    assert find(report, "SGLang seams").found == "all 3 in place"
    assert find(report, "CPU shims").found == "sgl-kernel"
    assert find(report, "device").status == "ok"
    assert find(report, "default model").status == "note"
    assert report.advice() == [
        "default model: it is prepared at its first use; `flashagents prepare-model` does so now"
    ]


def test_a_missing_engine_is_a_problem_and_is_not_imported(releases: dict[str, str]) -> None:
    del releases["sglang"]

    def no_probe() -> Probe:
        raise AssertionError("there is nothing to probe")

    report = doctor.examine(no_probe)
    assert not report.ok
    assert find(report, "sglang").found == "not installed"
    assert "flashagents-autogen[gpu]" in report.advice()[0]


@pytest.mark.parametrize(("name", "found"), [("sglang", "0.5.17"), ("autogen-core", "0.8.0")])
def test_another_release_is_a_problem(releases: dict[str, str], name: str, found: str) -> None:
    releases[name] = found
    report = doctor.examine(lambda: HEALTHY)
    assert not report.ok
    assert find(report, name).status == "problem"
    assert found in find(report, name).found


def test_seams_that_do_not_fit_are_listed(releases: dict[str, str]) -> None:
    report = doctor.examine(lambda: Probe(device="cpu", seams=3, misfits=["sglang.x: not found"]))
    assert not report.ok
    assert "sglang.x: not found" in find(report, "SGLang seams").found


def test_a_cuda_build_without_a_driver_is_told_from_another_release(releases: dict[str, str]) -> None:
    line = f"sglang.x and 29 more: {IMPORT_FAILS}: ModuleNotFoundError: No module named 'common_ops'"
    report = doctor.examine(lambda: Probe(device="cpu", cuda="13.0", seams=30, misfits=[line]))
    assert find(report, "SGLang seams").found == line
    assert "FLASHAGENTS_DEVICE=cpu" in find(report, "SGLang seams").advice


def test_a_failing_import_is_reported(releases: dict[str, str]) -> None:
    report = doctor.examine(lambda: Probe(error="ImportError: libcuda.so.1"))
    assert not report.ok
    assert find(report, "SGLang seams").found == "ImportError: libcuda.so.1"


def test_a_gpu_that_torch_does_not_use_is_noted(
    releases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    report = doctor.examine(lambda: HEALTHY)
    assert report.ok, "it still runs, on the CPU"
    assert find(report, "device").status == "note"


def test_gpus_are_named(releases: dict[str, str]) -> None:
    report = doctor.examine(lambda: Probe(device="cuda", gpus=["A", "B"], cuda="13.0", seams=3))
    assert find(report, "device").found == "cuda: A, B, torch built for CUDA 13.0"
    assert find(report, "CPU shims").found == "none (not needed)"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    check = doctor.check_writable("cache folder", Path("/proc/nothing"), "choose another")
    assert check.status == "problem"
    assert check.advice == "choose another"
    assert doctor.check_writable("cache folder", tmp_path / "new" / "one", "").status == "ok"
    assert not (tmp_path / "new").exists(), "the doctor only looks"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(10, 10, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    check = doctor.check_writable("cache folder", tmp_path, "choose another")
    assert check.status == "problem"
    assert check.advice == "make room there, or choose another"
    assert check.found.endswith(", 1 MiB free")


def test_a_probe_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import os,sys;print({STAGE!r}+'torch',flush=True);sys.stderr.write('boom\\n');os.abort()"
    monkeypatch.setattr(doctor, "probe_command", lambda answer, quick: [sys.executable, "-S", "-c", script])
    stages: list[str] = []
    assert doctor.probe_in_child(stages.append).error == (
        "importing torch and SGLang ended with status -6: boom"
    )
    assert stages == ["torch"]


def test_a_probe_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.2)
    command = [sys.executable, "-S", "-c", "import time;time.sleep(60)"]
    monkeypatch.setattr(doctor, "probe_command", lambda answer, quick: command)
    assert doctor.probe_in_child().error.endswith("took more than 0.2 s")


def released(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution in place of SGLang's, with one module; the path of that."""
    module = folder / "sglang" / "srt.py"
    module.parent.mkdir()
    module.write_text("class Engine: ...\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(module.read_bytes()).digest()).rstrip(b"=").decode()
    info = folder / "sglang-0.5.18.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.18\n")
    (info / "RECORD").write_text(f"sglang/srt.py,sha256={digest},18\n")
    distribution = importlib.metadata.Distribution.at(info)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)
    seam = sglang_seams.Seam("sglang.srt.Engine", "for this test")
    monkeypatch.setattr(sglang_seams, "SEAMS", [seam])
    return module


def test_a_quick_look_compares_the_files_with_the_release(
    releases: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = released(tmp_path, monkeypatch)
    torch_alone = Probe(device="cpu")
    report = doctor.examine(lambda: torch_alone, quick=True)
    assert report.ok and find(report, "SGLang files").found.startswith("1 files with 1 seams as released")
    assert not any(check.name == "SGLang seams" for check in report.checks)
    module.write_text("class Engine: patched = True\n")
    assert find(doctor.examine(lambda: torch_alone, quick=True), "SGLang files").found == (
        "not as released: sglang/srt.py"
    )
    module.unlink()
    assert not doctor.examine(lambda: torch_alone, quick=True).ok


@pytest.mark.engine  # imports SGLang: seconds, not milliseconds
def test_the_real_installation_is_healthy() -> None:
    report = doctor.examine()
    assert report.ok, report.advice()
    assert "in place" in find(report, "SGLang seams").found
