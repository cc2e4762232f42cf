"""Types of the extension module. Arrays are any objects that speak DLPack, so they are Any: results have q's type."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypedDict

_Array = Any
_Layout = Literal["blhd", "bhld"]

__version__: str

class _Info(TypedDict):
    version: str
    cuda_compiled: bool
    cuda_families: list[str]
    cuda_devices: list[str]
    cuda_architectures: list[str]
    cuda_kernels: list[str]
    cuda_runtime: str
    cuda_driver: str
    cpu_isas: list[str]
    cpu_isa: str
    num_threads: int

def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    seqlens_k: _Array | None = None,
    is_causal: bool = False,
    mask: _Array | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: _Array | None = None,
    alibi_slopes: _Array | None = None,
    layout: _Layout = "blhd",
    out: _Array | tuple[_Array | None, _Array | None] | None = None,
    return_lse: bool = False,
    stream: Any = None,
) -> Any: ...
def attn_prefill(
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    seqlens_k: _Array | None = None,
    is_causal: bool = False,
    mask: _Array | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: _Array | None = None,
    alibi_slopes: _Array | None = None,
    layout: _Layout = "blhd",
    out: _Array | tuple[_Array | None, _Array | None] | None = None,
    return_lse: bool = False,
    stream: Any = None,
) -> Any: ...
def attn_decode(
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    seqlens_k: _Array | None = None,
    is_causal: bool = False,
    mask: _Array | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: _Array | None = None,
    alibi_slopes: _Array | None = None,
    layout: _Layout = "blhd",
    out: _Array | tuple[_Array | None, _Array | None] | None = None,
    return_lse: bool = False,
    stream: Any = None,
) -> Any: ...
def attn_varlen(
    q: _Array,
    k: _Array,
    v: _Array,
    cu_seqlens_q: _Array,
    cu_seqlens_k: _Array,
    *,
    is_causal: bool = False,
    mask: _Array | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: _Array | None = None,
    alibi_slopes: _Array | None = None,
    layout: _Layout = "blhd",
    out: _Array | tuple[_Array | None, _Array | None] | None = None,
    return_lse: bool = False,
    stream: Any = None,
) -> Any: ...
def attn_paged_decode(
    q: _Array,
    k_cache: _Array,
    v_cache: _Array,
    page_table: _Array,
    seqlens_k: _Array,
    *,
    is_causal: bool = False,
    mask: _Array | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: _Array | None = None,
    alibi_slopes: _Array | None = None,
    layout: _Layout = "blhd",
    out: _Array | tuple[_Array | None, _Array | None] | None = None,
    return_lse: bool = False,
    stream: Any = None,
) -> Any: ...
def attn_paged_prefill(
    q: _Array,
    k_cache: _Array,
    v_cache: _Array,
    page_table: _Array,
    seqlens_k: _Array,
    cu_seqlens_q: _Array,
    *,
    is_causal: bool = False,
    mask: _Array | None = None,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: _Array | None = None,
    alibi_slopes: _Array | None = None,
    layout: _Layout = "blhd",
    out: _Array | tuple[_Array | None, _Array | None] | None = None,
    return_lse: bool = False,
    stream: Any = None,
) -> Any: ...
def rotary_embedding(
    q: _Array,
    k: _Array | None,
    cos: _Array,
    sin: _Array,
    *,
    interleaved: bool,
    positions: _Array | None = None,
    inplace: bool = False,
    layout: _Layout = "blhd",
    out: tuple[_Array | None, _Array | None] | None = None,
    stream: Any = None,
) -> tuple[Any, Any]: ...
def apply_rotary_emb(x: _Array, freqs: tuple[_Array, _Array]) -> Any: ...
def rotary_append_kv(
    q: _Array,
    k: _Array,
    v: _Array,
    cos: _Array,
    sin: _Array,
    positions: _Array | None,
    k_cache: _Array,
    v_cache: _Array,
    slot_mapping: _Array,
    *,
    interleaved: bool,
    layout: _Layout = "blhd",
    out: _Array | None = None,
    stream: Any = None,
) -> Any: ...
def append_kv(
    k: _Array,
    v: _Array,
    k_cache: _Array,
    v_cache: _Array,
    slot_mapping: _Array,
    *,
    layout: _Layout = "blhd",
    stream: Any = None,
) -> None: ...
def merge_attention_states(
    outs: _Array | Sequence[_Array],
    lses: _Array | Sequence[_Array],
    *,
    layout: _Layout = "blhd",
    out: tuple[_Array | None, _Array | None] | None = None,
    stream: Any = None,
) -> tuple[Any, Any]: ...

class _JaxResult:
    def __dlpack__(self, **keywords: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def info() -> _Info: ...
def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...
def _explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[bool, str, str, str]: ...
def _use_backend_variable(context_variable: ContextVar[int]) -> None: ...
