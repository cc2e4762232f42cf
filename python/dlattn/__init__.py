"""Attention and rotary embeddings for any array that speaks DLPack.

Rules that all functions share:

Arrays: NumPy (with ml_dtypes: bfloat16), PyTorch, JAX, CuPy, Numba's device arrays, or any object with ``__dlpack__``
or ``__cuda_array_interface__``. Nothing is converted or copied, nothing guessed from sizes. The last axis has stride 1
(but for masks and index arrays of rotary embedding and append), the others any; an axis of 1 any.

Results are made by the framework of the first array, or given as ``out=``: of that dtype and shape, written, and
returned as the same object. An output may share memory with no input or other output, unless the function says so.

Layout: "blhd" is [batch, len, heads, dim] and caches [pages, page_size, heads, dim]; "bhld" is [batch, heads, len, dim]
and [pages, heads, page_size, dim]. The docstrings show "blhd". Packed tokens are [tokens, heads, dim] in both. Query
head h reads kv head h // (heads // kv_heads).

Errors: ValueError (an argument does not fit), NotImplementedError (legal, but no kernel does it), RuntimeError (the
backend is not built, or failed), TypeError (a keyword that there is not). They come before anything is written, and
leave no error behind in the CUDA runtime.

What a length, mask, window or causality hides may hold anything, NaN included. (On CUDA a NaN or infinity in the
*value* of a key that a mask, a window or causality hides inside the sequence's length may reach the row: a weight of 0
times NaN is NaN. So it does where PyTorch's own attention computes.)

CUDA: work is queued, and nothing waits for it: results are ready in the order of the stream, as those of the arrays'
own framework are. `stream=None` is the current stream of the first array's framework; a named stream first waits for
the arrays' current streams, and new results belong to it. Nothing is read back and no memory is taken but from the
framework (for results and partial results), so calls of PyTorch and CuPy can be captured in CUDA graphs; lengths,
tables and positions may then change between replays. So their values are not checked: lengths, cu_seqlens and page ids
out of range are brought into it (a wrong result, never a wild access), a position outside the table gives NaN rows, a
slot outside the cache is skipped. JAX arrays are taken eagerly, outside jit, and results are copied once.

A second signature, (*args, **kwargs) -> NoReturn, in help() is what raises the TypeErrors.

Gradients: a torch tensor that requires grad, with grad enabled, sends the call to PyTorch's own operations. Tangents of
forward-mode differentiation (torch.autograd.forward_ad) are not seen and are lost; ATTN_BACKEND.TORCH keeps them, or
raises where PyTorch has no formula. Writes into torch tensors count in their version, as in-place operations of torch
do.

Threads: every function may be called from several threads; the GIL is released while a larger call computes.
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
