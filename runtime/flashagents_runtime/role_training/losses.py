"""The losses of a run as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._extras import require


def plot_losses(losses: Mapping[str, Sequence[float]], file: Path) -> None:
    """Draw each role's loss by step into a file whose ending says the format (.svg, .png, .pdf).

    Raises:
        ImportError: matplotlib is not installed; it comes with the extra `train`.
    """
    require("matplotlib", "train")
    from matplotlib.figure import Figure  # no pyplot: nothing of the process is set

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    for role, values in losses.items():
        [line] = axes.plot(range(1, len(values) + 1), values, alpha=0.3, linewidth=1)
        axes.plot(range(1, len(values) + 1), smooth(values), color=line.get_color(), label=role)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a token of the output")
    axes.legend()
    figure.savefig(file)


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """An exponential mean that starts unbiased."""
    out, total, norm = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + 1 - weight
        out.append(total / norm)
    return out


__all__ = ["plot_losses", "smooth"]
