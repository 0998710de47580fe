"""Where an engine's ranks meet, and which cores they have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

_NODES = Path("/sys/devices/system/node")


def meet_in_a_file(args: Mapping[str, Any], path: str) -> bool:
    """Let an engine of one rank set torch.distributed up through a new file; whether it does.

    SGLang has the ranks meet at a TCP store, which torch opens at all of the machine's addresses, for
    anybody. With several ranks or nodes it stays so: keep their ports on a private network.
    """
    ranks = [args.get(name) for name in ("tp_size", "pp_size", "dp_size", "nnodes")]
    if any(n not in (None, 1) for n in ranks) or args.get("dist_init_addr"):
        return False
    os.environ.setdefault("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", f"file://{path}")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # it listens at the host name's address otherwise
    return True


def bind_cores(args: Mapping[str, Any]) -> None:
    """Give each tensor-parallel rank on a machine without CUDA its cores, as SGLang asks where there are more
    ranks than NUMA nodes; else it gives each a node. ``SGLANG_CPU_OMP_THREADS_BIND`` of the user's own wins.
    """
    ranks = args.get("tp_size") or 1
    if ranks > max(len(list(_NODES.glob("node[0-9]*"))), 1):
        cores = sorted(os.sched_getaffinity(0))
        ends = [len(cores) * rank // ranks for rank in range(ranks + 1)]
        of_each = [cores[a:b] or [cores[a]] for a, b in pairwise(ends)]
        bound = "|".join(",".join(map(str, some)) for some in of_each)
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", bound)
