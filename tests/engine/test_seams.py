"""The contract with SGLang: every row of the seam table fits the installed release (on CPU)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from flashagents_runtime import engine_args, plugin, sglang_seams
from flashagents_runtime.host.build import default_args
from flashagents_runtime.sglang_seams import SEAMS, Seam, SeamError, symbol

DOCS = Path(__file__).parents[2] / "docs" / "sglang-hooks.md"


@pytest.fixture(scope="module", autouse=True)
def sglang() -> None:
    import warnings

    from flashagents_runtime import cpu_shims

    with warnings.catch_warnings():  # SGLang's and torch's own, at import
        warnings.simplefilter("ignore")
        cpu_shims.install()
        sglang_seams.check()


pytestmark = pytest.mark.engine


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.target.removeprefix("sglang.srt."))
def test_seam_fits(seam: Seam) -> None:
    assert sglang_seams.check([seam]) == []


def test_the_names_of_engine_arguments_are_those_of_the_installed_release() -> None:
    assert engine_args.FILE.read_text().splitlines() == engine_args.installed_lines()
    assert {*default_args(True), *default_args(False)} <= engine_args.known().keys()


def test_every_flag_of_the_installed_launcher_is_let_through() -> None:
    parser = argparse.ArgumentParser()
    symbol("sglang.srt.entrypoints.engine.Engine").server_args_class.add_cli_args(parser)
    for action in parser._actions:
        engine_args.check_flags(action.option_strings)


def test_misfits_are_named() -> None:
    rows = [
        Seam("sglang.srt.managers.scheduler.Scheduler.no_such_method", "x"),
        Seam("sglang.srt.mem_cache.registry.get_radix_cache_factory", "x", "(name, other)"),
        Seam("sglang.srt.managers.scheduler.Scheduler", "x", attributes=("no_such_attribute",)),
    ]
    lines = sglang_seams.check(rows)
    assert len(lines) == 3
    for row, line in zip(rows, lines, strict=True):
        assert row.target in line
    with pytest.raises(SeamError, match="no_such_method"):
        sglang_seams.require(rows)


def test_one_failing_import_is_told_once_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seam_broken").mkdir()
    (tmp_path / "seam_broken" / "__init__.py").touch()
    (tmp_path / "seam_broken" / "inner.py").write_text("import no_such_driver\n")
    monkeypatch.syspath_prepend(tmp_path)
    rows = [Seam(f"seam_broken.inner.{name}", "x") for name in ("a", "b", "c")]
    rows.append(Seam("seam_broken.missing.d", "x"))
    gone, failing = sglang_seams.check(rows)
    assert gone.startswith("seam_broken.missing.d: not found")
    assert failing.startswith("seam_broken.inner.a and 2 more") and "no_such_driver" in failing


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_seams, "installed_version", lambda: "0.5.9")
    with pytest.raises(SeamError, match=r"0\.5\.9"):
        sglang_seams.require()
    with pytest.raises(SeamError, match=r"0\.5\.9"):
        plugin.build_cache(None)


def test_only_listed_symbols_can_be_used_or_hooked() -> None:
    with pytest.raises(KeyError):
        sglang_seams.symbol("sglang.srt.server_args.ServerArgs.from_cli_args")
    with pytest.raises(SeamError, match="not listed"):
        plugin.install_hooks({"sglang.srt.server_args.ServerArgs.from_cli_args": print})


def test_a_hook_that_cannot_be_installed_ends_the_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "sglang.srt.mem_cache.registry.no_such_function"
    monkeypatch.setattr(sglang_seams, "SEAMS", (*SEAMS, Seam(target, "x", hooked=True)))
    with pytest.raises(SeamError, match="no_such_function"):
        plugin.install_hooks({target: print})


def test_register_is_idempotent() -> None:
    plugin.register()
    plugin.register()
    registry = sglang_seams.symbol("sglang.srt.mem_cache.registry.get_radix_cache_factory")
    assert registry(plugin.CACHE_BACKEND) is plugin.build_cache


def test_docs_are_generated_from_the_table() -> None:
    assert DOCS.read_text() == sglang_seams.markdown(), "run: python -m flashagents_runtime.sglang_seams"


def test_the_table_costs_no_import() -> None:
    code = (
        "import sys, flashagents_runtime.sglang_seams, flashagents_runtime.cpu_shims;"
        "sys.exit(any(name in sys.modules for name in ('sglang', 'torch')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
