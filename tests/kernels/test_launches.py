"""Launches that are repeated, with a compiled kernel as Triton returns one on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashagents_kernels.launches import Launches


class Compiled:
    """As `triton.compiler.CompiledKernel`: it is given a grid of three, and every argument by its place."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        x, y, z = grid[0], grid[1], grid[2]
        return lambda *args: self.calls.append(((x, y, z), *args))


class Kernel:
    """As a `triton.JITFunction` with these parameters."""

    arg_names = ("p_x", "p_scratch", "stride", "BLOCK")

    def __init__(self) -> None:
        self.compiled = Compiled()
        self.found: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        def run(*args: Any, **kwargs: Any) -> Compiled:
            self.found.append(dict(zip(self.arg_names, args, strict=False)) | kwargs)
            return self.compiled

        return run


def test_the_compiled_kernel_is_started_with_the_later_tensors() -> None:
    kernel, scratch = Kernel(), torch.empty(3)
    first, later = torch.zeros(4, 2), torch.ones(4, 2)
    launches = Launches({"x": first, "none": None})
    launches.start(kernel, (7,), first, scratch, BLOCK=16, stride=first.stride(0), num_warps=4)
    launches.done()
    assert launches.fit({"x": later, "none": None})
    launches.again({"x": later, "none": None})
    assert len(kernel.found) == 1  # Triton has looked once
    [(grid, x, kept, stride, block)] = kernel.compiled.calls
    assert (grid, stride, block) == ((7, 1, 1), 2, 16)
    assert x is later
    assert kept is scratch


def test_what_has_another_layout_does_not_fit() -> None:
    launches = Launches({"x": torch.zeros(4, 2)})
    assert not launches.fit({"x": torch.zeros(2, 4).T})
    assert not launches.fit({"x": torch.zeros(4, 3)})
    assert not launches.fit({"x": torch.zeros(4, 2, dtype=torch.float16)})
    assert not launches.fit({"x": torch.zeros(9)[1:].view(4, 2)})  # its address is no multiple of 16 bytes
    assert not launches.fit({"x": None})
