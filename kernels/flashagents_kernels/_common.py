# mypy: ignore-errors
"""Device helpers shared by the kernels."""

import triton
import triton.language as tl


@triton.jit
def soft_cap(b_s, cap):
    """Cap base-2 scores: `cap * tanh(s / cap)`, both in base-2 units."""
    b_e = tl.exp2(b_s * (2.8853900817779268 / cap))
    return cap * (1.0 - 2.0 / (b_e + 1.0))
