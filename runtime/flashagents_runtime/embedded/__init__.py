"""An SGLang engine that the application owns: started, talked to and ended by it.

The application imports no SGLang. Each engine lives in a host process of its own
(``python -m flashagents_runtime.host``); see docs/architecture.md for the reasons.
"""

from .engine import EmbeddedEngine
from .pool import EngineLease, acquire_engine, pooled_engines

__all__ = ["EmbeddedEngine", "EngineLease", "acquire_engine", "pooled_engines"]
