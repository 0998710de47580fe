"""extend: ragged new tokens against a paged prefix and themselves, with an optional low-rank value term."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch

from .checks import (
    check_kv,
    check_lora,
    check_options,
    check_out,
    check_query,
    check_rows_new,
    require_index,
)
from .configs import ExtendConfig, extend_config
from .core import Backend, LoraValues, padded, use_triton
from .decode import LOG2E
from .errors import ShapeError
from .plan import processors
from .reference import extend_reference
from .workspace import Workspace


@overload
def extend(
    q: Any, k_new: Any, v_new: Any, qo_indptr: Any, k_cache: Any = None, v_cache: Any = None,
    kv_indptr: Any = None, kv_indices: Any = None, *, max_new: int, lora: LoraValues | None = None,
    lora_new: Any = None, sm_scale: float | None = None, logit_cap: float = 0.0, window_left: int = -1,
    out: Any = None, return_lse: Literal[False] = False, workspace: Workspace | None = None,
    backend: Backend = "auto", config: ExtendConfig | None = None,
) -> Any: ...  # fmt: skip
@overload
def extend(
    q: Any, k_new: Any, v_new: Any, qo_indptr: Any, k_cache: Any = None, v_cache: Any = None,
    kv_indptr: Any = None, kv_indices: Any = None, *, max_new: int, lora: LoraValues | None = None,
    lora_new: Any = None, sm_scale: float | None = None, logit_cap: float = 0.0, window_left: int = -1,
    out: Any = None, return_lse: Literal[True], workspace: Workspace | None = None,
    backend: Backend = "auto", config: ExtendConfig | None = None,
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
) -> Any:
    """Causal attention of each request's new tokens over its cached prefix and its new tokens.

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
    tokens, q_heads, dim = check_query(q)
    kv_heads = check_kv("new", k_new, v_new, q)
    check_options(logit_cap, window_left)
    require_index("qo_indptr", qo_indptr)
    batch = int(qo_indptr.shape[0]) - 1
    prefix = kv_indices is not None and kv_indices.shape[0] > 0
    if prefix:
        if k_cache is None or v_cache is None or kv_indptr is None:
            raise ShapeError("a prefix needs k_cache, v_cache, kv_indptr and kv_indices")
        if check_kv("cache", k_cache, v_cache, q) != kv_heads:
            raise ShapeError(f"k_cache has {k_cache.shape[1]} KV heads and k_new {kv_heads}")
        require_index("kv_indptr", kv_indptr, batch + 1)
        require_index("kv_indices", kv_indices)
    if lora is not None:
        check_lora(lora, q, kv_heads, batch, k_cache.shape[0] if prefix else None)
        check_rows_new(lora, lora_new, q)
    if max_new < 1 and tokens:
        raise ShapeError(f"max_new must be at least 1, not {max_new}")
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
                processors(q.device),
            )  # fmt: skip
        scale = (1 / math.sqrt(dim) if sm_scale is None else sm_scale) * LOG2E
        call = _Call(q, k_new, v_new, qo_indptr, lora, lora_new, batch, max_new, out, lse, config)
        call.options = (scale, logit_cap * LOG2E, window_left)
        call.workspace = workspace
        if prefix:
            call.pages = (k_cache, v_cache, kv_indptr, kv_indices)
        call.launch()
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
        self.rank = lora.rank if lora is not None else 16
        self.rank_p = padded(self.rank)

    def _scratch(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if self.workspace is not None:
            return self.workspace.take(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.q.device)

    def _adapter(self) -> tuple[Any, Any]:
        if self.lora is None:
            return self.qo_indptr, self.qo_indptr
        req = self.lora.req_pool_indices
        return self.lora.adapter, req if req is not None else self.lora.adapter

    def gather(self) -> tuple[Any, Any, Any]:
        """Copy the paged prefix to contiguous rows; `(k, v, low-rank rows)`."""
        from ._gather import gather_kernel

        assert self.pages is not None
        k, v, kv_indptr, kv_indices = self.pages
        count, (_, heads, dim) = int(kv_indices.shape[0]), k.shape
        k_out = self._scratch((count, heads, dim), k.dtype)
        v_out = self._scratch((count, heads, dim), k.dtype)
        lora = self.lora
        w_out = self._scratch((count, self.rank_p), k.dtype) if lora is not None else v_out
        rows = lora.rows if lora is not None else v
        adapter, req = self._adapter()
        block = 64
        programs = max(1, min(-(-count // block), 1024 // max(1, self.batch * heads // 8)))
        gather_kernel[(programs, heads, self.batch)](
            k, v, rows, kv_indptr, kv_indices, adapter, req, k_out, v_out, w_out, self.batch,
            lora.set_stride if lora is not None else 0,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), rows.stride(0),
            HKV=heads, D=dim, DP=padded(dim), R=self.rank, RP=self.rank_p, BT=block,
            LORA=lora is not None, INDIRECT=lora is not None and lora.req_pool_indices is not None,
            num_warps=4,
        )  # fmt: skip
        return k_out, v_out, w_out

    def _descriptors(self, k: Any, v: Any, rows: Any) -> tuple[bool, bool, tuple[Any, Any, Any]]:
        """TMA descriptors of contiguous K, V and low-rank rows, where their layout permits."""
        _, _, dim = k.shape
        block = self.config.block_n
        if not self.config.tma or padded(dim) != dim or not _tma_rows(k, dim) or not _tma_rows(v, dim):
            return False, False, (None, None, None)
        from triton.tools.tensor_descriptor import TensorDescriptor

        def describe(t: Any, width: int, columns: int) -> Any:
            return TensorDescriptor(t, [t.shape[0], columns], [t.stride(0), 1], [block, width])

        width = k.shape[1] * dim
        low, low_ok = None, False
        if self.lora is not None:
            low = self._describe_rows(rows)
            low_ok = low is not None
        return True, low_ok, (describe(k, dim, width), describe(v, dim, width), low)

    def _describe_rows(self, rows: Any) -> Any:
        """A descriptor of low-rank rows, or None.

        Rows narrower than a tile are read with the start of the next row behind them: those columns are
        cleared before the up-projection. The last row is left out for that, which no unmasked tile reads.
        """
        from triton.tools.tensor_descriptor import TensorDescriptor

        stride = rows.stride(0)
        if stride % 8 or rows.data_ptr() % 16:
            return None
        columns, count = rows.shape[-1] * (rows.shape[1] if rows.dim() == 3 else 1), rows.shape[0]
        if columns < self.rank_p:
            if rows.dim() == 3 or stride * 2 < self.rank_p or count < 2:
                return None
            columns, count = self.rank_p, count - 1
        return TensorDescriptor(rows, [count, columns], [stride, 1], [self.config.block_n, self.rank_p])

    def launch(self) -> None:
        from ._extend import extend_kernel, extend_merge_kernel

        q, lora, config = self.q, self.lora, self.config
        tokens, q_heads, dim = q.shape
        kv_heads = self.k_new.shape[1]
        scale, cap, window = self.options
        if self.workspace is not None:
            self.workspace.reset()
        tma, low_tma, new_desc = self._descriptors(self.k_new, self.v_new, self.lora_new)
        mode, kp, vp, wp = 0, self.k_new, self.v_new, self.lora_new
        kv_indptr, kv_indices = self.qo_indptr, self.qo_indptr
        pre_desc: tuple[Any, Any, Any] = (None, None, None)
        if self.pages is not None:
            mode, (kp, vp, kv_indptr, kv_indices) = 1, self.pages
            wp = lora.rows if lora is not None else vp
            if config.gather and tma:
                mode = 2
                kp, vp, wp = self.gather()
                _, _, pre_desc = self._descriptors(kp, vp, wp)
        splits = config.splits
        target, target_lse = self.out, self.lse
        if splits > 1:
            target = self._scratch((splits * tokens, q_heads, dim), torch.float32)
            target_lse = self._scratch((splits * tokens, q_heads), torch.float32)
        low_new = self.lora_new if lora is not None else self.v_new
        low_pre = wp if lora is not None else vp
        up = lora.up if lora is not None else self.v_new
        up_strides = (up.stride(0), up.stride(1), up.stride(2)) if lora is not None else (0, 0, 0)
        adapter, req = self._adapter()
        out = self.out
        blocks = -(-self.max_new // config.block_m)
        extend_kernel[(q_heads, blocks, self.batch * splits)](
            q, self.k_new, self.v_new, low_new, *new_desc, kp, vp, low_pre, *pre_desc,
            up, adapter, req, self.qo_indptr, kv_indptr, kv_indices,
            target, target_lse if target_lse is not None else out,
            scale, cap, window, tokens, lora.set_stride if lora is not None else 0,
            q.stride(0), q.stride(1), self.k_new.stride(0), self.k_new.stride(1), self.v_new.stride(0),
            self.v_new.stride(1), low_new.stride(0), kp.stride(0), kp.stride(1), vp.stride(0), vp.stride(1),
            low_pre.stride(0), *up_strides, out.stride(0), out.stride(1),
            G=q_heads // kv_heads, HQ=q_heads, D=dim, DP=padded(dim), R=self.rank, RP=self.rank_p,
            BM=config.block_m, BN=config.block_n, BNM=min(config.block_n, 64), SPLITS=splits, PREFIX=mode,
            TMA=tma, LN_TMA=low_tma, CAP=cap > 0, WINDOW=window >= 0, LORA=lora is not None,
            LSE=self.lse is not None, INDIRECT=lora is not None and lora.req_pool_indices is not None,
            STAGES=config.masked_stages,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
        if splits > 1:
            rows = 16
            extend_merge_kernel[(-(-tokens * q_heads // rows),)](
                target, target_lse, out, self.lse if self.lse is not None else target_lse, tokens,
                out.stride(0), out.stride(1), HQ=q_heads, D=dim, DP=padded(dim), BT=rows, SPLITS=splits,
                LSE=self.lse is not None, num_warps=4,
            )  # fmt: skip


def _tma_rows(t: Any, dim: int) -> bool:
    """Whether `[n, heads, dim]` is a matrix `[n, heads * dim]` that the bulk copy engine reads."""
    heads_dense = t.shape[1] == 1 or t.stride(1) == dim
    return bool(heads_dense and t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0)
