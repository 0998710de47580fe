# mypy: ignore-errors
# ruff: noqa: SIM108
"""Device code of extend: a block of new tokens against a prefix and against the new tokens before it.

Keys are walked as prefix, then new tokens.  Tiles that every row of the block sees are read without a
mask (by the bulk copy engine where the rows are contiguous); the ragged end of the prefix and the causal
diagonal take the masked loop.  Scores are kept in base 2.
"""

import triton
import triton.language as tl

from ._common import soft_cap


@triton.jit
def _update(
    b_s, b_v, b_w, b_acc, b_accl, b_m, b_l, qk_scale, cap,
    CAP: tl.constexpr, SAFE: tl.constexpr, LORA: tl.constexpr,
):  # fmt: skip
    """One online-softmax step; `SAFE` where a row may have seen no key yet."""
    if CAP:
        b_s = soft_cap(b_s * qk_scale, cap)
        b_mn = tl.maximum(b_m, tl.max(b_s, 1))
    else:
        b_mn = tl.maximum(b_m, tl.max(b_s, 1) * qk_scale)
    b_ref = b_mn
    if SAFE:
        b_ref = tl.where(b_mn > float("-inf"), b_mn, 0.0)
    if CAP:
        b_p = tl.exp2(b_s - b_ref[:, None])
    else:
        b_p = tl.exp2(b_s * qk_scale - b_ref[:, None])
    b_a = tl.exp2(b_m - b_ref)
    b_l = b_l * b_a + tl.sum(b_p, 1)
    b_p = b_p.to(b_v.dtype)
    b_acc = tl.dot(b_p, b_v, b_acc * b_a[:, None])
    if LORA:
        b_accl = tl.dot(b_p, b_w, b_accl * b_a[:, None])
    return b_acc, b_accl, b_mn, b_l


@triton.jit
def _full_loop(
    b_q, b_acc, b_accl, b_m, b_l, p_k, p_v, p_lr, p_idx, t_k, t_v, t_lr, t_row, i_set, lo, hi, i_kvh,
    qk_scale, cap, s_kn, s_kh, s_vn, s_vh, S_LN: tl.constexpr,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    PAGED: tl.constexpr, TMA: tl.constexpr, LR_TMA: tl.constexpr, CAP: tl.constexpr,
    LORA: tl.constexpr,
):  # fmt: skip
    """Whole tiles that every row sees; rows from pages, by TMA, or by contiguous pointers."""
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    for i_n in tl.range(lo, hi, BN):
        o_n = i_n + tl.arange(0, BN)
        if PAGED:
            row = tl.load(p_idx + o_n).to(tl.int64)
        else:
            row = (t_row + o_n).to(tl.int64)
        if TMA:
            b_k = t_k.load([t_row + i_n, i_kvh * D])
            b_v = t_v.load([t_row + i_n, i_kvh * D])
        else:
            o_k = (row * s_kn + i_kvh * s_kh)[:, None] + o_d[None, :]
            o_v = (row * s_vn + i_kvh * s_vh)[:, None] + o_d[None, :]
            if D == DP:
                b_k = tl.load(p_k + o_k)
                b_v = tl.load(p_v + o_v)
            else:
                b_k = tl.load(p_k + o_k, mask=(o_d < D)[None, :], other=0.0)
                b_v = tl.load(p_v + o_v, mask=(o_d < D)[None, :], other=0.0)
        b_w = b_v
        if LORA:
            if LR_TMA:
                b_w = t_lr.load([t_row + i_n, i_set])
            elif R == RP:
                b_w = tl.load(p_lr + (row * S_LN)[:, None] + o_r[None, :])
            else:
                b_w = tl.load(p_lr + (row * S_LN)[:, None] + o_r[None, :], mask=(o_r < R)[None, :], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k))
        b_acc, b_accl, b_m, b_l = _update(
            b_s, b_v, b_w, b_acc, b_accl, b_m, b_l, qk_scale, cap, CAP, False, LORA
        )
    return b_acc, b_accl, b_m, b_l


@triton.jit
def _masked_loop(
    b_q, b_acc, b_accl, b_m, b_l, p_k, p_v, p_lr, p_idx, t_row, lo, hi, o_pos, base, window, i_kvh,
    qk_scale, cap, s_kn, s_kh, s_vn, s_vh, S_LN: tl.constexpr,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    PAGED: tl.constexpr, STAGES: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    LORA: tl.constexpr,
):  # fmt: skip
    """Keys `lo..hi` at positions `base + key`, each row up to its own position `o_pos`."""
    o_d = tl.arange(0, DP)
    o_r = tl.arange(0, RP)
    for i_n in tl.range(lo, hi, BN, num_stages=STAGES):
        o_n = i_n + tl.arange(0, BN)
        live = o_n < hi
        if PAGED:
            row = tl.load(p_idx + o_n, mask=live, other=0).to(tl.int64)
        else:
            row = (t_row + o_n).to(tl.int64)
        b_mask = live[:, None] & (o_d < D)[None, :]
        b_k = tl.load(p_k + (row * s_kn + i_kvh * s_kh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        b_v = tl.load(p_v + (row * s_vn + i_kvh * s_vh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        b_w = b_v
        if LORA:
            b_w = tl.load(
                p_lr + (row * S_LN)[:, None] + o_r[None, :],
                mask=live[:, None] & (o_r < R)[None, :],
                other=0.0,
            )
        b_s = tl.dot(b_q, tl.trans(b_k))
        seen = live[None, :] & (base + o_n[None, :] <= o_pos[:, None])
        if WINDOW:
            seen = seen & (base + o_n[None, :] + window >= o_pos[:, None])
        if CAP:
            b_s = soft_cap(b_s * qk_scale, cap)
            b_s = tl.where(seen, b_s, float("-inf"))
            b_acc, b_accl, b_m, b_l = _update(
                b_s, b_v, b_w, b_acc, b_accl, b_m, b_l, 1.0, cap, False, True, LORA
            )
        else:
            b_s = tl.where(seen, b_s, float("-inf"))
            b_acc, b_accl, b_m, b_l = _update(
                b_s, b_v, b_w, b_acc, b_accl, b_m, b_l, qk_scale, cap, False, True, LORA
            )
    return b_acc, b_accl, b_m, b_l


@triton.jit
def _walk(
    b_q, b_acc, b_accl, b_m, b_l,
    p_kn, p_vn, p_ln, t_kn, t_vn, t_ln, t_new,
    p_kp, p_vp, p_lp, t_kp, t_vp, t_pre, p_idx,
    i_set, klo, khi, pre, q0, o_pos, window, i_kvh, qk_scale, cap,
    s_knn, s_knh, s_vnn, s_vnh, s_kpn, s_kph, s_vpn, s_vph,
    S_LN: tl.constexpr, S_SET: tl.constexpr, S_LNN: tl.constexpr, S_SETN: tl.constexpr,
    BN: tl.constexpr, BNM: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    RP: tl.constexpr, PREFIX: tl.constexpr, TMA: tl.constexpr, LN_TMA: tl.constexpr, CAP: tl.constexpr,
    WINDOW: tl.constexpr, STAGES: tl.constexpr, LORA: tl.constexpr,
):  # fmt: skip
    """Keys `klo..khi` of prefix + new tokens.  PREFIX: 0 none, 1 from pages, 2 gathered rows."""
    PAGED: tl.constexpr = PREFIX == 1
    p_lns = p_ln + i_set * S_SETN
    p_lps = p_lp + i_set * S_SET
    if PREFIX > 0:
        end = tl.minimum(khi, pre)
        full = klo
        if not WINDOW:
            full = klo + tl.maximum(end - klo, 0) // BN * BN
            b_acc, b_accl, b_m, b_l = _full_loop(
                b_q, b_acc, b_accl, b_m, b_l, p_kp, p_vp, p_lps, p_idx, t_kp, t_vp, t_ln, t_pre, 0, klo, full,
                i_kvh, qk_scale, cap, s_kpn, s_kph, s_vpn, s_vph, S_LN,
                BN, D, DP, R, RP, PAGED, TMA and not PAGED, False, CAP, LORA,
            )  # fmt: skip
        b_acc, b_accl, b_m, b_l = _masked_loop(
            b_q, b_acc, b_accl, b_m, b_l, p_kp, p_vp, p_lps, p_idx, t_pre, full, end, o_pos, 0, window, i_kvh,
            qk_scale, cap, s_kpn, s_kph, s_vpn, s_vph, S_LN,
            BNM, D, DP, R, RP, PAGED, STAGES, CAP, WINDOW, LORA,
        )  # fmt: skip
    nlo = tl.maximum(klo - pre, 0)
    nhi = khi - pre
    diag = nlo
    if not WINDOW:
        diag = nlo + tl.maximum(tl.minimum(q0, nhi) - nlo, 0) // BN * BN
        b_acc, b_accl, b_m, b_l = _full_loop(
            b_q, b_acc, b_accl, b_m, b_l, p_kn, p_vn, p_lns, p_idx, t_kn, t_vn, t_ln, t_new, i_set * S_SETN,
            nlo, diag, i_kvh, qk_scale, cap, s_knn, s_knh, s_vnn, s_vnh, S_LNN,
            BN, D, DP, R, RP, False, TMA, TMA and LN_TMA, CAP, LORA,
        )  # fmt: skip
    b_acc, b_accl, b_m, b_l = _masked_loop(
        b_q, b_acc, b_accl, b_m, b_l, p_kn, p_vn, p_lns, p_idx, t_new, diag, nhi, o_pos, pre, window, i_kvh,
        qk_scale, cap, s_knn, s_knh, s_vnn, s_vnh, S_LNN,
        BNM, D, DP, R, RP, False, STAGES, CAP, WINDOW, LORA,
    )  # fmt: skip
    return b_acc, b_accl, b_m, b_l


@triton.jit(do_not_specialize=["n_tokens"])
def extend_kernel(
    p_q, p_kn, p_vn, p_ln, t_kn, t_vn, t_ln, p_kp, p_vp, p_lp, t_kp, t_vp,
    p_up, p_adapter, p_req, p_qptr, p_indptr, p_idx, p_out, p_lse,
    qk_scale, cap, window, n_tokens,
    s_qt, s_qh, s_knn, s_knh, s_vnn, s_vnh, s_kpn, s_kph, s_vpn, s_vph,
    s_ua, s_uh, s_ur, s_ot, s_oh,
    S_LN: tl.constexpr, S_SET: tl.constexpr, S_LNN: tl.constexpr, S_SETN: tl.constexpr,
    G: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    RP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BNM: tl.constexpr, SPLITS: tl.constexpr,
    PREFIX: tl.constexpr, TMA: tl.constexpr, LN_TMA: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    LORA: tl.constexpr, LSE: tl.constexpr, INDIRECT: tl.constexpr, STAGES: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """One block of `BM` rows (and one piece of its keys, if SPLITS > 1): new tokens of one query head, or,
    with PACK, the new tokens of all query heads of a KV head, head by head within a token."""
    i_blk = tl.num_programs(1) - 1 - tl.program_id(1)
    i_b = tl.program_id(2) // SPLITS
    i_sp = tl.program_id(2) % SPLITS
    t_new = tl.load(p_qptr + i_b).to(tl.int32)
    n_new = tl.load(p_qptr + i_b + 1).to(tl.int32) - t_new
    if PACK:
        o_i = i_blk * BM + tl.arange(0, BM)
        i_kvh = tl.program_id(0)
        o_new = o_i // G
        o_h = i_kvh * G + o_i % G
        q0 = i_blk * BM // G
        q1 = (i_blk * BM + BM - 1) // G + 1
    else:
        i_kvh = tl.program_id(0) // G
        o_h = tl.program_id(0)  # one for all rows: no vector of addresses
        q0 = i_blk * BM
        q1 = q0 + BM
        o_new = q0 + tl.arange(0, BM)
    if q0 < n_new:
        pre = 0
        t_pre = 0
        beg = tl.zeros([], tl.int64)
        if PREFIX > 0:
            beg = tl.load(p_indptr + i_b).to(tl.int64)
            pre = (tl.load(p_indptr + i_b + 1).to(tl.int64) - beg).to(tl.int32)
            t_pre = beg.to(tl.int32)
        o_d = tl.arange(0, DP)
        o_r = tl.arange(0, RP)
        o_t = (t_new + o_new).to(tl.int64)
        b_rows = o_new < n_new
        b_mask = b_rows[:, None] & (o_d < D)[None, :]
        b_q = tl.load(p_q + (o_t * s_qt + o_h * s_qh)[:, None] + o_d[None, :], mask=b_mask, other=0.0)
        b_m = tl.full([BM], float("-inf"), tl.float32)
        b_l = tl.zeros([BM], tl.float32)
        b_acc = tl.zeros([BM, DP], tl.float32)
        b_accl = tl.zeros([BM, RP], tl.float32)
        klo = 0
        khi = pre + tl.minimum(q1, n_new)
        if WINDOW:
            klo = tl.maximum(pre + q0 - window, 0)
        if SPLITS > 1:
            per = tl.cdiv(tl.cdiv(khi - klo, SPLITS), BN) * BN
            klo = klo + i_sp * per
            khi = tl.minimum(klo + per, khi)
        o_pos = pre + o_new
        if LORA:
            if INDIRECT:
                i_ad = tl.load(p_adapter + tl.load(p_req + i_b)).to(tl.int64)
            else:
                i_ad = tl.load(p_adapter + i_b).to(tl.int64)
            if i_ad > 0:
                i_set = 0
                if S_SET > 0:
                    i_set = (i_ad - 1).to(tl.int32)
                b_acc, b_accl, b_m, b_l = _walk(
                    b_q, b_acc, b_accl, b_m, b_l, p_kn, p_vn, p_ln, t_kn, t_vn, t_ln, t_new,
                    p_kp, p_vp, p_lp, t_kp, t_vp, t_pre, p_idx + beg,
                    i_set, klo, khi, pre, q0, o_pos, window, i_kvh, qk_scale, cap,
                    s_knn, s_knh, s_vnn, s_vnh, s_kpn, s_kph, s_vpn, s_vph, S_LN, S_SET, S_LNN, S_SETN,
                    BN, BNM, D, DP, R, RP, PREFIX, TMA, LN_TMA, CAP, WINDOW, STAGES, True,
                )  # fmt: skip
            else:
                b_acc, b_accl, b_m, b_l = _walk(
                    b_q, b_acc, b_accl, b_m, b_l, p_kn, p_vn, p_ln, t_kn, t_vn, t_ln, t_new,
                    p_kp, p_vp, p_lp, t_kp, t_vp, t_pre, p_idx + beg,
                    0, klo, khi, pre, q0, o_pos, window, i_kvh, qk_scale, cap,
                    s_knn, s_knh, s_vnn, s_vnh, s_kpn, s_kph, s_vpn, s_vph, S_LN, S_SET, S_LNN, S_SETN,
                    BN, BNM, D, DP, R, RP, PREFIX, TMA, LN_TMA, CAP, WINDOW, STAGES, False,
                )  # fmt: skip
            b_inv = tl.where(b_l > 0, 1.0 / b_l, 0.0)
            # columns past the rank are another agent's: never let them meet the up-projection
            b_accl = tl.where((o_r < R)[None, :], b_accl * b_inv[:, None], 0.0)
            b_up = tl.load(
                p_up + i_ad * s_ua + i_kvh * s_uh + (o_r * s_ur)[:, None] + o_d[None, :],
                mask=(o_r < tl.where(i_ad > 0, R, 0))[:, None] & (o_d < D)[None, :],
                other=0.0,
            )
            b_acc = tl.dot(b_accl.to(b_up.dtype), b_up, b_acc * b_inv[:, None])
        else:
            b_acc, b_accl, b_m, b_l = _walk(
                b_q, b_acc, b_accl, b_m, b_l, p_kn, p_vn, p_ln, t_kn, t_vn, t_ln, t_new,
                p_kp, p_vp, p_lp, t_kp, t_vp, t_pre, p_idx + beg,
                0, klo, khi, pre, q0, o_pos, window, i_kvh, qk_scale, cap,
                s_knn, s_knh, s_vnn, s_vnh, s_kpn, s_kph, s_vpn, s_vph, S_LN, S_SET, S_LNN, S_SETN,
                BN, BNM, D, DP, R, RP, PREFIX, TMA, LN_TMA, CAP, WINDOW, STAGES, False,
            )  # fmt: skip
            b_inv = tl.where(b_l > 0, 1.0 / b_l, 0.0)
            b_acc = b_acc * b_inv[:, None]
        b_lse = tl.where(b_l > 0, b_m + tl.log2(b_l), float("-inf"))
        if SPLITS > 1:
            o_part = (i_sp * n_tokens + o_t) * HQ + o_h
            tl.store(p_out + (o_part * D)[:, None] + o_d[None, :], b_acc, mask=b_mask)
            tl.store(p_lse + o_part, b_lse, mask=b_rows)
        else:
            o_out = (o_t * s_ot + o_h * s_oh)[:, None] + o_d[None, :]
            tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=b_mask)
            if LSE:
                tl.store(p_lse + o_t * HQ + o_h, b_lse * 0.6931471805599453, mask=b_rows)


@triton.jit(do_not_specialize=["n_tokens"])
def extend_merge_kernel(
    p_part, p_lse, p_out, p_out_lse, n_tokens, s_ot, s_oh,
    HQ: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr, SPLITS: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """Merge the pieces of `BT` (token, head) rows."""
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    o_d = tl.arange(0, DP)
    rows = n_tokens.to(tl.int64) * HQ
    live = o_row < rows
    b_m = tl.full([BT], float("-inf"), tl.float32)
    for i_s in range(0, SPLITS):
        b_m = tl.maximum(b_m, tl.load(p_lse + i_s * rows + o_row, mask=live, other=float("-inf")))
    b_ref = tl.where(b_m > float("-inf"), b_m, 0.0)
    b_l = tl.zeros([BT], tl.float32)
    b_acc = tl.zeros([BT, DP], tl.float32)
    for i_s in range(0, SPLITS):
        b_w = tl.exp2(tl.load(p_lse + i_s * rows + o_row, mask=live, other=float("-inf")) - b_ref)
        o_x = ((i_s * rows + o_row) * D)[:, None] + o_d[None, :]
        b_x = tl.load(p_part + o_x, mask=(live & (b_w > 0))[:, None] & (o_d < D)[None, :], other=0.0)
        b_acc += b_x * b_w[:, None]
        b_l += b_w
    b_acc = b_acc * tl.where(b_l > 0, 1.0 / b_l, 0.0)[:, None]
    o_out = (o_row // HQ * s_ot + o_row % HQ * s_oh)[:, None] + o_d[None, :]
    tl.store(p_out + o_out, b_acc.to(p_out.dtype.element_ty), mask=live[:, None] & (o_d < D)[None, :])
    if LSE:
        b_e = tl.where(b_l > 0, (b_ref + tl.log2(b_l)) * 0.6931471805599453, float("-inf"))
        tl.store(p_out_lse + o_row, b_e, mask=live)
