"""Framework-neutral runtime: engines, prefill sessions, hand-off, and the SGLang plug-in.

Knows nothing of AutoGen. Importing it imports no SGLang, torch or transformers.
"""

from ._version import __version__
from .engine import Engine
from .errors import (
    ContextLengthError,
    DiskFullError,
    EngineClosedError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    FlashAgentsError,
    ModelDownloadError,
    ModelError,
    ModelIntegrityError,
    ModelNotFoundError,
    RequestRejectedError,
    SeamError,
    TemplateError,
    ToolCallError,
    UnsupportedFeatureError,
)
from .scripted import Reply, ScriptedEngine
from .types import (
    AnswerFormat,
    Delta,
    EngineInfo,
    EngineState,
    GenerateRequest,
    GenerateResult,
    Progress,
    ProgressCallback,
    SamplingParams,
    TokenLogprob,
    ToolCall,
    ToolDefinition,
    Usage,
    new_rid,
)

__all__ = [
    "AnswerFormat",
    "ContextLengthError",
    "Delta",
    "DiskFullError",
    "Engine",
    "EngineClosedError",
    "EngineDiedError",
    "EngineError",
    "EngineInfo",
    "EngineStartError",
    "EngineState",
    "FlashAgentsError",
    "GenerateRequest",
    "GenerateResult",
    "ModelDownloadError",
    "ModelError",
    "ModelIntegrityError",
    "ModelNotFoundError",
    "Progress",
    "ProgressCallback",
    "Reply",
    "RequestRejectedError",
    "SamplingParams",
    "ScriptedEngine",
    "SeamError",
    "TemplateError",
    "TokenLogprob",
    "ToolCall",
    "ToolCallError",
    "ToolDefinition",
    "UnsupportedFeatureError",
    "Usage",
    "__version__",
    "new_rid",
]
