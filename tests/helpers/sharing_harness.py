"""A scheduler whose adapters share a cache, stepped in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashagents_runtime.lora_sharing import sharing
from flashagents_runtime.lora_sharing.config import ENVIRONMENT, parse
from helpers.scheduler_harness import Request, SchedulerHarness


class SharingHarness(SchedulerHarness):
    """A `SchedulerHarness` with adapters.

    Args:
        scheme: `lora_sharing`; "none" is stock SGLang.
        adapters: folders by name.
        groups: `lora_groups`, None is one group of all adapters.
    """

    def __init__(
        self,
        model: Path,
        scheme: str,
        adapters: Mapping[str, Path],
        groups: Mapping[str, Sequence[str]] | None = None,
        **server_args: Any,
    ) -> None:
        from flashagents_runtime import cpu_shims

        cpu_shims.install()
        from sglang.srt.lora.lora_registry import LoRARef

        self._before = sharing.current
        config = parse(scheme, groups, adapters)
        os.environ.pop(ENVIRONMENT, None)
        if config is not None:
            config.put(os.environ)
        self.ids: dict[str | None, str | None] = {None: None}
        refs = [self._ref(LoRARef, name, path) for name, path in adapters.items()]
        try:
            super().__init__(
                model,
                **{
                    "enable_lora": True,
                    "lora_paths": refs,
                    "lora_backend": "torch_native",
                    "max_loras_per_batch": max(8, len(adapters) + 1),
                    **server_args,
                },
            )
        except BaseException:
            self._forget()
            raise

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        """A scheduler's process has one sharing for ever; the next harness here may want none."""
        os.environ.pop(ENVIRONMENT, None)
        sharing.current = self._before

    @property
    def manager(self) -> Any:
        """SGLang's LoRAManager."""
        return self.scheduler.tp_worker.model_runner.lora_manager

    @property
    def figures(self) -> dict[str, Any]:
        """What the handshake says of the sharing."""
        from flashagents_runtime import plugin

        found: dict[str, Any] = plugin.state(self.scheduler.tree_cache)["features"]["lora_sharing"]
        return found

    def own_rows(self) -> Any:
        """The low-rank rows, `[layers, slots, ...]`; None where there are none."""
        assert sharing.current is not None
        return sharing.current.rows

    def _ref(self, ref_class: Any, name: str, path: Path) -> Any:
        ref = ref_class(
            lora_id=f"{name:_<12}{len(self.ids):04}", lora_name=name, lora_path=str(path), pinned=False
        )
        self.ids[name] = ref.lora_id
        return ref

    def load(self, name: str, path: Path) -> Any:
        """Load an adapter at run time; SGLang's result."""
        from sglang.srt.lora.lora_registry import LoRARef

        before = self.ids.get(name)
        ref = self._ref(LoRARef, name, path)
        result = self.manager.load_lora_adapter(ref)
        if not result.success and before is not None:
            self.ids[name] = before
        return result

    def unload(self, name: str) -> Any:
        """Unload an adapter; SGLang's result."""
        return self.manager.unload_lora_adapter(self.manager.lora_refs[self.ids[name]])

    def request(self, rid: str, name: str | None, ids: Sequence[int], n: int = 8, **kwargs: Any) -> Request:
        """A request of adapter `name`, with log-probs from the first token unless told otherwise."""
        return Request(rid, ids, n, lora_id=self.ids[name], **{"logprob_start_len": 0, **kwargs})

    def ask(self, name: str | None, ids: Sequence[int], n: int = 8, **kwargs: Any) -> Answer:
        """Serve one request alone."""
        rid = f"ask-{len(self.reqs):04}"
        self.submit(self.request(rid, name, ids, n, **kwargs))
        self.run()
        return Answer(self.reqs[rid])

    def answer(self, rid: str) -> Answer:
        """The answer of a request that was submitted."""
        return Answer(self.reqs[rid])


class Answer:
    """What a request gave: output ids, log-probs of outputs and inputs, and tokens from the cache."""

    def __init__(self, req: Any) -> None:
        self.ids = list(req.output_ids)
        self.logprobs = list(req.logprob.output_token_logprobs_val) if req.return_logprob else []
        inputs = (req.logprob.input_token_logprobs_val or []) if req.return_logprob else []
        self.input_logprobs = [x for x in inputs if x is not None]
        self.cached = int(req.cached_tokens)
