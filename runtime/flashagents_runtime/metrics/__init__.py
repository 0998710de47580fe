"""Prometheus metrics of the application's process, beside those of SGLang's servers. Extra `metrics`."""

from .dashboard import dashboard
from .prometheus import PrometheusSink

__all__ = ["PrometheusSink", "dashboard"]
