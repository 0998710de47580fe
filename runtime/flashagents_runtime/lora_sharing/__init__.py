"""Role LoRAs that share one cache: `lora_sharing` of an engine (docs/lora-sharing.md).

Agents of a *sharing group* are LoRA adapters of one backbone. They meet in one namespace of the radix
cache, so what one of them has computed the others find. A value is `V_base + V_lr B_i`: the pool holds
`V_base`, the rows `V_lr = x A_v` lie beside it at the same slot, and attention adds `B_i` of the agent that
asks (Flash-LoRA-Attention, `flashagents_kernels`).

`config` says what was asked for, `members` knows the adapters of the groups, `rows` keeps the low-rank
rows, `attention` is the backend that reads them, `tree` the radix cache that forgets what an unloaded
adapter wrote, `hooks` ties them to SGLang, `feature` to the plug-in.

Importing this package imports neither torch nor SGLang.
"""

from .config import BASE_MEMBER, ENVIRONMENT, SCHEMES, SharingConfig, configured

__all__ = ["BASE_MEMBER", "ENVIRONMENT", "SCHEMES", "SharingConfig", "configured"]
