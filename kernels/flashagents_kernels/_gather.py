# mypy: ignore-errors
# ruff: noqa: SIM102, SIM108
"""Device code that moves cache rows: gather a paged prefix, and rebuild V for the baseline."""

import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    p_k, p_v, p_lr, p_indptr, p_idx, p_adapter, p_req, p_ko, p_vo, p_lo, batch, set_stride,
    s_kn, s_kh, s_vn, s_vh, s_ln,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    BT: tl.constexpr, LORA: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """Copy K and V rows of `BT` tokens of one request and KV head; head 0 also copies the LR rows."""
    i_h = tl.program_id(1)
    i_b = tl.program_id(2)
    beg = tl.load(p_indptr + i_b).to(tl.int64)
    n = (tl.load(p_indptr + i_b + 1).to(tl.int64) - beg).to(tl.int32)
    o_d = tl.arange(0, DP)
    for i_t in range(tl.program_id(0) * BT, n, tl.num_programs(0) * BT):
        o_t = i_t + tl.arange(0, BT)
        live = o_t < n
        slot = tl.load(p_idx + beg + o_t, mask=live, other=0).to(tl.int64)
        b_mask = live[:, None] & (o_d < D)[None, :]
        b_k = tl.load(p_k + (slot * s_kn + i_h * s_kh)[:, None] + o_d[None, :], mask=b_mask)
        b_v = tl.load(p_v + (slot * s_vn + i_h * s_vh)[:, None] + o_d[None, :], mask=b_mask)
        o_out = ((beg + o_t) * (HKV * D) + i_h * D)[:, None] + o_d[None, :]
        tl.store(p_ko + o_out, b_k, mask=b_mask)
        tl.store(p_vo + o_out, b_v, mask=b_mask)
        if LORA:
            if i_h == 0:
                if INDIRECT:
                    i_ad = tl.load(p_adapter + tl.load(p_req + i_b))
                else:
                    i_ad = tl.load(p_adapter + i_b)
                if i_ad > 0:
                    o_r = tl.arange(0, RP)
                    p_set = p_lr + (i_ad - 1).to(tl.int64) * set_stride
                    b_w = tl.load(
                        p_set + (slot * s_ln)[:, None] + o_r[None, :],
                        mask=live[:, None] & (o_r < R)[None, :],
                        other=0.0,
                    )
                    tl.store(p_lo + ((beg + o_t) * RP)[:, None] + o_r[None, :], b_w, mask=live[:, None])


@triton.jit
def reconstruct_kernel(
    p_v, p_lr, p_up, p_indptr, p_idx, p_adapter, p_req, p_vo, set_stride,
    s_vn, s_vh, s_ln, s_ua, s_uh, s_ur, s_on, s_oh,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    BT: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """Write `V_base + V_lr B` of one request's slots, one KV head a program."""
    i_h = tl.program_id(1)
    i_b = tl.program_id(2)
    beg = tl.load(p_indptr + i_b).to(tl.int64)
    n = (tl.load(p_indptr + i_b + 1).to(tl.int64) - beg).to(tl.int32)
    if INDIRECT:
        i_ad = tl.load(p_adapter + tl.load(p_req + i_b)).to(tl.int64)
    else:
        i_ad = tl.load(p_adapter + i_b).to(tl.int64)
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    r_live = tl.where(i_ad > 0, R, 0)
    b_up = tl.load(
        p_up + i_ad * s_ua + i_h * s_uh + (o_r * s_ur)[:, None] + o_d[None, :],
        mask=(o_r < r_live)[:, None] & (o_d < D)[None, :],
        other=0.0,
    )
    i_set = tl.maximum(i_ad - 1, 0) * set_stride
    for i_t in range(tl.program_id(0) * BT, n, tl.num_programs(0) * BT):
        o_t = i_t + tl.arange(0, BT)
        live = o_t < n
        slot = tl.load(p_idx + beg + o_t, mask=live, other=0).to(tl.int64)
        b_mask = live[:, None] & (o_d < D)[None, :]
        b_v = tl.load(p_v + (slot * s_vn + i_h * s_vh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        b_w = tl.load(
            p_lr + i_set + (slot * s_ln)[:, None] + o_r[None, :],
            mask=live[:, None] & (o_r < r_live)[None, :],
            other=0.0,
        )
        b_o = tl.dot(b_w, b_up, b_v.to(tl.float32))
        tl.store(p_vo + (slot * s_on + i_h * s_oh)[:, None] + o_d[None, :], b_o.to(b_v.dtype), mask=b_mask)
