# mypy: ignore-errors
"""Device code that cuts the requests of a decode batch into pieces of equal length."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch"])
def decode_plan_kernel(
    p_indptr, p_start, p_work, p_chunk, batch, target, window,
    BS: tl.constexpr, NI: tl.constexpr, BI: tl.constexpr, UNIT: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Find the smallest chunk that yields at most `target` pieces; list the request of each piece."""
    o_b = tl.arange(0, BS)
    live = o_b < batch
    b_n = tl.load(p_indptr + o_b + 1, mask=live, other=0) - tl.load(p_indptr + o_b, mask=live, other=0)
    b_n = b_n.to(tl.int32)
    if WINDOW:
        b_n = tl.minimum(b_n, window + 1)
    total = tl.sum(b_n, 0)
    longest = tl.max(b_n, 0)
    chunk = tl.maximum(tl.cdiv(tl.cdiv(total, target), UNIT), 1) * UNIT
    step = tl.maximum(chunk // (32 * UNIT), 1) * UNIT
    pieces = tl.sum(tl.cdiv(b_n, chunk), 0)
    while (pieces > target) & (chunk < longest):
        chunk += step
        pieces = tl.sum(tl.cdiv(b_n, chunk), 0)
    b_p = tl.cdiv(b_n, chunk)
    b_end = tl.cumsum(b_p, 0)
    tl.store(p_chunk, chunk)
    tl.store(p_start + o_b, b_end - b_p, mask=live)
    tl.store(p_start + batch, pieces)
    b_end = tl.where(live, b_end, 2147483647)
    for i in range(0, NI, BI):
        o_i = i + tl.arange(0, BI)
        b_req = tl.sum((o_i[:, None] >= b_end[None, :]).to(tl.int32), 1)
        tl.store(p_work + o_i, tl.where(o_i < pieces, b_req, -1), mask=o_i < NI)
