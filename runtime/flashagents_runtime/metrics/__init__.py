"""Prometheus metrics of the application's process, beside those of SGLang's servers. Extra `metrics`."""

from .dashboard import dashboard
from .engines import EngineCollector
from .prometheus import PrometheusSink

__all__ = ["EngineCollector", "PrometheusSink", "dashboard"]
