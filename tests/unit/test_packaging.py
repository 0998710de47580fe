"""The distribution as a whole: requirements agree with each other, and a wheel holds the three packages."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flashagents_runtime import doctor, sglang_seams

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]


def pins(name: str) -> dict[str, str]:
    """Distribution -> version of a pinned requirements file; fails on a line that is no exact pin."""
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            match = re.fullmatch(r"([\w.\[\]-]+)==([\w.+!]+)", line)
            assert match, f"{name}: {line!r} is not pinned"
            found[canonicalize_name(match[1].partition("[")[0])] = match[2]
    return found


@pytest.mark.parametrize("name", ["cpu.txt", "gpu.txt"])
def test_the_pinned_sets_satisfy_the_distribution(name: str) -> None:
    pinned = pins(name)
    for requirement in DEPENDENCIES:
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version} in {name}"


@pytest.mark.parametrize(
    "name", ["cpu-nodeps.txt", "test.txt", "train.txt", "dev.txt", "docs.txt", "tools.txt"]
)
def test_everything_else_is_pinned_too(name: str) -> None:
    assert pins(name)


def test_the_extra_for_training_is_pinned_beside_what_it_needs() -> None:
    extra = {r.name: r for r in map(Requirement, PROJECT["optional-dependencies"]["train"])}
    pinned = pins("train.txt")
    assert set(pinned) == {"accelerate", "peft"}
    for name in pinned:
        assert extra[name].specifier.contains(pinned[name])
    for name in ("cpu.txt", "gpu.txt"):
        # What accelerate and peft require, beside each other.
        needed = {
            "huggingface-hub",
            "numpy",
            "packaging",
            "psutil",
            "pyyaml",
            "safetensors",
            "torch",
            "tqdm",
            "transformers",
        }
        assert needed <= set(pins(name))


def test_one_sglang_everywhere() -> None:
    wanted = sglang_seams.SGLANG_VERSION
    assert PROJECT["optional-dependencies"]["gpu"] == [f"sglang=={wanted}"]
    assert pins("cpu-nodeps.txt")["sglang"] == pins("gpu.txt")["sglang"] == wanted
    assert doctor.ENGINE_VERSIONS["sglang"] == f"=={wanted}"


def test_cpu_and_gpu_run_the_same_torch() -> None:
    cpu, gpu, setup = pins("cpu.txt"), pins("gpu.txt"), (ROOT / "scripts" / "setup_env.py").read_text()
    for name in ("torch", "triton", "transformers", "xgrammar"):
        assert cpu[name] == gpu[name]
    assert f'"torch=={cpu["torch"]}"' in setup


def test_the_overrides_of_the_gpu_set_are_in_it() -> None:
    pinned = pins("gpu.txt")
    for line in (ROOT / "requirements" / "gpu-overrides.txt").read_text().splitlines():
        if not line.startswith("#"):
            override = Requirement(line)
            assert override.specifier.contains(pinned[override.name])


def test_the_doctor_knows_the_same_ranges() -> None:
    ours = {requirement.name: requirement.specifier for requirement in DEPENDENCIES}
    for name, wanted in doctor.VERSIONS.items():
        assert ours[name] == Requirement(f"{name}{wanted}").specifier


def test_ci_does_what_a_newcomer_does() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines == ["#!/usr/bin/env bash", "set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]


def test_make_lists_its_targets() -> None:
    answer = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "test-fast", "lint"):
        assert re.search(rf"make {target}\s", answer.stdout)


def test_every_package_is_typed_and_licensed() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["packages"]
    assert [Path(package).name for package in packages] == [
        "flashagents_autogen",
        "flashagents_runtime",
        "flashagents_kernels",
    ]
    assert all((ROOT / package / "py.typed").exists() for package in packages)
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_no_test_is_skipped_for_want_of_a_package() -> None:
    """`make test` installs them all: where one is missing, something is broken."""
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    word = "import" + "orskip"
    assert [name for name, source in sources.items() if word in source] == []
