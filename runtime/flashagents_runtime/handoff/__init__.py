"""Hand-off: an upstream agent's tokens become the downstream agent's prefilled prompt.

Framework-neutral, against the `Engine` protocol alone. From the bottom up: `StableTokenizer` (tokens of a
growing text), `PromptForecast` and `GrowingPrompt` (what the downstream prompt will be),
`PrefillSession` and `Prefiller` (its beginning kept warm), `Downstream` and `Handoff` (who feeds whom).
"""

from ..errors import SessionClosedError, UpstreamFailedError
from .chunk_sizer import ChunkSizer, PrefillCurve
from .cut_rules import CutRules
from .downstream import Downstream, Policy, UpstreamEnd
from .forecast import (
    ForecastSlot,
    PromptForecast,
    fill,
    forecast_messages,
    forecast_prompt,
    slot_marker,
)
from .growing_prompt import GrowingPrompt
from .handoff import Handoff, warm_up
from .prefiller import Prefiller
from .session import PrefillSession, SessionFigures
from .stable_tokenizer import StableTokenizer
from .warmup_budget import WarmupBudget

__all__ = [
    "ChunkSizer",
    "CutRules",
    "Downstream",
    "ForecastSlot",
    "GrowingPrompt",
    "Handoff",
    "Policy",
    "PrefillCurve",
    "PrefillSession",
    "Prefiller",
    "PromptForecast",
    "SessionClosedError",
    "SessionFigures",
    "StableTokenizer",
    "UpstreamEnd",
    "UpstreamFailedError",
    "WarmupBudget",
    "fill",
    "forecast_messages",
    "forecast_prompt",
    "slot_marker",
    "warm_up",
]
