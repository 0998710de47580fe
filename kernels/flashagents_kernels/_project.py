# mypy: ignore-errors
"""Device code of project_lr: `x A`, scaled and cast, straight to the tokens' slots."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_tokens"])
def project_lr_kernel(
    p_x, p_a, p_rows, p_slot, scale, n_tokens, s_xt, s_an, s_row,
    K: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """`BT` tokens by `BR` columns of the stacked projections; slots below 0 are skipped."""
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_n = tl.program_id(1) * BR + tl.arange(0, BR)
    o_k = tl.arange(0, BK)
    tok = o_t < n_tokens
    col = o_n < N
    slot = tl.load(p_slot + o_t, mask=tok, other=-1).to(tl.int64)
    b_acc = tl.zeros([BT, BR], tl.float32)
    o_x = o_t.to(tl.int64) * s_xt
    o_a = o_n.to(tl.int64) * s_an
    for i_k in range(0, K, BK):
        in_k = i_k + o_k < K
        b_x = tl.load(p_x + o_x[:, None] + (i_k + o_k)[None, :], mask=tok[:, None] & in_k[None, :], other=0.0)
        b_a = tl.load(p_a + o_a[:, None] + (i_k + o_k)[None, :], mask=col[:, None] & in_k[None, :], other=0.0)
        b_acc = tl.dot(b_x, tl.trans(b_a), b_acc)
    b_y = (b_acc * scale).to(p_rows.dtype.element_ty)
    tl.store(p_rows + (slot * s_row)[:, None] + o_n[None, :], b_y, mask=(slot >= 0)[:, None] & col[None, :])


@triton.jit
def project_lr_few_kernel(
    p_x, p_a, p_rows, p_slot, scale, s_xt, s_an, s_row,
    K: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One token by `BR` columns, summed without the matrix units: as many loads as possible are under way
    at once, for with few tokens the time is that of waiting for them."""
    i_t = tl.program_id(0)
    slot = tl.load(p_slot + i_t).to(tl.int64)
    if slot >= 0:
        o_n = tl.program_id(1) * BR + tl.arange(0, BR)
        o_k = tl.arange(0, BK)
        col = o_n < N
        p_t = p_x + i_t.to(tl.int64) * s_xt
        o_a = (o_n.to(tl.int64) * s_an)[:, None]
        b_acc = tl.zeros([BR, BK], tl.float32)
        for i_k in tl.static_range(0, K, BK):
            in_k = i_k + o_k < K
            b_x = tl.load(p_t + i_k + o_k, mask=in_k, other=0.0).to(tl.float32)
            b_a = tl.load(p_a + o_a + (i_k + o_k)[None, :], mask=col[:, None] & in_k[None, :], other=0.0)
            b_acc += b_a.to(tl.float32) * b_x[None, :]
        b_y = (tl.sum(b_acc, 1) * scale).to(p_rows.dtype.element_ty)
        tl.store(p_rows + slot * s_row + o_n, b_y, mask=col)
