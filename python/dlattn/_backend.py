"""Which backend calls go to."""

import contextlib
import enum
import importlib.util
from collections.abc import Iterator
from contextvars import ContextVar

from . import _core


class ATTN_BACKEND(enum.IntEnum):
    """Where a call runs; for attn_backend()."""

    AUTO = 0  # where the arrays are; torch tensors that require grad: TORCH
    CPU = 1
    CUDA = 2
    TORCH = 3  # PyTorch's own operations, with the same meanings; differentiable; torch tensors only


# An int, so that the extension module reads it without knowing the enum.
_current: ContextVar[int] = ContextVar("dlattn_attn_backend", default=int(ATTN_BACKEND.AUTO))


@contextlib.contextmanager
def attn_backend(backend: ATTN_BACKEND) -> Iterator[None]:
    """Send the calls of this thread or asynchronous task to one backend.

    Blocks nest, and end on exceptions too. The function can also be used as a decorator.

    Raises:
        ValueError: backend is not an ATTN_BACKEND.
        RuntimeError: TORCH without PyTorch installed.
    """
    if not isinstance(backend, ATTN_BACKEND):
        raise ValueError(f"attn_backend: backend is {backend!r}, expected a member of ATTN_BACKEND")
    if backend is ATTN_BACKEND.TORCH and importlib.util.find_spec("torch") is None:
        raise RuntimeError("attn_backend: ATTN_BACKEND.TORCH needs PyTorch, which is not installed (pip install torch)")
    _core._use_backend_variable(_current)
    token = _current.set(int(backend))
    try:
        yield
    finally:
        _current.reset(token)
