"""The Grafana dashboard that comes with the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def dashboard() -> dict[str, Any]:
    """Grafana's dashboard JSON (schema 39): import it, and choose a Prometheus data source."""
    text = resources.files(__package__).joinpath("grafana.json").read_text("utf-8")
    return dict(json.loads(text))


__all__ = ["dashboard"]
