"""The attention backend that reads the rows: Flash-LoRA-Attention inside SGLang.

One class for both devices: the operators of `flashagents_kernels` run as Triton kernels on a GPU and as
their torch references on a CPU. Like SGLang's triton backend each layer first writes K and V of the new
tokens to the pool and then attends; the rows have been written by then, by the QKV layer. Large prefill
passes are left to FlashAttention 3 where it is there (`contiguous.py`).

CUDA graphs: everything that a captured kernel reads has a fixed place: the rows, the projections, the
table of member numbers by `req_pool_idx`, page tables and the decode plan. They are refreshed before a
replay in `init_forward_metadata_out_graph`; a padding row reads slot 0 and is thrown away. Member numbers
are written when a request is prefilled and stay until its row of the table is given to another.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from flashagents_kernels.core import LoraValues
from flashagents_kernels.decode import decode
from flashagents_kernels.extend import extend
from flashagents_kernels.extend_plan import ExtendPlan
from flashagents_kernels.join import join
from flashagents_kernels.plan import DecodePlan
from flashagents_kernels.project import project_lr

from .. import sglang_seams as seams
from ..errors import SeamError
from . import contiguous, sharing
from .catch_up_pass import CatchUp
from .support import attention_refusal

NAME = "flashagents"
"""The backend's name on a GPU. On a CPU it stands in for ``torch_native``: SGLang takes every other name
for one that launches Triton kernels."""

_BACKEND = "sglang.srt.layers.attention.attention_registry"


@dataclass
class Pages:
    """Page tables of a pass: request b reads `indices[indptr[b]:indptr[b + 1]]`."""

    indptr: Any
    indices: Any
    new_indptr: Any = None
    """In extend: where each request's new tokens begin."""
    max_new: int = 0
    plan: ExtendPlan | None = None
    """In extend: what its layers have in common."""
    joined: Joined | None = None
    """Of a large prefill pass, where FlashAttention 3 attends."""


@dataclass
class Joined:
    """Where prefix and new tokens of a pass's requests lie end to end."""

    tokens: int
    """New ones of all requests: a graph's tensors may have more rows."""
    indptr: Any
    longest: int
    rows: tuple[Any, Any]
    """K and V, used again by each layer."""


def register() -> None:
    """Make the backend known to SGLang in this process; idempotent."""
    register_backend = seams.symbol(f"{_BACKEND}.register_attention_backend")
    backends = seams.symbol(f"{_BACKEND}.ATTENTION_BACKENDS")
    if NAME not in backends:
        register_backend(NAME)(build)
        seams.symbol("sglang.srt.server_args.add_attention_backend_choices")([NAME])
        stock = backends["torch_native"]
        register_backend("torch_native")(functools.partial(_build_on_cpu, stock))


def _build_on_cpu(stock: Any, runner: Any) -> Any:
    state = sharing.current
    keeps_rows = state is not None and state.config.keeps_rows
    return build(runner) if keeps_rows and str(runner.device) == "cpu" else stock(runner)


def build(runner: Any) -> Any:
    """The factory behind the name. Raises SeamError where it cannot serve what `runner` runs."""
    state = sharing.current
    if state is None or not state.config.keeps_rows:
        raise SeamError(
            f"attention backend {NAME!r} serves lora_sharing; choose another one, or set lora_sharing"
        )
    reason = attention_refusal(runner)
    if reason is not None:
        raise SeamError(f"lora_sharing={state.config.scheme!r} cannot run here: {reason}")
    return backend_class()(runner, state)


@functools.cache
def backend_class() -> Any:
    """`SharedAttention`, a subclass of SGLang's AttentionBackend; imports SGLang at the first call."""
    base = seams.symbol("sglang.srt.layers.attention.base_attn_backend.AttentionBackend")
    write_loc = seams.symbol("sglang.srt.mem_cache.memory_pool.KVWriteLoc")

    class SharedAttention(base):  # type: ignore[misc, valid-type]  # SGLang is untyped here
        """Attention over V_base and the low-rank rows, for one scheduler's `Sharing`."""

        extend_dummy_seqs_capped_by_req_pool = True  # the table of member numbers has a row for each

        def __init__(self, runner: Any, state: sharing.Sharing) -> None:
            super().__init__()
            self.state = state
            self.device = runner.device
            self.req_to_token_pool = runner.req_to_token_pool
            self.token_to_kv_pool = self.pool = runner.token_to_kv_pool
            self.req_to_token = runner.req_to_token_pool.req_to_token
            self.max_context_len = int(runner.model_config.context_len)
            state.open_rows(self.pool, self.req_to_token.shape[0])
            state.backend = self
            assert state.projections is not None and state.heads is not None
            self.projections, self.rows, self.numbers = state.projections, state.rows, state.numbers
            heads = state.heads
            self.group = heads.q // heads.kv
            self.plan = DecodePlan(
                self.req_to_token.shape[0], heads.q, heads.kv, heads.size, self.projections.rank,
                device=self.rows.device,
            )  # fmt: skip
            self.pages: Pages | None = None
            self.loc: Any = None
            """Slots of the pass's tokens: where the QKV layers write their rows."""
            self.has_members = True
            """A member is in the batch; without one attention skips the low-rank term."""
            self.catch_up = CatchUp(state, runner) if state.config.scheme == "base" else None
            self.contiguous = contiguous.kernel(self.device, heads.size)
            self.figures = {"extend_low_rank": 0, "decode_low_rank": 0, "joined": 0}
            """Calls of attention with the low-rank term, and of joined passes with it or without; replays
            of captured graphs are not counted."""

        # ---- what LoRA tells

        def note_members(self, batch: Any) -> None:
            """Which member each request of `batch` (ForwardBatch) is; called before its metadata."""
            import torch

            numbers = [self.state.members.number(lora_id) for lora_id in batch.lora_ids]
            self.has_members = any(numbers)
            if self.catch_up is not None:
                self.catch_up.note(numbers)
            if batch.forward_mode.is_extend():
                noted = torch.tensor(numbers, dtype=torch.int32)
                if self.numbers.is_cuda:
                    noted = noted.pin_memory().to(self.numbers.device, non_blocking=True)
                self.numbers[batch.req_pool_indices[: len(numbers)]] = noted

        def write_rows(self, layer: int, x: Any) -> None:
            """Rows of the pass's tokens; `x` `[tokens, hidden]` is what the QKV projection is given."""
            rows, loc = self.rows[layer], self.loc
            if self.catch_up is not None and self.catch_up.in_extend:
                rows, loc = self.catch_up.scratch, self.catch_up.places[: x.shape[0]]
            project_lr(x, self.projections.down[layer], rows, loc)

        # ---- metadata

        def init_forward_metadata(self, forward_batch: Any) -> None:
            self.loc = forward_batch.out_cache_loc
            if forward_batch.forward_mode.is_decode_or_idle():
                self.pages = self._decode_pages(forward_batch, None)
            else:
                self.pages = self._extend_pages(forward_batch)
            if self.catch_up is not None:
                self.catch_up.begin(forward_batch)

        def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
            import torch

            self.graph_indptr = torch.zeros(max_bs + 1, dtype=torch.int32, device=self.device)
            self.graph_indices = torch.zeros(
                max_bs * self.max_context_len, dtype=torch.int32, device=self.device
            )

        def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
            if not forward_batch.forward_mode.is_decode_or_idle():
                raise SeamError(f"no CUDA graph of mode {forward_batch.forward_mode.name} can be captured")
            pages = self._decode_pages(forward_batch, self.graph_indices)
            if in_capture:
                self.pages, self.loc, self.has_members = pages, forward_batch.out_cache_loc, True
                if self.catch_up is not None:
                    self.catch_up.in_extend = False

        def get_cuda_graph_seq_len_fill_value(self) -> int:
            return 1

        def _decode_pages(self, batch: Any, indices: Any) -> Pages:
            """Page tables of a decode batch, in `indices` or in a new tensor; the plan is made for them."""
            import torch

            bs = int(batch.batch_size)
            indptr = torch.zeros(bs + 1, dtype=torch.int32, device=self.device)
            if indices is not None:
                indptr = self.graph_indptr[: bs + 1]
            torch.cumsum(batch.seq_lens[:bs], 0, dtype=torch.int32, out=indptr[1:])
            if indices is None:
                total = batch.seq_lens_sum
                total = bs * self.max_context_len if total is None else int(total)
                indices = torch.empty(total, dtype=torch.int32, device=self.device)
            self._fill(indices, batch.req_pool_indices[:bs], batch.seq_lens[:bs], indptr)
            self.plan.update(indptr)
            return Pages(indptr, indices)

        def _extend_pages(self, batch: Any) -> Pages:
            import torch

            bs = int(batch.batch_size)
            indptr = torch.zeros(2, bs + 1, dtype=torch.int32, device=self.device)
            torch.cumsum(batch.extend_prefix_lens[:bs], 0, dtype=torch.int32, out=indptr[0, 1:])
            torch.cumsum(batch.extend_seq_lens[:bs], 0, dtype=torch.int32, out=indptr[1, 1:])
            total = sum(batch.extend_prefix_lens_cpu)
            indices = torch.empty(total, dtype=torch.int32, device=self.device)
            if total:
                self._fill(indices, batch.req_pool_indices[:bs], batch.extend_prefix_lens[:bs], indptr[0])
            longest = max(batch.extend_seq_lens_cpu, default=0)
            pages = Pages(indptr[0], indices, indptr[1], longest, ExtendPlan())
            keys = self.pool.get_key_buffer(0)
            if self.contiguous is not None and contiguous.pays(longest, self.group, total, keys):
                lens = zip(batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu, strict=True)
                both = [prefix + new for prefix, new in lens]
                room = keys.new_empty((2, sum(both), *keys.shape[1:]))
                tokens = sum(batch.extend_seq_lens_cpu)
                pages.joined = Joined(tokens, indptr[0] + indptr[1], max(both), (room[0], room[1]))
            return pages

        def _fill(self, indices: Any, requests: Any, lens: Any, indptr: Any) -> None:
            """The first `lens` slots of each request, end to end."""
            if not len(requests):  # an idle pass
                return
            if indices.is_cuda:
                copy = seams.symbol(
                    "sglang.kernels.ops.kvcache.kv_indices.create_flashinfer_kv_indices_triton"
                )
                copy[(len(requests),)](
                    self.req_to_token, requests, lens, indptr, None, indices, self.req_to_token.stride(0)
                )
                return
            ends = indptr.tolist()
            for i, request in enumerate(requests.tolist()):
                indices[ends[i] : ends[i + 1]] = self.req_to_token[request, : ends[i + 1] - ends[i]]

        # ---- attention

        def forward_extend(
            self,
            q: Any,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
            **kw: Any,
        ) -> Any:
            pages = self._begin(layer, kw)
            q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
            k, v = (t.view(-1, layer.tp_k_head_num, layer.qk_head_dim) for t in (k, v))
            loc = forward_batch.out_cache_loc
            catch_up = self.catch_up
            if save_kv_cache:
                keep = loc if catch_up is None else catch_up.kv_loc(loc)
                self.pool.set_kv_buffer(layer, write_loc(keep), k, v)
            if catch_up is not None:
                k, v = catch_up.held(k, v, loc, *self._cache(layer))
            lora = new_rows = None
            if self.has_members:
                lora = self._lora(layer, forward_batch)
                rows = self.rows[layer.layer_id]
                new_rows = rows.index_select(0, loc) if catch_up is None else catch_up.keep_rows(rows, loc)
                self.figures["extend_low_rank"] += 1
            out = getattr(forward_batch, "_attn_output", None)
            out = out.view(q.shape) if out is not None else q.new_empty(q.shape)
            prefix: tuple[Any, ...] = ()
            if pages.indices.shape[0]:
                prefix = (*self._cache(layer), pages.indptr, pages.indices)
            if pages.joined is not None:
                self._attend_joined(pages, layer, q, k, v, prefix, lora, new_rows, out)
                return out.view(out.shape[0], -1)
            extend(
                q, k, v, pages.new_indptr, *prefix, max_new=pages.max_new, lora=lora, lora_new=new_rows,
                sm_scale=layer.scaling, logit_cap=layer.logit_cap, out=out, plan=pages.plan,
            )  # fmt: skip
            return out.view(out.shape[0], -1)

        def forward_decode(
            self,
            q: Any,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
            **kw: Any,
        ) -> Any:
            pages = self._begin(layer, kw)
            q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
            if save_kv_cache:
                k, v = (t.view(-1, layer.tp_k_head_num, layer.qk_head_dim) for t in (k, v))
                self.pool.set_kv_buffer(layer, write_loc(forward_batch.out_cache_loc), k, v)
            lora = None
            if self.has_members:
                lora = self._lora(layer, forward_batch)
                self.figures["decode_low_rank"] += 1
            out = q.new_empty(q.shape)
            decode(
                q, *self._cache(layer), pages.indptr, pages.indices, lora=lora, sm_scale=layer.scaling,
                logit_cap=layer.logit_cap, out=out, plan=self.plan,
            )  # fmt: skip
            return out.view(out.shape[0], -1)

        def _attend_joined(
            self, pages: Pages, layer: Any, q: Any, k: Any, v: Any, prefix: tuple[Any, ...], lora: Any,
            new_rows: Any, out: Any,
        ) -> None:  # fmt: skip
            joined = pages.joined
            assert joined is not None and self.contiguous is not None
            n = joined.tokens
            join(
                k[:n], v[:n], pages.new_indptr, *prefix, max_new=pages.max_new, lora=lora,
                lora_new=new_rows[:n] if new_rows is not None else None, out=joined.rows,
            )  # fmt: skip
            self.contiguous(
                q[:n], *joined.rows, cu_seqlens_q=pages.new_indptr, cu_seqlens_k=joined.indptr,
                max_seqlen_q=pages.max_new, max_seqlen_k=joined.longest, softmax_scale=layer.scaling,
                causal=True, softcap=layer.logit_cap, out=out[:n],
            )  # fmt: skip
            self.figures["joined"] += 1

        def _begin(self, layer: Any, extra: dict[str, Any]) -> Pages:
            if extra:
                raise SeamError(f"lora_sharing: attention with {', '.join(sorted(extra))} is not supported")
            if layer.is_cross_attention or layer.sliding_window_size > -1:
                raise SeamError("lora_sharing: cross attention and sliding windows are not supported")
            assert self.pages is not None
            return self.pages

        def _cache(self, layer: Any) -> tuple[Any, Any]:
            return self.pool.get_key_buffer(layer.layer_id), self.pool.get_value_buffer(layer.layer_id)

        def _lora(self, layer: Any, batch: Any) -> Any:
            i = layer.layer_id
            return LoraValues(self.rows[i], self.projections.up[i], self.numbers, batch.req_pool_indices)

        def support_triton(self) -> bool:
            return str(self.device) != "cpu"

    return SharedAttention


__all__ = ["NAME", "backend_class", "build", "register"]
