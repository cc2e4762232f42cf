"""Every operation of dlattn in plain float64 NumPy: the oracle. Nothing here is fast or shared with the library.

Arrays are float64 in layout blhd (`q [batch, len, heads, dim]`). `steps` other than EXACT repeat the same computation
in the arithmetic of a simple eager implementation, every intermediate rounded to the dtype: its error is the yardstick.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Steps:
    """How intermediates are held: the float type of the arithmetic, and a rounding to the dtype after each step."""

    ft: type = np.float64
    rnd: object = None
    order: int = 0  # of the sums over head_dim and keys, and how scores are scaled: all of them equally good

    def __call__(self, x):
        return x if self.rnd is None else self.rnd(x).astype(self.ft)

    def shuffle(self, n):
        """The order in which n terms are summed; 1 is from the other end, more are random."""
        return np.arange(n)[::-1] if self.order == 1 else np.random.default_rng(self.order).permutation(n)

    @property
    def base_2(self):
        """Softmax by powers of 2, as many kernels do: log2 e goes into the scale."""
        return self.order > 1 and self.order % 2 == 1


EXACT = Steps()


@dataclass
class Result:
    out: np.ndarray
    lse: np.ndarray
    size: float = 0.0  # largest sum of |weight * value|: what a rounding is relative to


def visible(len_q, len_k, is_causal=False, window=(-1, -1)):
    """bool [len_q, len_k]: which keys a query sees by position, aligned bottom-right."""
    i = np.arange(len_q)[:, None] + len_k - len_q
    j = np.arange(len_k)[None, :]
    allow = np.ones((len_q, len_k), bool)
    if is_causal:
        allow &= j <= i
    if window[0] >= 0:
        allow &= j >= i - window[0]
    if window[1] >= 0:
        allow &= j <= i + window[1]
    return allow


def mask_parts(mask, batch, len_q, len_k):
    """(bool allow, float bias or None), [heads or 1, len_q, len_k] each: one sequence of a mask of rank 2, 3 or 4."""
    if mask is None:
        return np.ones((1, 1, 1), bool), None
    m = mask
    if m.ndim == 2:
        m = m[:, None, None, :]
    elif m.ndim == 3:
        m = m[:, None, :, :]
    m = m[batch if m.shape[0] > 1 else 0]
    m = m[:, : len_q if m.shape[1] > 1 or mask.ndim > 2 else 1, :len_k]
    if m.dtype == np.bool_:
        return m, None
    m = m.astype(np.float64)
    return m != -np.inf, np.where(m == -np.inf, 0.0, m)


def one_sequence(
    q,
    k,
    v,
    *,
    allow=None,
    bias=None,
    is_causal=False,
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    sinks=None,
    slopes=None,
    steps=EXACT,
):
    """q [len_q, heads, dim], k, v [len_k, kv_heads, ...] -> (out [len_q, heads, dim_v], lse [heads, len_q], size)."""
    ft = steps.ft
    len_q, heads, dim = q.shape
    len_k, kv_heads, _dim_v = v.shape
    group = heads // kv_heads
    unit, power, log = (ft(np.log2(np.e)), np.exp2, np.log2) if steps.base_2 else (ft(1), np.exp, np.log)
    scale = ft(1 / np.sqrt(dim) if scale is None else scale) * unit
    see = np.broadcast_to(visible(len_q, len_k, is_causal, window)[None], (heads, len_q, len_k))
    if allow is not None:
        see = see & allow
    qh = q.transpose(1, 0, 2).astype(ft)
    kh = np.repeat(k, group, axis=1).transpose(1, 2, 0).astype(ft)
    vh = np.repeat(v, group, axis=1).transpose(1, 0, 2).astype(ft)
    with np.errstate(all="ignore"):
        if steps.order:
            terms = steps.shuffle(dim)
            s = steps(steps(qh * scale)[:, :, terms] @ kh[:, terms])
        else:
            s = steps(steps(qh @ kh) * scale)
        if softcap > 0:
            cap = ft(softcap) * unit
            s = steps(cap * np.tanh(s / cap))
        if bias is not None:
            s = steps(s + bias.astype(ft) * unit)
        if slopes is not None:
            distance = np.abs(np.arange(len_q)[:, None] + len_k - len_q - np.arange(len_k)[None, :])
            s = steps(s - np.asarray(slopes, ft)[:, None, None] * unit * distance.astype(ft))
        s = np.where(see, s, -np.inf)
        peak = s.max(axis=-1, keepdims=True, initial=-np.inf)
        sink = None if sinks is None else np.asarray(sinks, ft)[:, None, None] * unit
        if sink is not None:
            peak = np.maximum(peak, sink)
        base = np.where(np.isneginf(peak), ft(0), peak)
        e = np.where(see, power(s - base), ft(0))
        total = e.sum(axis=-1, keepdims=True, dtype=ft)
        if sink is not None:
            total = total + power(sink - base)
        p = steps(e / np.where(total == 0, ft(1), total))
        finite = np.where(np.isfinite(vh), vh, ft(0))
        if steps.order:
            terms = steps.shuffle(len_k)
            out = p[:, :, terms] @ finite[:, terms]
        else:
            out = p @ finite
        # A value that is not finite reaches exactly the rows that see its key.
        for h, j in {(h, j) for h, j, _ in np.argwhere(~np.isfinite(vh))}:
            rows = see[h, :, j]
            bad = np.where(np.isfinite(vh[h, j]), ft(0), vh[h, j])
            out[h, rows] += np.where(np.isfinite(vh[h, j])[None], ft(0), p[h, rows, j][:, None] * bad[None])
        lse = np.where(total == 0, -np.inf, (base + log(np.where(total == 0, ft(1), total))) / unit)[..., 0]
        size = p @ np.abs(finite)
    size = float(np.nanmax(size, initial=0.0, where=np.isfinite(size)))
    return steps(out).transpose(1, 0, 2), lse, size


def _slopes(alibi_slopes, b):
    if alibi_slopes is None:
        return None
    return alibi_slopes[b] if alibi_slopes.ndim == 2 else alibi_slopes


def attention(q, k, v, *, seqlens_k=None, mask=None, alibi_slopes=None, **options):
    batch, len_q, heads, _ = q.shape
    out = np.zeros((batch, len_q, heads, v.shape[3]))
    lse = np.full((batch, heads, len_q), -np.inf)
    size = 0.0
    for b in range(batch):
        n = k.shape[1] if seqlens_k is None else int(seqlens_k[b])
        allow, bias = mask_parts(mask, b, len_q, n)
        out[b], lse[b], s = one_sequence(
            q[b], k[b, :n], v[b, :n], allow=allow, bias=bias, slopes=_slopes(alibi_slopes, b), **options
        )
        size = max(size, s)
    return Result(out, lse, size)


def attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *, mask=None, alibi_slopes=None, **options):
    """Rows outside cu_seqlens_q come back as NaN: nobody may look at them."""
    total_q, heads, _ = q.shape
    out = np.full((total_q, heads, v.shape[2]), np.nan)
    lse = np.full((heads, total_q), np.nan)
    size = 0.0
    for b in range(len(cu_seqlens_q) - 1):
        rows = slice(int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1]))
        keys = slice(int(cu_seqlens_k[b]), int(cu_seqlens_k[b + 1]))
        allow, bias = mask_parts(mask, b, rows.stop - rows.start, keys.stop - keys.start)
        out[rows], lse[:, rows], s = one_sequence(
            q[rows], k[keys], v[keys], allow=allow, bias=bias, slopes=_slopes(alibi_slopes, b), **options
        )
        size = max(size, s)
    return Result(out, lse, size)


def gather_pages(cache, page_table, seqlens_k):
    """The keys of each sequence, [len, kv_heads, dim], out of a cache [pages, page_size, kv_heads, dim]."""
    page_size = cache.shape[1]
    rows = []
    for b, n in enumerate(int(n) for n in seqlens_k):
        pages = [int(p) for p in page_table[b, : -(-n // page_size)]]
        joined = cache[pages].reshape((-1, *cache.shape[2:])) if pages else cache[:0, 0]
        rows.append(joined[:n])
    return rows


def attn_paged(q, k_cache, v_cache, page_table, seqlens_k, cu_seqlens_q=None, **options):
    """paged decode (q 4-D) and paged prefill (q 3-D with cu_seqlens_q)."""
    k = gather_pages(k_cache, page_table, seqlens_k)
    v = gather_pages(v_cache, page_table, seqlens_k)
    batch = len(k)
    cu_k = np.concatenate([[0], np.cumsum([len(x) for x in k])]).astype(np.int64)
    k = np.concatenate(k) if batch else k_cache[:0, 0]
    v = np.concatenate(v) if batch else v_cache[:0, 0]
    if cu_seqlens_q is not None:
        return attn_varlen(q, k, v, cu_seqlens_q, cu_k, **options)
    _, len_q, heads, dim = q.shape
    cu_q = np.arange(batch + 1) * len_q
    r = attn_varlen(q.reshape(batch * len_q, heads, dim), k, v, cu_q, cu_k, **options)
    lse = r.lse.reshape(heads, batch, len_q).transpose(1, 0, 2)
    return Result(r.out.reshape(batch, len_q, heads, v.shape[-1]), lse, r.size)


def rotate(x, cos, sin, interleaved):
    """x [..., heads, dim]; cos, sin [..., rotary_dim / 2], one row per token."""
    r = 2 * cos.shape[-1]
    c, s = cos[..., None, :], sin[..., None, :]
    first = slice(0, r, 2) if interleaved else slice(0, r // 2)
    second = slice(1, r, 2) if interleaved else slice(r // 2, r)
    y = np.array(x)
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return y


def rotary_rows(table, positions, batch, length):
    """The table's row for every token: [batch, length, rotary_dim / 2]."""
    if table.ndim == 3:
        return table
    if positions is None:
        positions = np.broadcast_to(np.arange(length), (batch, length))
    return table[np.asarray(positions).reshape(batch, length)]


def append(k, cache, slots):
    """A copy of `cache` [pages, page_size, ...] with token t of `k` [tokens, ...] in slot slots[t]."""
    cache = np.array(cache)
    page_size = cache.shape[1]
    for t, slot in enumerate(np.asarray(slots).reshape(-1)):
        if slot >= 0:
            cache[slot // page_size, slot % page_size] = k[t]
    return cache


def merge(outs, lses):
    """outs [n, batch, len, heads, dim], lses [n, batch, heads, len]; an empty part adds nothing, whatever it holds."""
    peak = lses.max(axis=0)
    base = np.where(np.isneginf(peak), 0.0, peak)
    with np.errstate(all="ignore"):
        weight = np.exp(lses - base)
        total = weight.sum(axis=0)
        share = (weight / np.where(total == 0, 1.0, total)).transpose(0, 1, 3, 2)[..., None]
        out = np.where(share == 0, 0.0, share * outs)
        size = float(np.nanmax(np.abs(out).sum(axis=0), initial=0.0))
        return Result(out.sum(axis=0), np.where(total == 0, -np.inf, base + np.log(total)), size)
