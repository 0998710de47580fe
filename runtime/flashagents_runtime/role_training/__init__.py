"""Role adapters from pairs of input and output: `flashagents train-roles` (docs/role-training.md).

PEFT makes the adapters and transformers' Trainer trains them; both come with the extra `train`. What is here
is what neither has: one adapter a role, a `v_proj.lora_A` that all roles share (LRAgent's *shared-A*, arXiv
2602.01053), and a folder that a run which was cut off goes on from.

`recipe` says how to train, `pairs` reads what to train on, `batches` makes tensors of it, `shared_a` copies
and freezes the matrix, `trainer` trains one role, `run` all of them, `losses` draws what came of it.

Importing this package imports neither torch, transformers nor PEFT.
"""

from .pairs import Pair, read_pairs
from .recipe import Recipe
from .run import TrainedRole, train_roles

__all__ = ["Pair", "Recipe", "TrainedRole", "read_pairs", "train_roles"]
