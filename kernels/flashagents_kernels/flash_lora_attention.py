"""Flash-LoRA-Attention: attention over a paged base cache with a per-request low-rank value term.

`O = P V_base + (P V_lr) B`, one softmax: K and V_base are shared by all adapters, V_lr (width r) lies
beside them at the same slot index, and each request brings its own `B`.

- `decode`, `extend`: attention, with or without the low-rank term
- `project_lr`: V_lr of new tokens, straight to their slots
- `join`: prefix and new tokens end to end with V_lr B added, for any kernel of contiguous K and V
- `DecodePlan`, `Workspace`: what a server allocates once
- `ExtendPlan`: what the layers of a pass have in common
- `reconstruct`, `reconstruct_then_decode`, `reconstruct_then_extend`: the baseline

Triton on CUDA devices; everywhere else the torch reference.
"""

from .baseline import reconstruct, reconstruct_then_decode, reconstruct_then_extend
from .core import LoraValues
from .decode import decode
from .errors import DeviceError, DtypeError, KernelError, ShapeError, UnsupportedError, WorkspaceError
from .extend import extend
from .extend_plan import ExtendPlan
from .join import join
from .plan import DecodePlan
from .project import project_lr
from .workspace import Workspace

__all__ = [
    "DecodePlan",
    "DeviceError",
    "DtypeError",
    "ExtendPlan",
    "KernelError",
    "LoraValues",
    "ShapeError",
    "UnsupportedError",
    "Workspace",
    "WorkspaceError",
    "decode",
    "extend",
    "join",
    "project_lr",
    "reconstruct",
    "reconstruct_then_decode",
    "reconstruct_then_extend",
]
