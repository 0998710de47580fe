"""Benchmarks whose engines start side by side on one GPU, and that measure in turn."""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def add_argument(parser: argparse.ArgumentParser) -> None:
    """`--after FILE`."""
    parser.add_argument(
        "--after",
        type=Path,
        metavar="FILE",
        help="measure once this file is there: engines that take a minute to start can do so beside others",
    )


def wait(args: argparse.Namespace) -> None:
    """Until the file of `--after` is there. Blocks: nothing else is to be done meanwhile."""
    while args.after is not None and not args.after.exists():
        time.sleep(0.05)
