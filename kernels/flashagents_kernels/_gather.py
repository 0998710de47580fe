# mypy: ignore-errors
# ruff: noqa: SIM108
"""Device code that prepares rows: a prefix gathered from pages, V with its low-rank part added."""

import triton
import triton.language as tl


@triton.jit
def _adapter(p_adapter, p_req, i_b, INDIRECT: tl.constexpr):
    if INDIRECT:
        i_ad = tl.load(p_adapter + tl.load(p_req + i_b))
    else:
        i_ad = tl.load(p_adapter + i_b)
    return i_ad.to(tl.int64)


@triton.jit
def _fold(b_v, p_w, live, b_up, o_r, r_live):
    """`V + W B` for one tile, in fp32, cast back."""
    b_w = tl.load(p_w, mask=live[:, None] & (o_r < r_live)[None, :], other=0.0)
    return tl.dot(b_w, b_up, b_v.to(tl.float32)).to(b_v.dtype)


@triton.jit
def gather_kernel(
    p_k, p_v, p_lr, p_indptr, p_idx, p_vn, p_ln, p_qptr, p_up, p_adapter, p_req, p_ko, p_vo, p_no,
    s_kn, s_kh, s_vn, s_vh, s_nt, s_nh, s_ua, s_uh, s_ur,
    S_LN: tl.constexpr, S_SET: tl.constexpr, S_LNN: tl.constexpr, S_SETN: tl.constexpr,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    BT: tl.constexpr, PREFIX: tl.constexpr, FOLD: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """One KV head of one request: copy its prefix to contiguous rows; FOLD adds the low-rank part to V,
    of the prefix and of the new tokens (to `p_no`)."""
    i_h = tl.program_id(1)
    i_b = tl.program_id(2)
    i_0 = tl.program_id(0) * BT
    step = tl.num_programs(0) * BT
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    if FOLD:
        i_ad = _adapter(p_adapter, p_req, i_b, INDIRECT)
        i_set = tl.maximum(i_ad - 1, 0)
        r_live = tl.where(i_ad > 0, R, 0)
        b_up = tl.load(
            p_up + i_ad * s_ua + i_h * s_uh + (o_r * s_ur)[:, None] + o_d[None, :],
            mask=(o_r < r_live)[:, None] & (o_d < D)[None, :],
            other=0.0,
        )
    if PREFIX:
        beg = tl.load(p_indptr + i_b).to(tl.int64)
        n = (tl.load(p_indptr + i_b + 1).to(tl.int64) - beg).to(tl.int32)
        for i_t in range(i_0, n, step):
            o_t = i_t + tl.arange(0, BT)
            live = o_t < n
            slot = tl.load(p_idx + beg + o_t, mask=live, other=0).to(tl.int64)
            b_mask = live[:, None] & (o_d < D)[None, :]
            b_k = tl.load(p_k + (slot * s_kn + i_h * s_kh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
            b_v = tl.load(p_v + (slot * s_vn + i_h * s_vh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
            if FOLD:
                p_w = p_lr + i_set * S_SET + (slot * S_LN)[:, None] + o_r[None, :]
                b_v = _fold(b_v, p_w, live, b_up, o_r, r_live)
            o_out = ((beg + o_t) * (HKV * D) + i_h * D)[:, None] + o_d[None, :]
            tl.store(p_ko + o_out, b_k, mask=b_mask)
            tl.store(p_vo + o_out, b_v, mask=b_mask)
    if FOLD:
        t_new = tl.load(p_qptr + i_b).to(tl.int64)
        n_new = (tl.load(p_qptr + i_b + 1).to(tl.int64) - t_new).to(tl.int32)
        for i_t in range(i_0, n_new, step):
            o_t = i_t + tl.arange(0, BT)
            live = o_t < n_new
            b_mask = live[:, None] & (o_d < D)[None, :]
            row = t_new + o_t
            b_v = tl.load(p_vn + (row * s_nt + i_h * s_nh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
            p_w = p_ln + i_set * S_SETN + (row * S_LNN)[:, None] + o_r[None, :]
            b_v = _fold(b_v, p_w, live, b_up, o_r, r_live)
            tl.store(p_no + (row * (HKV * D) + i_h * D)[:, None] + o_d[None, :], b_v, mask=b_mask)


@triton.jit
def join_kernel(
    p_k, p_v, p_lr, p_indptr, p_idx, p_kn, p_vn, p_ln, p_qptr, p_up, p_adapter, p_req, p_ko, p_vo,
    s_kn, s_kh, s_vn, s_vh, s_knt, s_knh, s_vnt, s_vnh, s_ua, s_uh, s_ur,
    S_LN: tl.constexpr, S_SET: tl.constexpr, S_LNN: tl.constexpr, S_SETN: tl.constexpr,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    BT: tl.constexpr, PREFIX: tl.constexpr, FOLD: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """One KV head of one request: its prefix and behind it its new tokens, to rows of their own; FOLD adds
    the low-rank part to V."""
    i_h = tl.program_id(1)
    i_b = tl.program_id(2)
    i_0 = tl.program_id(0) * BT
    step = tl.num_programs(0) * BT
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    i_set = 0
    r_live = 0
    b_up = tl.zeros([RP, DP], p_v.dtype.element_ty)
    if FOLD:
        i_ad = _adapter(p_adapter, p_req, i_b, INDIRECT)
        i_set = tl.maximum(i_ad - 1, 0)
        r_live = tl.where(i_ad > 0, R, 0)
        b_up = tl.load(
            p_up + i_ad * s_ua + i_h * s_uh + (o_r * s_ur)[:, None] + o_d[None, :],
            mask=(o_r < r_live)[:, None] & (o_d < D)[None, :],
            other=0.0,
        )
    t_new = tl.load(p_qptr + i_b).to(tl.int64)
    n_new = (tl.load(p_qptr + i_b + 1).to(tl.int64) - t_new).to(tl.int32)
    t_out = t_new
    if PREFIX:
        beg = tl.load(p_indptr + i_b).to(tl.int64)
        end = tl.load(p_indptr + i_b + 1).to(tl.int64)
        n = (end - beg).to(tl.int32)
        for i_t in range(i_0, n, step):
            o_t = i_t + tl.arange(0, BT)
            live = o_t < n
            slot = tl.load(p_idx + beg + o_t, mask=live, other=0).to(tl.int64)
            b_mask = live[:, None] & (o_d < D)[None, :]
            b_k = tl.load(p_k + (slot * s_kn + i_h * s_kh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
            b_v = tl.load(p_v + (slot * s_vn + i_h * s_vh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
            if FOLD:
                p_w = p_lr + i_set * S_SET + (slot * S_LN)[:, None] + o_r[None, :]
                b_v = _fold(b_v, p_w, live, b_up, o_r, r_live)
            o_out = ((beg + t_new + o_t) * (HKV * D) + i_h * D)[:, None] + o_d[None, :]
            tl.store(p_ko + o_out, b_k, mask=b_mask)
            tl.store(p_vo + o_out, b_v, mask=b_mask)
        t_out = end + t_new
    for i_t in range(i_0, n_new, step):
        o_t = i_t + tl.arange(0, BT)
        live = o_t < n_new
        b_mask = live[:, None] & (o_d < D)[None, :]
        row = t_new + o_t
        b_k = tl.load(p_kn + (row * s_knt + i_h * s_knh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        b_v = tl.load(p_vn + (row * s_vnt + i_h * s_vnh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        if FOLD:
            p_w = p_ln + i_set * S_SETN + (row * S_LNN)[:, None] + o_r[None, :]
            b_v = _fold(b_v, p_w, live, b_up, o_r, r_live)
        o_out = ((t_out + o_t) * (HKV * D) + i_h * D)[:, None] + o_d[None, :]
        tl.store(p_ko + o_out, b_k, mask=b_mask)
        tl.store(p_vo + o_out, b_v, mask=b_mask)


@triton.jit
def reconstruct_kernel(
    p_v, p_lr, p_up, p_indptr, p_idx, p_adapter, p_req, p_vo,
    s_vn, s_vh, s_ua, s_uh, s_ur, s_on, s_oh, S_LN: tl.constexpr, S_SET: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    BT: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """Write `V_base + V_lr B` of one request's slots, one KV head a program."""
    i_h = tl.program_id(1)
    i_b = tl.program_id(2)
    beg = tl.load(p_indptr + i_b).to(tl.int64)
    n = (tl.load(p_indptr + i_b + 1).to(tl.int64) - beg).to(tl.int32)
    i_ad = _adapter(p_adapter, p_req, i_b, INDIRECT)
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    r_live = tl.where(i_ad > 0, R, 0)
    b_up = tl.load(
        p_up + i_ad * s_ua + i_h * s_uh + (o_r * s_ur)[:, None] + o_d[None, :],
        mask=(o_r < r_live)[:, None] & (o_d < D)[None, :],
        other=0.0,
    )
    p_set = p_lr + tl.maximum(i_ad - 1, 0) * S_SET
    for i_t in range(tl.program_id(0) * BT, n, tl.num_programs(0) * BT):
        o_t = i_t + tl.arange(0, BT)
        live = o_t < n
        slot = tl.load(p_idx + beg + o_t, mask=live, other=0).to(tl.int64)
        b_mask = live[:, None] & (o_d < D)[None, :]
        b_v = tl.load(p_v + (slot * s_vn + i_h * s_vh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        b_v = _fold(b_v, p_set + (slot * S_LN)[:, None] + o_r[None, :], live, b_up, o_r, r_live)
        tl.store(p_vo + (slot * s_on + i_h * s_oh)[:, None] + o_d[None, :], b_v, mask=b_mask)
