"""The licences of what is installed are on the page, and none is of a kind that was not looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_installed_licence_is_of_a_known_kind() -> None:
    command = [sys.executable, "scripts/licences.py", "--check"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_page_names_every_package_that_an_application_gets() -> None:
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    for line in (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.startswith(("#", " ")):
            assert line.partition("==")[0].partition("[")[0] in page, line
