"""Fixtures for tests that step a real scheduler; their models are made once a run."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from helpers.scheduler_harness import SchedulerHarness, tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for `tiny_model` and `tiny_lora`."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def model(models: Path) -> Path:
    """The tiny random model."""
    path = tiny_model(models)
    # SGLang and torch warn while they are imported and set up for the first time (deprecated torch.jit,
    # AWQ and GGUF without CUDA, Triton without a GPU): nothing of that is ours.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SchedulerHarness(path).close()
    return path
