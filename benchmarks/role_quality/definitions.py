"""The schemes by their definitions (tests/helpers/lora_reference.py), as judges."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tests"))

import torch

from helpers.lora_reference import Backbone, Context

from .judge import Ask, Said

DROIDSPEAK_SHARE = 1 / 3
"""Of the layers that a reader computes anew (LRAgent's setting of DroidSpeak)."""


class DefinitionJudge:
    """One scheme in plain torch, one trajectory after the other.

    Args:
        model: a folder.
        adapters: folders by role.
        scheme: of the reference: its table, `base_lr_own` and `droidspeak` included.
        end: the id that ends an answer.
        compared: measure the exact divergence from `none` too (then each turn is computed twice).
        top: how many of the most likely tokens to tell at each place.
    """

    def __init__(
        self,
        model: Path,
        adapters: Mapping[str, Path],
        scheme: str,
        end: int,
        *,
        device: str = "cpu",
        compared: bool = True,
        top: int = 32,
    ) -> None:
        self.end, self.top = end, top
        self.backbone = Backbone(model, adapters, scheme, device=device)
        self.backbone.recompute = round(self.backbone.layers * DROIDSPEAK_SHARE)
        self.other: DefinitionJudge | None = None
        if compared and scheme != "none":
            self.other = DefinitionJudge(model, adapters, "none", end, device=device, compared=False, top=top)
        self.contexts: dict[tuple[int, str], Context] = {}

    def turns(self, asks: Sequence[Ask]) -> list[Said]:
        """See `Judge`."""
        return [self._turn(ask) for ask in asks]

    def _turn(self, ask: Ask) -> Said:
        last, context = self._read(ask)
        answer = self._greedy(context, last, ask)
        found = self._scored(ask, last, context)
        places = torch.arange(len(found), device=found.device)
        wanted = torch.tensor([*ask.ids[ask.start :], self.end], device=found.device)
        values, ids = found.topk(min(self.top, found.shape[1]), dim=-1)
        tops = [dict(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
        kl = []
        if self.other is not None:
            theirs = self.other.distributions(ask)
            kl = (theirs.exp() * (theirs - found)).sum(-1).tolist()
        return Said(answer, found[places, wanted].tolist(), tops, kl)

    def distributions(self, ask: Ask) -> Any:
        """Log-probs `[reference + 1, vocabulary]` of a turn; its context is cached."""
        last, context = self._read(ask)
        return self._scored(ask, last, context)

    def _read(self, ask: Ask) -> tuple[Any, Context]:
        """Let the role read what it has not: the distribution after it, and the context."""
        none = self.backbone.scheme == "none"
        context = self.contexts.setdefault((ask.key, ask.role if none else ""), Context())
        held = len(context.tokens)
        start = held
        if self.backbone.scheme == "base":
            start = min(held, context.valid(ask.role))
        if self.backbone.scheme == "droidspeak":
            start = 0
        found = self.backbone.extend(context, ask.ids[start : ask.start], ask.role, start=start)
        return found[-1:], context

    def _scored(self, ask: Ask, last: Any, context: Context) -> Any:
        reference = ask.ids[ask.start :]
        return torch.cat([last, self.backbone.extend(context, reference, ask.role)])

    def _greedy(self, context: Context, last: Any, ask: Ask) -> list[int]:
        branch = context.cut(len(context.tokens))
        out: list[int] = []
        while len(out) < ask.longest:
            token = int(last[-1].argmax())
            if token == self.end:
                break
            out.append(token)
            last = self.backbone.extend(branch, [token], ask.role)
        return out
