// What help() shows. Shapes are those of layout "blhd"; the rules that all functions share are in the module's
// docstring (python/dlattn/__init__.py).
#pragma once

namespace dlattn::py {

// What the docstrings of all attention functions end with.
constexpr char kCommonDoc[] = R"(
Arrays are float32, float16 or bfloat16, all of one dtype and device; last stride 1, others free.

Options:
    is_causal: bottom-right aligned: key j is visible to query i iff j <= i + len_k - len_q.
    mask: bool (True = keep) or float32/float16/bfloat16 (added to the scores); [batch, len_k], [batch, len_q, len_k] or
        [batch, heads, len_q, len_k], batch and heads may be 1. Any strides. Row i and column j are query i and key j of
        each sequence; in ragged and paged calls its axes are at least as long as the longest sequence.
    scale: of q k^T; None: 1 / sqrt(head_dim).
    window: (left, right), inclusive, -1 unlimited, aligned as is_causal.
    softcap: c > 0: s = c tanh(s / c), after scale, before masking; 0: off.
    sinks: [heads], one more logit in the denominator, with no value.
    alibi_slopes: [heads] or [batch, heads]: adds -slope |i + len_k - len_q - j|.
    layout: "blhd" or "bhld" (heads before length; also in out and caches, not in lse, mask or packed tokens, which have
        one form; attn_varlen, where all is packed, takes "blhd" only).
    out: an array to write; with return_lse=True also (out, lse), either may be None. It is returned.
    return_lse: return (out, lse), lse = natural log of the sum that the softmax divides by, float32.
    stream: CUDA only: None (the first array's current stream), a handle, or an object with __cuda_stream__. A named
        stream waits for the arrays' current streams; who uses the results on another waits for it.

Returns:
    out, or (out, lse): of q's framework and device; out has q's dtype. Shapes:
        q [batch, len_q, heads, dim]: out [batch, len_q, heads, dim_v], lse [batch, heads, len_q]
        q [total_q, heads, dim]: out [total_q, heads, dim_v], lse [heads, total_q]
    A row with no visible key gives out 0, lse -inf. For the rules that all functions share see help(dlattn).

Raises:
    ValueError: an argument does not fit; nothing has been written.
    NotImplementedError: no kernel has this combination of options.
    RuntimeError: CUDA failed or was not built.
)";

constexpr char kAttentionDoc[] =
    R"(softmax(scale q k^T + mask) v (Vaswani et al., arXiv:1706.03762, eq. 1), by decode or prefill kernels.

Args:
    q: [batch, len_q, heads, dim]
    k: [batch, len_k, kv_heads, dim]; query head h reads kv head h // (heads // kv_heads)
    v: [batch, len_k, kv_heads, dim_v]
    seqlens_k: int32 or int64 [batch], the keys that count; None: all.
)";

constexpr char kPrefillDoc[] =
    R"(attention() by the kernels for many queries (online softmax, Milakov and Gimelshein, arXiv:1805.02867).

Args:
    q: [batch, len_q, heads, dim]
    k: [batch, len_k, kv_heads, dim]
    v: [batch, len_k, kv_heads, dim_v]
    seqlens_k: int32 or int64 [batch], the keys that count; None: all.
)";

constexpr char kDecodeDoc[] = R"(attention() by the kernels for few queries against a long cache, split over the keys.

Args:
    q: [batch, len_q, heads, dim]
    k: [batch, len_k, kv_heads, dim]
    v: [batch, len_k, kv_heads, dim_v]
    seqlens_k: int32 or int64 [batch], the keys that count; None: all. What lies past them may hold anything.
)";

constexpr char kVarlenDoc[] = R"(attention() of a ragged batch of packed tokens.

Args:
    q: [total_q, heads, dim]
    k: [total_k, kv_heads, dim]
    v: [total_k, kv_heads, dim_v]
    cu_seqlens_q: int32 or int64 [batch + 1]: sequence b has the queries cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1.
    cu_seqlens_k: the same for its keys.

Rows outside cu_seqlens_q are not written.
)";

constexpr char kPagedDecodeDoc[] = R"(attention() of few queries of each sequence against a paged cache.

Key j of sequence b is row j % page_size of page page_table[b, j // page_size].

Args:
    q: [batch, len_q, heads, dim]
    k_cache: [pages, page_size, kv_heads, dim] (layout "bhld": [pages, kv_heads, page_size, dim])
    v_cache: [pages, page_size, kv_heads, dim_v] (layout "bhld": [pages, kv_heads, page_size, dim_v])
    page_table: int32 or int64 [batch, max_pages]; entries past a sequence's length are never read.
    seqlens_k: int32 or int64 [batch]
)";

constexpr char kPagedPrefillDoc[] =
    R"(attention() of ragged queries (chunked prefill, speculative tokens) against a paged cache.

Args:
    q: [total_q, heads, dim]
    k_cache: [pages, page_size, kv_heads, dim] (layout "bhld": [pages, kv_heads, page_size, dim])
    v_cache: [pages, page_size, kv_heads, dim_v] (layout "bhld": [pages, kv_heads, page_size, dim_v])
    page_table: int32 or int64 [batch, max_pages]
    seqlens_k: int32 or int64 [batch]
    cu_seqlens_q: int32 or int64 [batch + 1]

Rows outside cu_seqlens_q are not written.
)";

constexpr char kRotaryEmbeddingDoc[] =
    R"(Rotate q and k in one pass (Su et al., RoFormer, arXiv:2104.09864, eq. 34), in float32, rounded once.

    x'[a] = x[a] cos[i] - x[b] sin[i],  x'[b] = x[b] cos[i] + x[a] sin[i]

Args:
    q: [batch, len, heads, dim] or packed [tokens, heads, dim]
    k: the same with kv_heads; or None.
    cos, sin: float32, float16 or bfloat16 [max_position, rotary_dim / 2]; or already gathered, one row for each token,
        [batch, len, rotary_dim / 2] (packed q: [1, tokens, rotary_dim / 2]). Elements of q and k from rotary_dim on pass
        through.
    interleaved: True: pairs (a, b) are (2i, 2i + 1); False: (i, i + rotary_dim / 2).
    positions: int32 or int64 [batch, len] or [tokens]; None: 0 .. len - 1.
    inplace: write q and k themselves (never JAX or read-only arrays).
    layout: "blhd" or "bhld" (heads before length).
    out: (q_out, k_out), either may be None. They are returned.
    stream: CUDA only: None (the first array's current stream), a handle, or an object with __cuda_stream__.

Returns:
    (q', k'): shaped like q and k, of their dtype, framework and device; k' is None if k is.

Raises:
    ValueError: an argument does not fit, or (CPU) a position is outside the table; nothing has been written.
    RuntimeError: CUDA failed or was not built.
)";

constexpr char kApplyRotaryDoc[] = R"(Rotate one tensor by interleaved pairs (2i, 2i + 1); see rotary_embedding().

Args:
    x: [batch, len, heads, dim] or [tokens, heads, dim]
    freqs: (cos, sin), each [max_position, rotary_dim / 2], row i for token i, or gathered [batch, len, rotary_dim / 2]
        (packed x: [1, tokens, rotary_dim / 2])

x is float32, float16 or bfloat16; cos and sin too, both of one dtype, which may be another.

Returns:
    A new array of x's shape, dtype, framework and device.

Raises:
    ValueError: an argument does not fit.
    RuntimeError: CUDA failed or was not built.
)";

constexpr char kRotaryAppendDoc[] =
    R"(rotary_embedding() and append_kv() in one pass: rotates q and k, writes k' and v into the cache.

Args:
    q: [batch, len, heads, dim] or packed [tokens, heads, dim]
    k, v: the same with kv_heads (v: dim_v)
    cos, sin: [max_position, rotary_dim / 2], or gathered [batch, len, rotary_dim / 2] (packed q: [1, tokens, ...])
    positions: int32 or int64 [batch, len] or [tokens]; None: 0 .. len - 1.
    k_cache: [pages, page_size, kv_heads, dim] (layout "bhld": [pages, kv_heads, page_size, dim])
    v_cache: the same with dim_v
    slot_mapping: int32 or int64 [batch, len] or [tokens]; token t goes to row slot % page_size of page
        slot // page_size; -1 skips it.
    interleaved, layout, stream: as rotary_embedding().
    out: an array for the rotated q. It is returned.

q, k, v and the caches are float32, float16 or bfloat16, all of one dtype and device; cos and sin may have another.

Returns:
    The rotated q, of q's shape, framework, dtype and device.

Raises:
    ValueError: an argument does not fit; nothing has been written.
    RuntimeError: CUDA failed or was not built.
)";

constexpr char kAppendDoc[] = R"(Write new keys and values into a paged cache.

Args:
    k, v: [tokens, kv_heads, dim] or [batch, len, kv_heads, dim] (v: dim_v)
    k_cache: [pages, page_size, kv_heads, dim] (layout "bhld": [pages, kv_heads, page_size, dim])
    v_cache: the same with dim_v
    slot_mapping: int32 or int64 [tokens] or [batch, len]; token t goes to row slot % page_size of page
        slot // page_size; -1 skips it.
    layout: "blhd" or "bhld" (heads before length).
    stream: CUDA only: None (the first array's current stream), a handle, or an object with __cuda_stream__.

k, v and the caches are float32, float16 or bfloat16, all of one dtype and device.

Raises:
    ValueError: an argument does not fit; nothing has been written.
    RuntimeError: CUDA failed or was not built.
)";

constexpr char kMergeDoc[] = R"(Combine partial results of attention over disjoint keys.

    lse = log sum_i exp(lse_i),  out = sum_i exp(lse_i - lse) out_i

(as in split-KV decoding, Flash-Decoding). A state with lse -inf adds nothing, whatever its out holds.

Args:
    outs: a sequence of arrays [batch, len, heads, dim_v] or packed [tokens, heads, dim_v], or one array, their stack
    lses: a sequence of float32 arrays [batch, heads, len] or packed [heads, tokens], or a stack
    layout: of outs, "blhd" or "bhld".
    out: (out, lse), either may be None; out may be one of outs. They are returned.
    stream: CUDA only: None (the first array's current stream), a handle, or an object with __cuda_stream__.

outs are float32, float16 or bfloat16, all of one dtype and device.

Returns:
    (out, lse): of the first array's framework, dtype (lse: float32) and device; shaped like one of outs and of lses.

Raises:
    ValueError: an argument does not fit; nothing has been written.
    RuntimeError: CUDA failed or was not built.
)";

constexpr char kInfoDoc[] = R"(What was built and what this machine can do.

Returns:
    A dict: version; cuda_compiled, cuda_families, cuda_architectures (what kernels were compiled for), cuda_kernels,
    cuda_runtime and cuda_driver (versions), cuda_devices; cpu_isas, cpu_isa, num_threads. `python -m dlattn info`
    prints it.
)";

constexpr char kSetThreadsDoc[] = R"(Threads of the CPU backend, the caller's among them.

Default: the environment variable DLATTN_NUM_THREADS, else the processors that this process may run on.
Results do not depend on it.

Raises:
    ValueError: n is not an int in 1..4096.
)";

constexpr char kGetThreadsDoc[] = "Threads of the CPU backend, the caller's among them.";

}  // namespace dlattn::py
