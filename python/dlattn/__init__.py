"""Attention and rotary embeddings for any array that speaks DLPack.

Every array argument may be a NumPy (with ml_dtypes: bfloat16), PyTorch, JAX or CuPy array, or any object with
``__dlpack__``. Nothing is converted or copied. Results are made by the framework of the first array, or given
as ``out=``.
"""

from ._backend import ATTN_BACKEND, attn_backend
from ._core import (
    __version__,
    append_kv,
    apply_rotary_emb,
    attention,
    attn_decode,
    attn_paged_decode,
    attn_paged_prefill,
    attn_prefill,
    attn_varlen,
    get_num_threads,
    info,
    merge_attention_states,
    rotary_append_kv,
    rotary_embedding,
    set_num_threads,
)
from ._explain import Explanation, explain

__all__ = [
    "ATTN_BACKEND",
    "Explanation",
    "__version__",
    "append_kv",
    "apply_rotary_emb",
    "attention",
    "attn_backend",
    "attn_decode",
    "attn_paged_decode",
    "attn_paged_prefill",
    "attn_prefill",
    "attn_varlen",
    "explain",
    "get_num_threads",
    "info",
    "merge_attention_states",
    "rotary_append_kv",
    "rotary_embedding",
    "set_num_threads",
]
