# mypy: ignore-errors
# ruff: noqa: SIM108
"""Device code of decode: one query token a request, the cache split over programs, then a merge.

A program owns `HB` neighbouring KV heads of one piece of one request, so that a slot's index and its
low-rank row are read once for all of them; every warp works on a head of its own (a batched dot): no
reduction crosses warps.  SPREAD: the low-rank rows go to shared memory once a head, so that their
product stays within a warp too; else once, for one product over all heads.  Scores are in base 2.
"""

import triton
import triton.language as tl

from ._common import soft_cap


@triton.jit
def _decode_loop(
    b_q,
    b_acc,
    b_accl,
    b_m,
    b_l,
    p_k,
    p_v,
    p_lr,
    p_idx,
    lo,
    hi,
    i_head,
    qk_scale,
    cap,
    s_kn,
    s_kh,
    s_vn,
    s_vh,
    S_LN: tl.constexpr,
    HB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    SAME: tl.constexpr,
    SPREAD: tl.constexpr,
    CAP: tl.constexpr,
    LORA: tl.constexpr,
):
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    o_h = i_head + tl.arange(0, HB)
    o_h0 = tl.zeros([HB], tl.int64)
    for i_n in range(lo, hi, BN):
        o_n = i_n + tl.arange(0, BN)
        live = o_n < hi
        slot = tl.load(p_idx + o_n, mask=live, other=0).to(tl.int64)
        if D == DP:
            b_mask = live[None, :, None]
        else:
            b_mask = live[None, :, None] & (o_d < D)[None, None, :]
        o_k = (slot * s_kn)[None, :, None] + (o_h * s_kh)[:, None, None] + o_d[None, None, :]
        b_k = tl.load(p_k + o_k, mask=b_mask, other=0.0)
        if SAME:
            o_v = o_k
        else:
            o_v = (slot * s_vn)[None, :, None] + (o_h * s_vh)[:, None, None] + o_d[None, None, :]
        b_v = tl.load(p_v + o_v, mask=b_mask, other=0.0)
        if LORA:
            o_w = (slot * S_LN)[:, None] + o_r[None, :]
            m_w = live[:, None] & (o_r < R)[None, :]
            if SPREAD:
                o_w = o_w[None, :, :] + o_h0[:, None, None]
                m_w = tl.broadcast_to(m_w[None, :, :], (HB, BN, RP))
            b_w = tl.load(p_lr + o_w, mask=m_w, other=0.0)
        b_s = tl.dot(b_q, tl.permute(b_k, (0, 2, 1))) * qk_scale
        if CAP:
            b_s = soft_cap(b_s, cap)
        b_s = tl.where(live[None, None, :], b_s, float("-inf"))
        b_mn = tl.maximum(b_m, tl.max(b_s, 2))
        b_a = tl.exp2(b_m - b_mn)
        b_p = tl.exp2(b_s - b_mn[:, :, None])
        b_l = b_l * b_a + tl.sum(b_p, 2)
        b_ph = b_p.to(b_v.dtype)
        b_acc = tl.dot(b_ph, b_v, b_acc * b_a[:, :, None])
        if LORA:
            if SPREAD:
                b_accl = tl.dot(b_ph, b_w, b_accl * b_a[:, :, None])
            else:
                b_ah = tl.reshape(b_a, (HB * BM,))
                b_accl = tl.dot(tl.reshape(b_ph, (HB * BM, BN)), b_w, b_accl * b_ah[:, None])
        b_m = b_mn
    return b_acc, b_accl, b_m, b_l


@triton.jit
def decode_split_kernel(
    p_q,
    p_k,
    p_v,
    p_lr,
    p_indptr,
    p_idx,
    p_adapter,
    p_req,
    p_work,
    p_start,
    p_chunk,
    p_o,
    p_ol,
    p_lse,
    qk_scale,
    cap,
    window,
    s_qb,
    s_qh,
    s_kn,
    s_kh,
    s_vn,
    s_vh,
    S_LN: tl.constexpr,
    S_SET: tl.constexpr,
    G: tl.constexpr,
    HQ: tl.constexpr,
    HB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    SAME: tl.constexpr,
    SPREAD: tl.constexpr,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    LORA: tl.constexpr,
    INDIRECT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the piece's normalised output, low-rank output and base-2 log-sum-exp."""
    i_item = tl.program_id(1)
    i_b = tl.load(p_work + i_item)
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()
    if i_b >= 0:
        i_head = tl.program_id(0) * HB
        chunk = tl.load(p_chunk)
        beg = tl.load(p_indptr + i_b).to(tl.int64)
        n = (tl.load(p_indptr + i_b + 1) - beg).to(tl.int32)
        first = 0
        if WINDOW:
            first = tl.maximum(n - 1 - window, 0)
        lo = first + (i_item - tl.load(p_start + i_b)) * chunk
        hi = tl.minimum(lo + chunk, n)

        o_m = tl.arange(0, BM)
        o_d = tl.arange(0, DP)
        o_r = tl.arange(0, RP)
        o_q = (i_head + tl.arange(0, HB))[:, None] * G + o_m[None, :]
        b_row = (o_m < G)[None, :] & (o_q < HQ)
        b_q = tl.load(
            p_q + i_b.to(tl.int64) * s_qb + (o_q * s_qh)[:, :, None] + o_d[None, None, :],
            mask=b_row[:, :, None] & (o_d < D)[None, None, :],
            other=0.0,
        )
        b_m = tl.full([HB, BM], float("-inf"), tl.float32)
        b_l = tl.zeros([HB, BM], tl.float32)
        b_acc = tl.zeros([HB, BM, DP], tl.float32)
        b_accl = tl.zeros([HB * BM, RP], tl.float32)
        if SPREAD:
            b_accl = tl.zeros([HB, BM, RP], tl.float32)
        p_tok = p_idx + beg
        o_out = i_item.to(tl.int64) * HQ + o_q
        if LORA:
            if INDIRECT:
                i_ad = tl.load(p_adapter + tl.load(p_req + i_b))
            else:
                i_ad = tl.load(p_adapter + i_b)
            if i_ad > 0:
                p_set = p_lr + (i_ad - 1).to(tl.int64) * S_SET
                b_acc, b_accl, b_m, b_l = _decode_loop(
                    b_q, b_acc, b_accl, b_m, b_l, p_k, p_v, p_set, p_tok, lo, hi, i_head, qk_scale, cap,
                    s_kn, s_kh, s_vn, s_vh, S_LN, HB, BM, BN, D, DP, R, RP, SAME, SPREAD, CAP, True,
                )  # fmt: skip
                b_il = 1.0 / b_l
                if SPREAD:
                    p_w = p_ol + (o_out * RP)[:, :, None] + o_r[None, None, :]
                    tl.store(p_w, b_accl * b_il[:, :, None], mask=b_row[:, :, None])
                else:
                    p_w = p_ol + (tl.reshape(o_out, (HB * BM,)) * RP)[:, None] + o_r[None, :]
                    b_il = tl.reshape(b_il, (HB * BM,))
                    tl.store(p_w, b_accl * b_il[:, None], mask=tl.reshape(b_row, (HB * BM,))[:, None])
            else:
                b_acc, b_accl, b_m, b_l = _decode_loop(
                    b_q, b_acc, b_accl, b_m, b_l, p_k, p_v, p_lr, p_tok, lo, hi, i_head, qk_scale, cap,
                    s_kn, s_kh, s_vn, s_vh, S_LN, HB, BM, BN, D, DP, R, RP, SAME, SPREAD, CAP, False,
                )  # fmt: skip
        else:
            b_acc, b_accl, b_m, b_l = _decode_loop(
                b_q, b_acc, b_accl, b_m, b_l, p_k, p_v, p_lr, p_tok, lo, hi, i_head, qk_scale, cap,
                s_kn, s_kh, s_vn, s_vh, S_LN, HB, BM, BN, D, DP, R, RP, SAME, SPREAD, CAP, False,
            )  # fmt: skip
        if PDL == 2:  # while the last pieces are written: a merge launched earlier takes room from them
            tl.extra.cuda.gdc_launch_dependents()
        b_il3 = 1.0 / b_l
        tl.store(
            p_o + (o_out * DP)[:, :, None] + o_d[None, None, :],
            b_acc * b_il3[:, :, None],
            mask=b_row[:, :, None],
        )
        tl.store(p_lse + o_out, b_m + tl.log2(b_l), mask=b_row)


@triton.jit
def decode_merge_kernel(
    p_o,
    p_ol,
    p_lse,
    p_start,
    p_up,
    p_adapter,
    p_req,
    p_out,
    p_out_lse,
    s_ua,
    s_uh,
    s_ur,
    s_ob,
    s_oh,
    G: tl.constexpr,
    HQ: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    SB: tl.constexpr,
    LORA: tl.constexpr,
    LSE: tl.constexpr,
    INDIRECT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge a request's pieces for one query head, apply its up-projection once, cast."""
    i_h = tl.program_id(0)
    i_b = tl.program_id(1)
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    s_lo = tl.load(p_start + i_b)
    s_hi = tl.load(p_start + i_b + 1)
    b_m = float("-inf")
    b_l = 0.0
    b_acc = tl.zeros([DP], tl.float32)
    if LORA:
        if INDIRECT:
            i_ad = tl.load(p_adapter + tl.load(p_req + i_b))
        else:
            i_ad = tl.load(p_adapter + i_b)
        r_live = tl.where(i_ad > 0, R, 0)
        b_lr = tl.zeros([RP], tl.float32)
        b_up = tl.load(
            p_up + i_ad.to(tl.int64) * s_ua + (i_h // G) * s_uh + (o_r * s_ur)[:, None] + o_d[None, :],
            mask=(o_r < r_live)[:, None] & (o_d < D)[None, :],
            other=0.0,
        )
    if PDL:
        tl.extra.cuda.gdc_wait()
    for i_s in range(s_lo, s_hi, SB):
        o_s = i_s + tl.arange(0, SB)
        live = o_s < s_hi
        o_row = o_s.to(tl.int64) * HQ + i_h
        # all loads before the first reduction: none waits behind its barrier
        b_e = tl.load(p_lse + o_row, mask=live, other=float("-inf"))
        b_x = tl.load(p_o + (o_row * DP)[:, None] + o_d[None, :], mask=live[:, None], other=0.0)
        if LORA:
            b_y = tl.load(
                p_ol + (o_row * RP)[:, None] + o_r[None, :],
                mask=live[:, None] & (o_r < r_live)[None, :],
                other=0.0,
            )
        b_mn = tl.maximum(b_m, tl.max(b_e, 0))
        b_a = tl.exp2(b_m - b_mn)
        b_w = tl.exp2(b_e - b_mn)
        b_l = b_l * b_a + tl.sum(b_w, 0)
        b_acc = b_acc * b_a + tl.sum(b_x * b_w[:, None], 0)
        if LORA:
            b_lr = b_lr * b_a + tl.sum(b_y * b_w[:, None], 0)
        b_m = b_mn
    if LORA:
        b_acc += tl.sum(b_up.to(tl.float32) * b_lr[:, None], 0)
    # an empty request has no pieces: zeros, and a log-sum-exp of -inf
    b_acc = tl.where(b_l > 0, b_acc / tl.where(b_l > 0, b_l, 1.0), 0.0)
    o_out = i_b.to(tl.int64) * s_ob + i_h * s_oh + o_d
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=o_d < D)
    if LSE:
        b_e = tl.where(b_l > 0, (b_m + tl.log2(b_l)) * 0.6931471805599453, float("-inf"))
        tl.store(p_out_lse + i_b * HQ + i_h, b_e)
