"""Which kernel a call would run, and why."""

from collections.abc import Callable
from typing import Any, NamedTuple

from . import _core

_OPERATIONS = (
    "attention",
    "attn_prefill",
    "attn_decode",
    "attn_varlen",
    "attn_paged_decode",
    "attn_paged_prefill",
    "rotary_embedding",
    "apply_rotary_emb",
    "append_kv",
    "rotary_append_kv",
    "merge_attention_states",
)


class Explanation(NamedTuple):
    """What a call would run."""

    supported: bool
    backend: str  # "cpu", "cuda" or "torch"
    kernel: str  # its name; empty if not supported
    reason: str  # why this one, or why none


def explain(op: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Say which kernel a call would run and why. Runs and writes nothing.

    Looks at shapes, dtypes, devices and options (and at cu_seqlens_q, to name the kernel), not at other values or
    memory: a call whose lengths, ids or overlapping
    outputs are refused may be supported all the same.

    Args:
        op: an operation of this module or its name, e.g. "attn_prefill".
        args, kwargs: as for the call.

    Raises:
        ValueError: op is no operation, or a shape, dtype or option does not fit.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", "")
    if name not in _OPERATIONS or not (isinstance(op, str) or op is getattr(_core, name)):
        raise ValueError(f"explain: op is {op!r}, expected one of {', '.join(_OPERATIONS)}")
    return Explanation(*_core._explain(getattr(_core, name), *args, **kwargs))
