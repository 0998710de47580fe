"""Which seams of `seam_tables/` fit another SGLang release? Read from its sources; nothing is installed.

    python scripts/check_sglang_release.py                    the neighbours; writes docs/compatibility.md
    python scripts/check_sglang_release.py 0.5.19 --print     these, to the terminal
    python scripts/check_sglang_release.py --wheels FOLDER    looks for downloaded wheels there first

A seam fits where its symbol is there, its signature is the same, and the attributes that we use are mentioned
in its class. That is what can be read; behaviour behind an equal signature may differ, so a release that fits
here is a candidate for the engine tests, not supported.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "runtime"))

from flashagents_runtime.sglang_seams import SEAMS, SGLANG_VERSION, Seam  # noqa: E402

NEIGHBOURS = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
PAGE = ROOT / "docs" / "compatibility.md"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Sources:
    """The modules below a folder that holds the package `sglang`; parsed at need."""

    root: Path
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    def module(self, name: str) -> ast.Module | None:
        """The syntax tree of a module, None where there is none."""
        if name not in self._trees:
            base = self.root.joinpath(*name.split("."))
            files = [base.with_suffix(".py"), base / "__init__.py"]
            file = next((f for f in files if f.is_file()), None)
            self._trees[name] = None if file is None else ast.parse(file.read_text(encoding="utf-8"))
        return self._trees[name]

    def find(self, target: str) -> Found | None:
        """The symbol at a dotted path, through re-exports; None where it is gone."""
        parts = target.split(".")
        for i in range(len(parts), 0, -1):
            name = ".".join(parts[:i])
            if self.module(name) is not None:
                return self._within(name, parts[i:], 0)
        return None

    def _within(self, module: str, path: list[str], depth: int) -> Found | None:
        tree = self.module(module)
        if tree is None or depth > 8:
            return None
        found = Found(self, module, tree)
        for i, name in enumerate(path):
            node = found.members.get(name)
            if isinstance(node, ast.ImportFrom):
                source = _absolute(node, module)
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                rest = [original, *path[i + 1 :]]
                inner = self._within(source, rest, depth + 1)
                return inner or self._within(f"{source}.{original}", path[i + 1 :], depth + 1)
            if node is None:
                for base in found.bases():
                    inherited = self._within(base.module, [*base.path, *path[i:]], depth + 1)
                    if inherited is not None:
                        return inherited
                return None
            found = Found(self, found.module, node, (*found.path, name))
        return found


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    parent = module.split(".")[: -node.level]
    return ".".join([*parent, *([node.module] if node.module else [])])


@dataclass
class Found:
    """A module, class, function or variable."""

    sources: Sources
    module: str
    node: ast.AST
    path: tuple[str, ...] = ()

    @cached_property
    def members(self) -> dict[str, ast.AST]:
        """What is defined, imported or assigned in it, by name."""
        out: dict[str, ast.AST] = {}
        for node in _statements(getattr(self.node, "body", [])):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                out[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                out |= {(a.asname or a.name): node for a in node.names}
            elif isinstance(node, ast.Assign):
                for name in (t.id for t in node.targets if isinstance(t, ast.Name)):
                    out.setdefault(name, node)  # a stand-in beside a definition comes second
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                out[node.target.id] = node
        return out

    def bases(self) -> Iterator[Found]:
        """Base classes that are SGLang's."""
        for base in getattr(self.node, "bases", []):
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            found = self.sources._within(self.module, name.split("."), 1)
            if found is not None and found.node is not self.node:
                yield found

    def signature(self) -> str | None:
        """As `inspect.signature` writes it, without annotations."""
        node, drop = self.node, 0
        if isinstance(node, ast.ClassDef):
            init = self.sources._within(self.module, [*self.path, "__init__"], 1)
            if init is None or not isinstance(init.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return None
            node, drop = init.node, 1
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        if any(isinstance(d, ast.Name) and d.id == "classmethod" for d in node.decorator_list):
            drop = 1
        return _signature(node, drop)

    def names(self, depth: int = 0) -> set[str]:
        """Its members, and every name that its methods mention; those of its base classes as well."""
        out = set(self.members)
        if isinstance(self.node, ast.ClassDef):
            for node in ast.walk(self.node):
                if isinstance(node, ast.Attribute):
                    out.add(node.attr)
            if depth < 8:
                for base in self.bases():
                    out |= base.names(depth + 1)
        return out


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, also those under `if`, `try` and `with`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _signature(node: Function, drop: int) -> str:
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    defaults += args.defaults
    parts = [_parameter(a, d) for a, d in zip(positional, defaults, strict=True)][drop:]
    if args.posonlyargs:
        parts.insert(len(args.posonlyargs) - drop, "/")
    if args.vararg:
        parts.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        parts.append("*")
    parts += [_parameter(a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        parts.append(f"**{args.kwarg.arg}")
    return f"({', '.join(parts)})"


def _parameter(arg: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return arg.arg
    return f"{arg.arg}={ast.unparse(default)}"


def misfits(seam: Seam, sources: Sources) -> list[str]:
    """What of a seam is not as the table says; empty where it fits."""
    found = sources.find(seam.target)
    if found is None:
        return ["not found"]
    lines = []
    if seam.signature is not None and (signature := found.signature()) != seam.signature:
        lines.append(f"`{signature}`")
    known = found.names() if seam.attributes else set()
    gone = [name for name in seam.attributes if name not in known]
    if gone:
        lines.append(f"without {', '.join(f'`{name}`' for name in gone)}")
    return lines


def check(sources: Sources) -> dict[str, list[str]]:
    """Target -> what does not fit, for the seams that do not."""
    return {seam.target: lines for seam in SEAMS if (lines := misfits(seam, sources))}


def fetch(version: str, wheels: Path | None, folder: Path) -> Sources | None:
    """The sources of a release, unpacked into `folder`; None where the index has no such release."""
    found = list(wheels.glob(f"sglang-{version}-*.whl")) if wheels is not None else []
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        target = folder / "download" / version
        status = subprocess.run(
            [*command, "--dest", str(target), f"sglang=={version}"], check=False
        ).returncode
        found = list(target.glob("*.whl")) if status == 0 else []
    if not found:
        return None
    root = folder / version
    with zipfile.ZipFile(found[0]) as wheel:
        for name in wheel.namelist():
            # Sources alone, and nothing that points out of the folder.
            if name.startswith("sglang/") and name.endswith(".py") and ".." not in Path(name).parts:
                wheel.extract(name, root)
    return Sources(root)


def page(results: dict[str, dict[str, list[str]] | None]) -> str:
    """docs/compatibility.md."""
    hooked = {seam.target for seam in SEAMS if seam.hooked}
    lines = [
        "# SGLang releases",
        "",
        f"This release extends SGLang {SGLANG_VERSION} and starts with no other: the engine's host, the",
        "plug-in and `flashagents serve` compare versions first, and the plug-in compares every symbol that",
        "it touches before it wraps anything. Where one does not fit the start ends with a SeamError that",
        "names it; `flashagents doctor` says the same without starting anything.",
        "",
        f"How far the neighbours are from that is read from their sources, for all {len(SEAMS)} symbols of",
        "[the table](sglang-hooks.md), by `python scripts/check_sglang_release.py`. A symbol fits where it",
        "is there with the same signature and its class mentions the attributes that we use; whether it",
        "behaves the same is for the engine tests to say, after the pin was moved.",
        "",
        "| SGLang | symbols that fit | hooks that fit | |",
        "|---|---|---|---|",
    ]
    for version, found in results.items():
        if found is None:
            lines.append(f"| {version} | | | not on the index |")
            continue
        state = "the release that we extend" if version == SGLANG_VERSION else "refused by its version"
        if version != SGLANG_VERSION and not found:
            state += "; a candidate"
        fit = f"{len(SEAMS) - len(found)} of {len(SEAMS)}"
        hooks = f"{len(hooked) - len(hooked & found.keys())} of {len(hooked)}"
        lines.append(f"| {version} | {fit} | {hooks} | {state} |")
    for version, found in results.items():
        if found:
            lines += ["", f"## What does not fit in {version}", "", "| symbol | there |", "|---|---|"]
            for target, what in found.items():
                mark = " (hooked)" if target in hooked else ""
                lines.append(f"| `{target.removeprefix('sglang.srt.')}`{mark} | {'; '.join(what)} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=NEIGHBOURS)
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    parser.add_argument("--wheels", type=Path, help="folder with wheels that were downloaded already")
    options = parser.parse_args()
    results: dict[str, dict[str, list[str]] | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for version in options.versions:
            sources = fetch(version, options.wheels, Path(folder))
            results[version] = None if sources is None else check(sources)
    text = page(results)
    if options.print:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)}: {', '.join(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
