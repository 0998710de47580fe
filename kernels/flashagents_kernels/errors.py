"""Errors of the kernels.

- `KernelError`: base of all
    - `ShapeError` (also a `ValueError`): shapes or strides do not fit together
    - `DtypeError` (also a `TypeError`): a dtype the operator does not take
    - `DeviceError` (also a `ValueError`): tensors on different devices, or a device without a path
    - `UnsupportedError` (also a `ValueError`): a value outside what the kernels were built for
    - `WorkspaceError` (also a `ValueError`): a plan or workspace too small for the call
"""


class KernelError(Exception):
    """Base of every error raised by this package."""


class ShapeError(KernelError, ValueError):
    """Shapes or strides do not fit together."""


class DtypeError(KernelError, TypeError):
    """A dtype that the operator does not take."""


class DeviceError(KernelError, ValueError):
    """Tensors on different devices, or a device that has no path."""


class UnsupportedError(KernelError, ValueError):
    """A value outside the range that the kernels were built for."""


class WorkspaceError(KernelError, ValueError):
    """A plan or workspace is too small for the call."""
