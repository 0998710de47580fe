"""The check of other SGLang releases reads sources as Python does; what does not fit is refused."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import pytest

from flashagents_runtime import SeamError, sglang_seams
from flashagents_runtime.sglang_seams import SGLANG_VERSION, Seam

ROOT = Path(__file__).parents[2]


def load() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_sglang_release", ROOT / "scripts/check_sglang_release.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


script = load()


def sources(root: Path, **files: str) -> object:
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.relative_to(root).parents:
            (root / parent / "__init__.py").touch()
    return script.Sources(root)


def test_by_its_sources_the_installed_release_fits_everywhere() -> None:
    """What importing says of each row (tests/engine/test_seams.py), reading says too."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    assert script.check(script.Sources(Path(spec.submodule_search_locations[0]).parent)) == {}


def test_symbols_are_found_through_imports_branches_and_base_classes(tmp_path: Path) -> None:
    found = sources(
        tmp_path,
        sgl__a="""
from sgl.b import Base as Renamed
from . import c
class K(Renamed):
    def own(self, x): self.y = 1
""",
        sgl__b="""
if True:
    class Base:
        def inherited(self, n=None, *, k: int = 2): self.z = n
""",
        sgl__c="""
try:
    def f(a, b=1, *args, c, d='x', **kw): ...
except ImportError:
    f = None
class M:
    @classmethod
    def make(cls, x, /, y): ...
    @staticmethod
    def still(x): ...
""",
    )
    rows = [
        Seam("sgl.a.K.own", "", "(self, x)"),
        Seam("sgl.a.K.inherited", "", "(self, n=None, *, k=2)"),
        Seam("sgl.a.K", "", attributes=("own", "inherited", "y", "z")),
        Seam("sgl.a.Renamed", ""),
        Seam("sgl.a.c.f", "", "(a, b=1, *args, c, d='x', **kw)"),
        Seam("sgl.c.M.make", "", "(x, /, y)"),
        Seam("sgl.c.M.still", "", "(x)"),
        Seam("sgl.c", "", attributes=("f", "M")),
    ]
    assert {row.target: script.misfits(row, found) for row in rows if script.misfits(row, found)} == {}


def test_misfits_are_told(tmp_path: Path) -> None:
    found = sources(tmp_path, sgl__a="class K:\n    def f(self, x): self.y = 1\n")
    assert script.misfits(Seam("sgl.a.Gone", ""), found) == ["not found"]
    assert script.misfits(Seam("sgl.gone.K", ""), found) == ["not found"]
    assert script.misfits(Seam("sgl.a.K.f", "", "(self)"), found) == ["`(self, x)`"]
    assert script.misfits(Seam("sgl.a.K", "", attributes=("y", "z")), found) == ["without `z`"]


def test_the_page_knows_the_neighbours() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert re.search(rf"\| {re.escape(SGLANG_VERSION)} \| (\d+) of \1 \| (\d+) of \2 \|", text)
    for version in script.NEIGHBOURS:
        assert f"| {version} |" in text


def test_another_release_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release whose hook has another form: the start ends with a message that names release and hook."""
    module = types.ModuleType("sglang_of_tomorrow")

    def hooked(self: object, renamed: object) -> None: ...

    module.hooked = hooked  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang_of_tomorrow", module)
    monkeypatch.setattr(sglang_seams, "installed_version", lambda: "0.5.99")
    rows = [
        Seam("sglang_of_tomorrow.hooked", "", "(self, expected)", hooked=True),
        Seam("sglang_of_tomorrow.gone", ""),
    ]
    with pytest.raises(SeamError) as refused:
        sglang_seams.require(rows)
    text = str(refused.value)
    assert f"SGLang 0.5.99 is installed; this release extends exactly {SGLANG_VERSION}" in text
    assert "sglang_of_tomorrow.hooked: expected (self, expected), found (self, renamed)" in text
    assert "sglang_of_tomorrow.gone: not found" in text


def test_the_host_and_the_server_refuse_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_seams, "installed_version", lambda: "0.5.17")
    with pytest.raises(SeamError, match=r"0\.5\.17"):
        sglang_seams.require_version()
    monkeypatch.setattr(sglang_seams, "installed_version", lambda: None)
    with pytest.raises(SeamError, match="not installed"):
        sglang_seams.require([])
