"""How alike the roles' caches are, layer by layer: keys, base values, low-rank rows, and what adapters add.

    python -m benchmarks.role_quality.similarity --work WORK --seeds 0,1,2 --texts 10

Each role reads the same held-out trajectories alone, with PEFT on transformers' model. For every token the
cosine between two roles' vectors is taken; given are means over tokens, pairs of roles and texts. LRAgent's
observation is that base parts are nearly equal, and adapters' parts are not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flashagents_runtime import cpu_shims
from flashagents_runtime.model_store import resolve_model

from . import arguments
from .cells import ADAPTERS, adapter_folders
from .measure import Task
from .trajectories import ROLES

PARTS = ("key", "base", "row", "added")


def load(model: Path, folders: Mapping[str, Path], device: str) -> Any:
    """The backbone with all roles' adapters, fp32."""
    cpu_shims.mend_torchvision()
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    backbone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    first, *others = folders
    adapted = PeftModel.from_pretrained(backbone, folders[first], adapter_name=first)
    for role in others:
        adapted.load_adapter(folders[role], adapter_name=role)
    return adapted.to(device).eval()


def caches(adapted: Any, role: str, ids: Any) -> dict[str, list[Any]]:
    """Of each layer `[tokens, width]`: keys before RoPE, base values, rows `x A`, and `x A B` scaled."""
    found: dict[str, list[Any]] = {part: [] for part in PARTS}
    hooks = []

    def keep(part: str, factor: float = 1.0) -> Any:
        return lambda module, args, output: found[part].append(output[0].detach() * factor)

    adapted.set_adapter(role)
    for name, module in adapted.named_modules():
        if name.endswith("self_attn.v_proj"):
            hooks += [
                module.base_layer.register_forward_hook(keep("base")),
                module.lora_A[role].register_forward_hook(keep("row")),
                module.lora_B[role].register_forward_hook(keep("added", module.scaling[role])),
            ]
        elif name.endswith("self_attn.k_proj"):
            hooks.append(module.register_forward_hook(keep("key")))
    with torch.no_grad():
        adapted(input_ids=ids, logits_to_keep=1, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def similarities(adapted: Any, texts: list[list[int]], device: str) -> dict[str, list[float]]:
    """By part, the mean cosine of each layer."""
    sums: dict[str, Any] = {}
    for text in texts:
        ids = torch.tensor([text], device=device)
        by_role = {role: caches(adapted, role, ids) for role in ROLES}
        for one, other in itertools.combinations(ROLES, 2):
            for part in PARTS:
                pairs = zip(by_role[one][part], by_role[other][part], strict=True)
                means = torch.stack([torch.cosine_similarity(a, b, dim=-1).mean() for a, b in pairs])
                sums[part] = sums.get(part, 0) + means.double().cpu()
    count = len(texts) * len(list(itertools.combinations(ROLES, 2)))
    return {part: [round(float(x), 5) for x in total / count] for part, total in sums.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--texts", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    args = arguments.parsed(parser, argv)
    model = Path(resolve_model(args.model))
    for name in args.tasks:
        texts = [t.ids for t in Task(args.work, name, model, args.texts).found]
        for seed in args.seeds:
            for adapters in ADAPTERS:
                file = args.work / "similarity" / f"{name}-{adapters}-{seed}.json"
                folders = adapter_folders(args.work, name, seed, adapters)
                if file.exists() or not all(f.exists() for f in folders.values()):
                    continue
                found = similarities(load(model, folders, args.device), texts, args.device)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(found))
                print(file.stem, {part: f"{min(v):.3f} to {max(v):.3f}" for part, v in found.items()})


if __name__ == "__main__":
    main()
