"""The rows of `sglang_seams`: every upstream symbol that is touched, by who touches it. Nothing but data."""

from __future__ import annotations

from .host import HOST
from .intra_turn import INTRA_TURN
from .lora import LORA
from .plug_in import PLUG_IN
from .scheduling import SCHEDULING
from .seam import Seam

__all__ = ["HOST", "INTRA_TURN", "LORA", "PLUG_IN", "SCHEDULING", "Seam"]
