"""Kernel launches that are repeated with other tensors of the same layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

Layout = tuple[Any, Any, Any, Any, int]


@dataclass
class _Launch:
    kernel: Any
    compiled: Any
    """Triton's CompiledKernel; None in the interpreter, which compiles nothing."""
    grid: tuple[int, ...]
    args: list[Any]
    options: dict[str, Any]
    places: list[tuple[int, str]]
    """Arguments that are a tensor of the call, by its name."""
    descriptors: list[tuple[int, str]]
    """Arguments that describe one to the bulk copy engine."""


class Launches:
    """The launches of one operator call, kept to be started again.

    Triton looks at every argument of a launch to find the compiled kernel: for a kernel with sixty of them
    some 100 us of Python, more than a pass of few tokens takes on a GPU. What it would find depends on the
    tensors' layouts alone, so a later call with the same layouts starts the compiled kernels directly, as
    Triton's own `CompiledKernel.__getitem__` allows.

    Args:
        tensors: what changes from call to call, by name; a name may have None.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._layouts = {name: _layout(t) for name, t in tensors.items()}
        self._names = {id(t): name for name, t in tensors.items() if t is not None}
        # one tensor under two names: its places could not be told apart in a later call
        self.usable = len(self._names) == sum(t is not None for t in tensors.values())
        self._launches: list[_Launch] = []

    def start(self, kernel: Any, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        """Launch `kernel`, and note how."""
        compiled = kernel[grid](*args, **kwargs)
        given = dict(zip(kernel.arg_names, args, strict=False))
        options: dict[str, Any] = {}
        for name, value in kwargs.items():
            (given if name in kernel.arg_names else options)[name] = value
        ordered = [given[name] for name in kernel.arg_names]
        three = (*grid, 1, 1)[:3]  # a compiled kernel takes no fewer
        launch = _Launch(kernel, compiled, three, ordered, options, [], [])
        for i, arg in enumerate(ordered):
            if id(arg) in self._names:
                launch.places.append((i, self._names[id(arg)]))
                ordered[i] = None  # a layer's tensors need not live on
            elif id(getattr(arg, "base", None)) in self._names:
                launch.descriptors.append((i, self._names[id(arg.base)]))
        self._launches.append(launch)

    def done(self) -> None:
        """All launches are noted: from now on the first call's tensors are not known any more."""
        self._names.clear()
        for launch in self._launches:
            for i, _ in launch.descriptors:
                launch.args[i] = _Shape(launch.args[i])

    def fit(self, tensors: Mapping[str, Any]) -> bool:
        """Whether these tensors are laid out as those of the first call."""
        return all(_layout(t) == self._layouts[name] for name, t in tensors.items())

    def again(self, tensors: Mapping[str, Any]) -> None:
        """Start everything again with these tensors, which must `fit`."""
        for launch in self._launches:
            args = list(launch.args)
            for i, name in launch.places:
                args[i] = tensors[name]
            for i, name in launch.descriptors:
                args[i] = args[i].of(tensors[name])
            if launch.compiled is not None:
                launch.compiled[launch.grid](*args)
            else:
                launch.kernel[launch.grid](*args, **launch.options)


class _Shape:
    """A TensorDescriptor without its tensor."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = replace(descriptor, base=torch.empty(0, dtype=descriptor.base.dtype))

    def of(self, tensor: Any) -> Any:
        return replace(self._descriptor, base=tensor)


def _layout(tensor: Any) -> Layout | None:
    """All of a tensor that a launch depends on but where it lies; None for what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        return None
    # an address that 16 divides lets the compiler load 16 bytes at once
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % 16
