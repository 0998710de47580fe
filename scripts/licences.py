"""Write docs/licences.md: the licence of every pinned package that is installed here, by its own metadata.

python scripts/licences.py            write the page
python scripts/licences.py --check    exit status 1 where a licence is unknown or not on the list below
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from collections import defaultdict
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
SETS = {
    "run": ("cpu.txt", "cpu-nodeps.txt"),
    "test": ("test.txt", "train.txt", "docs.txt"),
    "contributors": ("dev.txt", "tools.txt"),
}

# What may be beside Apache-2.0 code that does not link it in: everything permissive, and weak copyleft.
ALLOWED = re.compile(
    r"Apache|MIT|BSD|ISC|PSF|Python Software Foundation|Python-2\.0|MPL|Mozilla|Unlicense|Zlib|HPND|CC0"
    r"|Public Domain|LGPL|Lesser General Public",
    re.IGNORECASE,
)


def pinned(names: tuple[str, ...]) -> list[str]:
    """The distributions that pinned requirements files name."""
    found = []
    for name in names:
        for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
            match = re.match(r"([A-Za-z0-9][\w.-]*)(\[[\w,-]+\])?==", line)
            if match:
                found.append(canonicalize_name(match[1]))
    return sorted(set(found))


def licence_of(name: str) -> tuple[str, str] | None:
    """Version and licence of an installed distribution; None where it is not installed."""
    try:
        meta = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    version = meta["Version"]
    expression = meta.get("License-Expression")
    classified = [
        c.rpartition(" :: ")[2] for c in meta.get_all("Classifier") or [] if c.startswith("License ::")
    ]
    classified = [c for c in classified if c != "OSI Approved"]
    text = (meta.get("License") or "").strip()
    one_line = text if text and "\n" not in text and len(text) < 60 else ""
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), "")[:60]
    return version, expression or ", ".join(classified) or one_line or first_line or "unknown"


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    lines = [
        "# Licences of what this project runs with",
        "",
        "Every pinned package, with the licence that its own metadata states. Written by",
        "`python scripts/licences.py`; nothing of these packages is copied into this repository.",
        "",
    ]
    bad: list[str] = []
    done: set[str] = set()
    for title, files in SETS.items():
        by_licence: dict[str, list[str]] = defaultdict(list)
        absent: list[str] = []
        for name in pinned(files):
            if name in done:
                continue
            done.add(name)
            found = licence_of(name)
            if found is None:
                absent.append(name)
                continue
            version, licence = found
            by_licence[licence].append(f"{name} {version}")
            if not ALLOWED.search(licence):
                bad.append(f"{name} {version}: {licence}")
        lines += [f"## To {title}" if title != "contributors" else "## For contributors", ""]
        lines += ["| licence | packages |", "|---|---|"]
        for licence in sorted(by_licence, key=str.lower):
            lines.append(f"| {licence.replace('|', '/')} | {', '.join(by_licence[licence])} |")
        if absent:
            lines += ["", f"Pinned, but not installed where this page was written: {', '.join(absent)}."]
        lines.append("")
    if options.check:
        for line in bad:
            print(f"not an expected licence: {line}")
        return 1 if bad else 0
    PAGE.write_text("\n".join(lines), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(done)} packages; to look at: {'; '.join(bad) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
