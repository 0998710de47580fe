"""extend: ragged new tokens against a paged prefix and themselves, with an optional low-rank value term."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch

from .checks import (
    check_kv,
    check_lora,
    check_new,
    check_options,
    check_out,
    check_prefix,
    check_query,
    require_index,
)
from .configs import ExtendConfig, extend_config
from .core import Backend, LoraValues, padded, use_triton
from .decode import LOG2E
from .extend_plan import ExtendPlan
from .launches import Launches
from .plan import processors
from .reference import extend_reference
from .workspace import Workspace


@overload
def extend(
    q: Any, k_new: Any, v_new: Any, qo_indptr: Any, k_cache: Any = None, v_cache: Any = None,
    kv_indptr: Any = None, kv_indices: Any = None, *, max_new: int, lora: LoraValues | None = None,
    lora_new: Any = None, sm_scale: float | None = None, logit_cap: float = 0.0, window_left: int = -1,
    out: Any = None, return_lse: Literal[False] = False, workspace: Workspace | None = None,
    backend: Backend = "auto", config: ExtendConfig | None = None, plan: ExtendPlan | None = None,
) -> Any: ...  # fmt: skip
@overload
def extend(
    q: Any, k_new: Any, v_new: Any, qo_indptr: Any, k_cache: Any = None, v_cache: Any = None,
    kv_indptr: Any = None, kv_indices: Any = None, *, max_new: int, lora: LoraValues | None = None,
    lora_new: Any = None, sm_scale: float | None = None, logit_cap: float = 0.0, window_left: int = -1,
    out: Any = None, return_lse: Literal[True], workspace: Workspace | None = None,
    backend: Backend = "auto", config: ExtendConfig | None = None, plan: ExtendPlan | None = None,
) -> tuple[Any, Any]: ...  # fmt: skip
def extend(
    q: Any,
    k_new: Any,
    v_new: Any,
    qo_indptr: Any,
    k_cache: Any = None,
    v_cache: Any = None,
    kv_indptr: Any = None,
    kv_indices: Any = None,
    *,
    max_new: int,
    lora: LoraValues | None = None,
    lora_new: Any = None,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    window_left: int = -1,
    out: Any = None,
    return_lse: bool = False,
    workspace: Workspace | None = None,
    backend: Backend = "auto",
    config: ExtendConfig | None = None,
    plan: ExtendPlan | None = None,
) -> Any:
    """Causal attention of each request's new tokens over its cached prefix and its new tokens.

    With many new tokens the prefix is first gathered into contiguous scratch, where its V receives the
    low-rank part; with few, keys are read from their pages and the low-rank product has its own
    accumulator, as in decode. Both are exact; the cache is never written.

    Args:
        q: `[tokens, q_heads, head_dim]`, bf16 or fp16, the new tokens of all requests end to end.
        k_new: `[tokens, kv_heads, head_dim]`, same dtype; rows may be a view of a fused projection.
        v_new: like `k_new`; without any adapter's part.
        qo_indptr: `[batch + 1]` int32 or int64: request b has the tokens `qo_indptr[b]..qo_indptr[b+1]`.
        k_cache: `[slots, kv_heads, head_dim]`, or None when no request has a prefix.
        v_cache: like `k_cache`.
        kv_indptr: `[batch + 1]` int32 or int64: the prefix of request b is
            `kv_indices[kv_indptr[b]:kv_indptr[b+1]]`; it may be empty.
        kv_indices: int32 or int64 slots. Its length bounds the prefix tokens of the batch and chooses
            the launch, so slice it to what is used.
        max_new: at least the largest number of new tokens of a request; sets the grid.
        lora: the low-rank value term, or None for plain attention. `lora.rows` is read for the prefix.
        lora_new: `[tokens, r]` or `[tokens, sets, r]`: the new tokens' low-rank rows, with `lora`.
        sm_scale: factor of the scores, `head_dim ** -0.5` by default.
        logit_cap: soft cap of the scaled scores, `cap * tanh(s / cap)`; 0 is off.
        window_left: keys before its own position that a token sees; -1 is all of them. Positions count
            from the first token of the prefix that is given.
        out: `[tokens, q_heads, head_dim]` to write to. Tokens of no request are left alone.
        return_lse: also return the log-sum-exp.
        workspace: scratch for gathered prefixes and partial results (`Workspace.for_extend`); allocated
            by torch when missing.
        backend: "auto" takes Triton for CUDA tensors and torch elsewhere.
        config: a launch configuration, for tuning.
        plan: an `ExtendPlan` of this forward pass: after the first layer a call costs little on the
            host. With `return_lse` it is not used.

    Returns:
        The output like `q`, and with `return_lse` also `[tokens, q_heads]` fp32, base e.

    Raises:
        ShapeError, DtypeError, DeviceError, UnsupportedError, WorkspaceError: a bad argument, named.

    Example:
        >>> import torch
        >>> from flashagents_kernels.flash_lora_attention import extend
        >>> q, kv = torch.randn(5, 4, 64), torch.randn(5, 2, 64)
        >>> extend(q, kv, kv, torch.tensor([0, 2, 5]), max_new=3).shape
        torch.Size([5, 4, 64])
    """
    common: tuple[Any, ...] = ()
    tensors: dict[str, Any] = {}
    if plan is not None and not return_lse:
        common = (qo_indptr, kv_indptr, kv_indices, max_new, sm_scale, logit_cap, window_left, workspace)
        common += (backend, config, *((lora.adapter, lora.req_pool_indices) if lora is not None else ()))
        tensors = {"q": q, "k_new": k_new, "v_new": v_new, "k_cache": k_cache, "v_cache": v_cache}
        if lora is not None:
            tensors |= {"rows": lora.rows, "up": lora.up, "lora_new": lora_new}
        if out is None and isinstance(q, torch.Tensor):
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tensors["out"] = out
        if plan.repeat(common, tensors):
            return out
    tokens, q_heads, dim = check_query(q)
    kv_heads = check_kv("new", k_new, v_new, q)
    check_options(logit_cap, window_left)
    require_index("qo_indptr", qo_indptr)
    batch = int(qo_indptr.shape[0]) - 1
    prefix = check_prefix(k_cache, v_cache, kv_indptr, kv_indices, q, kv_heads, batch)
    if lora is not None:
        check_lora(lora, q, kv_heads, batch, k_cache.shape[0] if prefix else None)
    check_new(lora, lora_new, q, max_new)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    else:
        check_out(out, q)
    if not use_triton(backend, q):
        pages = (k_cache, v_cache, kv_indptr, kv_indices) if prefix else ()
        ref, lse = extend_reference(
            q, k_new, v_new, qo_indptr, *pages, lora=lora, lora_new=lora_new, sm_scale=sm_scale,
            logit_cap=logit_cap, window_left=window_left,
        )  # fmt: skip
        used = slice(int(qo_indptr[0]), int(qo_indptr[-1]))
        out[used] = ref[used].to(out.dtype)
        return (out, lse) if return_lse else out
    lse = torch.empty((tokens, q_heads), dtype=torch.float32, device=q.device) if return_lse else None
    if tokens and batch:
        count = int(kv_indices.shape[0]) if prefix else 0
        if config is None:
            config = extend_config(
                q_heads, kv_heads, dim, lora.rank if lora is not None else 0, batch, max_new, count,
                processors(q.device), int(k_cache.shape[0]) if prefix else 0,
            )  # fmt: skip
        scale = (1 / math.sqrt(dim) if sm_scale is None else sm_scale) * LOG2E
        call = _Call(q, k_new, v_new, qo_indptr, lora, lora_new, batch, max_new, out, lse, config)
        call.options = (scale, logit_cap * LOG2E, window_left)
        call.workspace = workspace
        if prefix:
            call.pages = (k_cache, v_cache, kv_indptr, kv_indices)
        if tensors and plan is not None:
            call.launches = plan.record(tensors)
        call.launch()
        if call.launches is not None and plan is not None:
            plan.keep(common, call.launches)
    return (out, lse) if return_lse else out


class _Call:
    """One launch of extend: the arguments, checked, and what is derived from them."""

    def __init__(
        self, q: Any, k_new: Any, v_new: Any, qo_indptr: Any, lora: LoraValues | None, lora_new: Any,
        batch: int, max_new: int, out: Any, lse: Any, config: ExtendConfig,
    ) -> None:  # fmt: skip
        self.q, self.k_new, self.v_new, self.qo_indptr = q, k_new, v_new, qo_indptr
        self.lora, self.lora_new = lora, lora_new
        self.batch, self.max_new, self.out, self.lse, self.config = batch, max_new, out, lse, config
        self.options: tuple[float, float, int] = (1.0, 0.0, -1)
        self.pages: tuple[Any, Any, Any, Any] | None = None
        self.workspace: Workspace | None = None
        self.launches: Launches | None = None
        self.rank = lora.rank if lora is not None else 16
        self.rank_p = padded(self.rank)

    def _scratch(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if self.workspace is not None:
            return self.workspace.take(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.q.device)

    def _start(self, kernel: Any, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        if self.launches is not None:
            self.launches.start(kernel, grid, *args, **kwargs)
        else:
            kernel[grid](*args, **kwargs)

    def _lora_args(self) -> dict[str, Any]:
        """Adapter tables, up-projection and strides, with stand-ins where there is no LoRA."""
        lora = self.lora
        if lora is None:
            args = {
                "p_up": self.v_new,
                "p_adapter": self.qo_indptr,
                "p_req": self.qo_indptr,
                "INDIRECT": False,
            }
            return args | dict.fromkeys(("s_ua", "s_uh", "s_ur", "S_LN", "S_SET", "S_LNN", "S_SETN"), 0)
        req, new = lora.req_pool_indices, self.lora_new
        return {
            "p_up": lora.up, "p_adapter": lora.adapter, "p_req": req if req is not None else lora.adapter,
            "INDIRECT": req is not None,
            "s_ua": lora.up.stride(0), "s_uh": lora.up.stride(1), "s_ur": lora.up.stride(2),
            "S_LN": lora.rows.stride(0), "S_SET": lora.set_stride,
            "S_LNN": new.stride(0), "S_SETN": new.stride(1) if new.dim() == 3 else 0,
        }  # fmt: skip

    def prepare(self) -> None:
        """Gather the paged prefix to contiguous rows, and add the low-rank part to V on the way.

        That costs rank x head_dim for a key once, the fused product rank for a key and each query head
        and token: with many new tokens it is the cheaper way. Afterwards there is no LoRA left to do.
        """
        from ._gather import gather_kernel

        k, v, kv_indptr, kv_indices = self.pages or (self.k_new, self.v_new, self.qo_indptr, self.qo_indptr)
        _, heads, dim = self.k_new.shape
        count = int(kv_indices.shape[0]) if self.pages else 0
        k_out, v_out = k, v
        if self.pages:
            k_out = self._scratch((count, heads, dim), k.dtype)
            v_out = self._scratch((count, heads, dim), k.dtype)
        lora, v_new = self.lora, self.v_new
        if lora is not None:
            v_new = self._scratch(tuple(self.v_new.shape), self.v_new.dtype)
        block = 64
        tiles = -(-max(count, self.max_new) // block)
        programs = max(1, min(tiles, 2048 // max(1, self.batch * heads // 4)))
        self._start(
            gather_kernel, (programs, heads, self.batch),
            k, v, lora.rows if lora is not None else v, kv_indptr, kv_indices, self.v_new,
            self.lora_new if lora is not None else v, self.qo_indptr,
            p_ko=k_out, p_vo=v_out, p_no=v_new, s_kn=k.stride(0), s_kh=k.stride(1), s_vn=v.stride(0),
            s_vh=v.stride(1), s_nt=self.v_new.stride(0), s_nh=self.v_new.stride(1),
            HKV=heads, D=dim, DP=padded(dim), R=self.rank, RP=self.rank_p, BT=block,
            PREFIX=self.pages is not None, FOLD=lora is not None, num_warps=4, **self._lora_args(),
        )  # fmt: skip
        self.v_new, self.lora, self.lora_new = v_new, None, None
        if self.pages:
            self.pages = (k_out, v_out, kv_indptr, kv_indices)

    def _descriptors(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Descriptors of contiguous K and V rows for the bulk copy engine, where their layout permits."""
        dim = k.shape[2]
        if not self.config.tma or padded(dim) != dim or not _tma_rows(k, dim) or not _tma_rows(v, dim):
            return None, None
        from triton.tools.tensor_descriptor import TensorDescriptor

        shape, tile = [k.shape[0], k.shape[1] * dim], [self.config.block_n, dim]
        return tuple(TensorDescriptor(t, shape, [t.stride(0), 1], tile) for t in (k, v))

    def _describe_rows(self) -> Any:
        """A descriptor of the new tokens' low-rank rows, or None.

        Rows narrower than a tile are read with the start of the next row behind them: those columns are
        cleared before the up-projection. The last row is left out for that, which no unmasked tile reads.
        """
        rows = self.lora_new
        if self.lora is None or rows.stride(0) % 8 or rows.data_ptr() % 16:
            return None
        columns, count = self.rank, rows.shape[0]
        if rows.dim() == 3:
            if rows.stride(1) != self.rank:
                return None
            columns *= rows.shape[1]
        if columns < self.rank_p:
            if rows.dim() == 3 or rows.stride(0) * 2 < self.rank_p or count < 2:
                return None
            columns, count = self.rank_p, count - 1
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(
            rows, [count, columns], [rows.stride(0), 1], [self.config.block_n, self.rank_p]
        )

    def launch(self) -> None:
        from ._extend import extend_kernel, extend_merge_kernel

        q, config, out = self.q, self.config, self.out
        tokens, q_heads, dim = q.shape
        scale, cap, window = self.options
        if self.workspace is not None:
            self.workspace.reset()
        mode = 1 if self.pages is not None else 0
        if config.gather and (self.pages is not None or self.lora is not None):
            self.prepare()
            mode *= 2
        lora, k_new, v_new = self.lora, self.k_new, self.v_new
        k_desc = v_desc = None
        if mode == 2 or self.max_new > config.block_m:  # else no tile of them is seen by a whole block
            k_desc, v_desc = self._descriptors(k_new, v_new)
        w_desc = self._describe_rows() if k_desc is not None else None
        kp, vp, kv_indptr, kv_indices = self.pages or (k_new, v_new, self.qo_indptr, self.qo_indptr)
        kp_desc, vp_desc = self._descriptors(kp, vp) if mode == 2 else (None, None)
        splits, target, target_lse = config.splits, out, self.lse
        if splits > 1:
            target = self._scratch((splits * tokens, q_heads, dim), torch.float32)
            target_lse = self._scratch((splits * tokens, q_heads), torch.float32)
        kv_heads = k_new.shape[1]
        packed = q_heads // kv_heads if config.pack else 1
        grid = (q_heads // packed, -(-self.max_new * packed // config.block_m), self.batch * splits)
        self._start(
            extend_kernel, grid,
            q, k_new, v_new, self.lora_new if lora is not None else v_new, k_desc, v_desc, w_desc,
            kp, vp, lora.rows if lora is not None else vp, kp_desc, vp_desc,
            p_qptr=self.qo_indptr, p_indptr=kv_indptr, p_idx=kv_indices, p_out=target,
            p_lse=target_lse if target_lse is not None else out,
            qk_scale=scale, cap=cap, window=window, n_tokens=tokens,
            s_qt=q.stride(0), s_qh=q.stride(1), s_knn=k_new.stride(0), s_knh=k_new.stride(1),
            s_vnn=v_new.stride(0), s_vnh=v_new.stride(1), s_kpn=kp.stride(0), s_kph=kp.stride(1),
            s_vpn=vp.stride(0), s_vph=vp.stride(1), s_ot=out.stride(0), s_oh=out.stride(1),
            G=q_heads // kv_heads, HQ=q_heads, D=dim, DP=padded(dim), R=self.rank, RP=self.rank_p,
            BM=config.block_m, BN=config.block_n, BNM=min(config.block_n, 64), SPLITS=splits, PREFIX=mode,
            TMA=k_desc is not None, LN_TMA=w_desc is not None, CAP=cap > 0, WINDOW=window >= 0,
            LORA=lora is not None, LSE=self.lse is not None, STAGES=config.masked_stages,
            PACK=packed > 1, num_warps=config.warps, num_stages=config.stages, **self._lora_args(),
        )  # fmt: skip
        if splits > 1:
            rows = 16
            self._start(
                extend_merge_kernel, (-(-tokens * q_heads // rows),),
                target, target_lse, out, self.lse if self.lse is not None else target_lse, tokens,
                out.stride(0), out.stride(1), HQ=q_heads, D=dim, DP=padded(dim), BT=rows, SPLITS=splits,
                LSE=self.lse is not None, num_warps=4,
            )  # fmt: skip


def _tma_rows(t: Any, dim: int) -> bool:
    """Whether `[n, heads, dim]` is a matrix `[n, heads * dim]` that the bulk copy engine reads."""
    heads_dense = t.shape[1] == 1 or t.stride(1) == dim
    return bool(heads_dense and t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0)
