"""An SGLang server somewhere else, behind the same `Engine` protocol as an embedded engine."""

from .engine import RemoteEngine

__all__ = ["RemoteEngine"]
