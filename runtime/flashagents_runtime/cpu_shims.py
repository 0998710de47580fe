"""What SGLang needs to run on a machine without CUDA.

SGLang 0.5.18 has a CPU engine, but some of its modules assume a GPU build at import time. `install()`
puts a few stand-ins in place, in the process that calls it; every process of an engine (host,
scheduler, detokenizer) calls it before it imports SGLang. Where CUDA is available it does nothing, and
a real package is never shadowed: each stand-in is used only where the real thing is missing.

=================  ==================================================================================
``use-cpu-engine``  ``SGLANG_USE_CPU_ENGINE=1``: SGLang reads it at import to choose its CPU platform.
``sgl-kernel``      ``sgl_kernel`` is imported by SGLang, but none of it is called on CPU.
``torchvision``     the torchvision of the package index is linked against CUDA; beside a CPU build of
                    torch its operators are missing and its import fails.
``pin-memory``      SGLang's LoRA layers ask for pinned memory, which needs an accelerator.
``paged-alloc``     the paged KV allocator launches Triton kernels; on CPU torch code does the same.
=================  ==================================================================================

Importing this module imports neither torch nor SGLang.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["active", "install", "mend_torchvision"]

_installed: list[str] = []


def active() -> list[str]:
    """Names of the shims that `install()` put in place in this process, in order; none before it."""
    return list(_installed)


def install() -> list[str]:
    """Put the shims in place if this machine has no CUDA; returns the names of the active ones.

    Idempotent. Call it before the first import of ``sglang``. Raises ImportError where torch is missing.
    """
    if _installed:
        return active()
    try:
        import torch
    except ImportError as e:
        raise ImportError(
            "an engine needs torch and SGLang, which are not installed: install the extra "
            "`flashagents-autogen[gpu]`, or the packages of requirements/ on a machine without a GPU"
        ) from e
    if torch.cuda.is_available():
        return []

    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    _installed.append("use-cpu-engine")
    if importlib.util.find_spec("sgl_kernel") is None:
        # Last in the list: asked only for what no other finder has.
        sys.meta_path.append(_SglKernelFinder())
        _installed.append("sgl-kernel")
    if mend_torchvision():
        _installed.append("torchvision")
    _drop_pin_memory(torch)
    _installed.append("pin-memory")
    _on_import("sglang.srt.mem_cache.allocator.paged", after=_page_allocation_without_triton)
    _installed.append("paged-alloc")
    return active()


def mend_torchvision() -> bool:
    """The shim ``torchvision`` alone, for what imports transformers' models without SGLang; idempotent.

    Returns whether it is in place: only beside a CPU build of torch.
    """
    import torch

    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return False
    _on_import("torchvision._meta_registrations", before=_declare_torchvision_ops)
    return True


class _SglKernelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ``sgl_kernel`` importable where it is not installed; calling anything of it raises."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == "sgl_kernel" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__version__"] = "0.0.0+none"
        vars(module)["__getattr__"] = _missing_kernel


def _missing_kernel(name: str) -> Callable[..., Any]:
    if name.startswith("__"):  # probes such as __path__ must find nothing
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} is not available on a machine without CUDA")

    missing.__name__ = name
    return missing


class _ImportHook(importlib.abc.MetaPathFinder):
    """Calls `before()` and `after(module)` around the first import of one module."""

    def __init__(
        self, name: str, before: Callable[[], None] | None, after: Callable[[types.ModuleType], None] | None
    ) -> None:
        self._name = name
        self._before = before
        self._after = after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        if self._before is not None:
            self._before()
        if self._after is None:
            return None  # the ordinary finders go on
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader, after = spec.loader, self._after
            exec_module = loader.exec_module

            def exec_then(module: types.ModuleType) -> None:
                exec_module(module)
                after(module)

            loader.exec_module = exec_then  # type: ignore[method-assign]  # this spec's own loader
        return spec


def _on_import(
    name: str,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[types.ModuleType], None] | None = None,
) -> None:
    if name in sys.modules:
        if after is not None:
            after(sys.modules[name])
        return
    sys.meta_path.insert(0, _ImportHook(name, before, after))


def _declare_torchvision_ops() -> None:
    """Declare the operators whose fake kernels torchvision registers, if its own library did not load."""
    import torch

    # Called when torchvision has tried to load its library and before it registers the fake kernels.
    missing = [op for op in ("nms", "qnms") if not hasattr(torch.ops.torchvision, op)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for op in missing:
            library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        # The declarations live as long as the library object.
        torch.ops.torchvision._flashagents_library = library


_PINNING_MODULES = (
    "sglang.srt.lora.layers",
    "sglang.srt.lora.backend.chunked_backend",
    "sglang.srt.lora.backend.torch_backend",
    "sglang.srt.lora.backend.triton_backend",
)


def _drop_pin_memory(torch: Any) -> None:
    """Let `pin_memory=True` pass in the modules that hard-code it, and `Tensor.pin_memory()` everywhere."""
    # Not by replacing torch.empty and its like: `with torch.device(...)` recognises them by identity, and
    # transformers builds models under it.
    proxy = _TorchWithoutPinning(torch)

    def use_proxy(module: types.ModuleType) -> None:
        vars(module)["torch"] = proxy

    for name in _PINNING_MODULES:
        _on_import(name, after=use_proxy)
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


class _TorchWithoutPinning(types.ModuleType):
    """The module `torch`, with tensor factories that pass over `pin_memory`."""

    def __init__(self, torch: Any) -> None:
        super().__init__("torch")
        self._torch = torch
        for name in ("arange", "empty", "full", "ones", "tensor", "zeros"):
            setattr(self, name, _without_pin_memory(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def _without_pin_memory(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return wrapper


def _page_allocation_without_triton(paged: Any) -> None:
    """Replace the Triton kernels of `sglang.srt.mem_cache.allocator.paged` (page_size > 1)."""

    def alloc_extend(
        prefix_lens: Any,
        seq_lens: Any,
        last_loc: Any,
        free_pages: Any,
        out_indices: Any,
        bs_upper: int,
        page_size: int,
    ) -> None:
        new_pages = -(-seq_lens // page_size) - -(-prefix_lens // page_size)
        if int(new_pages.sum()) > len(free_pages):
            return  # the caller counts the pages again and reports that memory is out
        paged.alloc_extend_naive(
            prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size, out_indices.device
        )

    def alloc_decode(
        seq_lens: Any, last_loc: Any, free_pages: Any, out_indices: Any, bs_upper: int, page_size: int
    ) -> None:
        # A row takes the next free page where its new token is the first of a page.
        new_page = (seq_lens - 1) % page_size == 0
        if int(new_page.sum()) > len(free_pages):
            return  # as above
        out_indices.copy_(last_loc + 1)
        out_indices[new_page] = (free_pages[: int(new_page.sum())] * page_size).to(out_indices.dtype)

    paged.alloc_extend_kernel = _AnyGrid(alloc_extend)
    paged.alloc_decode_kernel = _AnyGrid(alloc_decode)


class _AnyGrid:
    """`kernel[grid](...)` for a plain function."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._function
