"""AutoGen's teams, overlapping, mended, and parallel where asked for; docs/teams.md has the details."""

from . import _shapes  # noqa: F401  (first of all: the modules below rely on what it checks)
from ._fixes import TeamFixes
from ._graph import FlashGraphFlow
from ._map_reduce import FlashMapReduce, map_reduce_graph
from ._run import AgentTurn
from ._sequential import (
    FlashMagenticOneGroupChat,
    FlashRoundRobinGroupChat,
    FlashSelectorGroupChat,
    FlashSwarm,
)
from ._team import FlashTeam
from .items import StreamedJSONError, stream_items
from .mend import mend

__all__ = [
    "AgentTurn",
    "FlashGraphFlow",
    "FlashMagenticOneGroupChat",
    "FlashMapReduce",
    "FlashRoundRobinGroupChat",
    "FlashSelectorGroupChat",
    "FlashSwarm",
    "FlashTeam",
    "StreamedJSONError",
    "TeamFixes",
    "map_reduce_graph",
    "mend",
    "stream_items",
]
