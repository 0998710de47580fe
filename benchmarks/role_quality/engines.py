"""The schemes in an SGLang engine with the plug-in, as judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lora_sharing.sharing_engine import SharingEngine

from .judge import Ask, Said

SCHEMES = ("none", "full", "base", "base_lr", "precomputed")


class Engines:
    """One engine for several teams: adapters of one seed each, whose cache is theirs alone.

    Args:
        model: a folder.
        scheme: `lora_sharing`.
        teams: folders by role, by the team's name.
        end: the id that ends an answer.
        top: how many of the most likely tokens to ask for at each place.
        server_args: SGLang's, on top.
    """

    def __init__(
        self,
        model: Path,
        scheme: str,
        teams: Mapping[str, Mapping[str, Path]],
        end: int,
        *,
        cpu: bool,
        top: int = 32,
        **server_args: Any,
    ) -> None:
        self.end, self.top = end, top
        names = {team: {role: f"{team}-{role}" for role in roles} for team, roles in teams.items()}
        self.names = names
        folders = [folder for roles in teams.values() for folder in roles.values()]
        members = [name for roles in names.values() for name in roles.values()]
        self.engine = SharingEngine(
            scheme,
            members,
            folders,
            cpu=cpu,
            groups={team: list(roles.values()) for team, roles in names.items()},
            model_path=str(model),
            **server_args,
        )

    def judge(self, team: str) -> EngineJudge:
        """The judge of one team, with an empty cache."""
        self.engine.flush()
        return EngineJudge(self.engine, self.names[team], self.end, self.top)

    def close(self) -> None:
        self.engine.close()


class EngineJudge:
    """Turns of one team's trajectories: a greedy request each, then one that is fed the reference."""

    def __init__(self, engine: SharingEngine, adapters: Mapping[str, str], end: int, top: int) -> None:
        self.engine, self.adapters, self.end, self.top = engine, adapters, end, top
        self.cached = 0
        self.prompt = 0

    def turns(self, asks: Sequence[Ask]) -> list[Said]:
        """See `Judge`."""
        loras = [self.adapters[ask.role] for ask in asks]
        # Each trajectory by itself: where two begin alike, one would read what the other's role has cached.
        salts = [f"trajectory {ask.key}" for ask in asks]
        greedy = [
            {"temperature": 0.0, "max_new_tokens": ask.longest, "stop_token_ids": [self.end]} for ask in asks
        ]
        answers = self.engine.engine.generate(
            input_ids=[ask.ids[: ask.start] for ask in asks],
            sampling_params=greedy,
            lora_path=loras,
            cache_salt=salts,
        )
        # The token before the reference is computed again, since its logits are wanted; all else is cached.
        scored = self.engine.engine.generate(
            input_ids=[[*ask.ids, self.end] for ask in asks],
            sampling_params={"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True},
            lora_path=loras,
            cache_salt=salts,
            return_logprob=True,
            logprob_start_len=[ask.start - 1 for ask in asks],
            top_logprobs_num=self.top,
        )
        out = []
        for ask, answer, score in zip(asks, answers, scored, strict=True):
            meta = score["meta_info"]
            self.cached += int(answer["meta_info"]["cached_tokens"])
            self.prompt += ask.start
            wanted = len(ask.ids) - ask.start + 1
            logprobs = [float(entry[0]) for entry in meta["input_token_logprobs"][-wanted:]]
            tops = [
                {int(entry[1]): float(entry[0]) for entry in place}
                for place in meta["input_top_logprobs"][-wanted:]
            ]
            ids = list(answer["output_ids"])
            out.append(Said(ids[: ids.index(self.end)] if self.end in ids else ids, logprobs, tops))
        return out
