"""An AutoGen model client on an embedded SGLang engine.

Importing it imports no SGLang and no torch.
"""

from flashagents_runtime import __version__

from ._client import FlashAgentsChatCompletionClient
from ._config import FlashAgentsClientConfig
from ._sampling import CreateArgs
from ._usage import FlashRequestUsage

__all__ = [
    "CreateArgs",
    "FlashAgentsChatCompletionClient",
    "FlashAgentsClientConfig",
    "FlashRequestUsage",
    "__version__",
]
