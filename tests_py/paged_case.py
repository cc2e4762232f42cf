"""Ragged and paged calls: random batches with every option, run against the oracle."""

from dataclasses import dataclass, field

import numpy as np

import dlattn
import reference
from attention_case import INF, NAN, blhd, mask_values
from harness import F32, Placed, bits, check_lse, check_out, oracle, rng

ABSURD = 2_000_000_000  # page ids that nobody may look at


@dataclass
class Ragged:
    """A batch of sequences; with page_size, keys in a paged cache; with paged decode, the same len_q for all."""

    dt: object = F32
    lens_q: tuple = (5, 1, 9)
    lens_k: tuple = (9, 33, 4)
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    dim_v: int = 16
    page_size: int = 0  # 0: packed keys (attn_varlen)
    decode: bool = False  # attn_paged_decode
    layout: str = "blhd"
    place_q: str = "contiguous"
    place_k: str = "contiguous"
    place_v: str = "contiguous"
    place_out: str = "contiguous"
    options: dict = field(default_factory=dict)
    mask: str = ""
    sinks: bool = False
    alibi: int = 0
    index: type = np.int32
    head_rows: int = 0  # rows before the first and after the last sequence that belong to nobody
    poison: float = NAN
    spread: float = 1.0
    more_pages: int = 2  # table entries past the longest sequence

    @property
    def key(self):
        return repr(self)


def cumulative(lens, start, index):
    return np.concatenate([[start], start + np.cumsum(lens, dtype=np.int64)]).astype(index)


def options_of(c, r):
    give, want = dict(c.options), dict(c.options)
    batch = len(c.lens_q)
    longest_q, longest_k = max(c.lens_q, default=1 if c.decode else 0), max(c.lens_k, default=0)
    if c.mask:
        m = mask_values(r, c.mask, batch, c.heads, longest_q + 1, longest_k + 2)
        m = (
            m[..., :longest_q, :] if c.decode and int(c.mask[0]) > 2 else m
        )  # a mask may be larger than a ragged batch needs
        give["mask"] = m if c.mask[1] == "b" else c.dt.give(c.dt.encode(m))
        want["mask"] = m if c.mask[1] == "b" else c.dt.round(m)
    if c.sinks:
        sinks = c.dt.encode(r.normal(size=c.heads) * 2)
        give["sinks"], want["sinks"] = c.dt.give(sinks), c.dt.decode(sinks)
    if c.alibi:
        slopes = (r.random((c.heads,) if c.alibi == 1 else (batch, c.heads)) / 2).astype(np.float32)
        give["alibi_slopes"], want["alibi_slopes"] = slopes, slopes.astype(np.float64)
    return give, want


def paged_keys(c, r):
    """Caches in shuffled pages, poison everywhere else, absurd ids in the table's tails."""
    pages = [-(-n // c.page_size) for n in c.lens_k]
    num_pages = sum(pages) + 3
    order = r.permutation(num_pages)[: sum(pages)]
    table = np.full((len(pages), max(pages, default=0) + c.more_pages), ABSURD, c.index)
    k = np.full((num_pages, c.page_size, c.kv_heads, c.dim), c.poison)
    v = np.full((num_pages, c.page_size, c.kv_heads, c.dim_v), -c.poison)
    used = 0
    for b, n in enumerate(c.lens_k):
        for i in range(pages[b]):
            page, rows = order[used], min(c.page_size, n - i * c.page_size)
            table[b, i] = page
            k[page, :rows], v[page, :rows] = r.normal(size=k[page, :rows].shape), r.normal(size=v[page, :rows].shape)
            used += 1
    table[:, 1::2] = np.where(table[:, 1::2] == ABSURD, -ABSURD, table[:, 1::2])
    return k, v, table


def run(c):
    """Run a case inside guards, check everything, return (out, lse) storage."""
    r = rng(c.key)
    batch, lead = len(c.lens_q), c.head_rows
    give, want = options_of(c, r)
    if c.decode:
        len_q = c.lens_q[0] if batch else 1
        q_shape, lse_shape = (batch, len_q, c.heads, c.dim), (batch, c.heads, len_q)
    else:
        total = sum(c.lens_q) + 2 * lead
        q_shape, lse_shape = (total, c.heads, c.dim), (c.heads, total)
        cu_q = cumulative(c.lens_q, lead, c.index)
    flip = (lambda x: blhd(x, c.layout)) if c.page_size else (lambda x: x)
    flip_q = flip if c.decode else (lambda x: x)
    q = r.normal(size=q_shape) * c.spread
    q = Placed(flip_q(q).shape, c.dt, c.place_q, flip_q(q))
    if c.page_size:
        k, v, table = paged_keys(c, r)
        tail = [table, np.array(c.lens_k, c.index)] + ([] if c.decode else [cu_q])
        function = dlattn.attn_paged_decode if c.decode else dlattn.attn_paged_prefill
        truth = reference.attn_paged
        give["layout"] = c.layout
    else:
        total_k = sum(c.lens_k) + 2 * lead
        k, v = np.full((total_k, c.kv_heads, c.dim), c.poison), np.full((total_k, c.kv_heads, c.dim_v), -c.poison)
        middle = slice(lead, total_k - lead)
        k[middle], v[middle] = r.normal(size=k[middle].shape), r.normal(size=v[middle].shape)
        tail = [cu_q, cumulative(c.lens_k, lead, c.index)]
        function, truth = dlattn.attn_varlen, reference.attn_varlen
    k, v = Placed(flip(k).shape, c.dt, c.place_k, flip(k)), Placed(flip(v).shape, c.dt, c.place_v, flip(v))
    exact, eager = oracle(truth, c.dt, flip_q(q.values()), flip(k.values()), flip(v.values()), *tail, **want)
    out_shape = flip_q(np.empty((*q_shape[:-1], c.dim_v))).shape
    out, lse = Placed(out_shape, c.dt, c.place_out), Placed(lse_shape, F32)
    canary = bits(lse.array).copy()
    out_object = out.give()
    result = function(q.give(), k.give(), v.give(), *tail, out=(out_object, lse.array), return_lse=True, **give)
    assert result[0] is out_object
    assert result[1] is lse.array
    assert out.intact(), f"{c.key}: written outside the output"
    assert lse.intact(), f"{c.key}: written outside lse"
    assert all(x.unchanged() for x in (q, k, v)), f"{c.key}: an input was written"
    got, got_lse = flip_q(out.values()), lse.array
    if not c.decode:
        nobody = np.ones(len(got), bool)
        nobody[lead : len(got) - lead] = False
        assert (bits(out.array)[nobody] == bits(c.dt.poison)).all(), f"{c.key}: rows of nobody were written"
        assert (bits(lse.array)[:, nobody] == canary[:, nobody]).all(), f"{c.key}: lse of nobody was written"
        own = ~nobody
        exact = reference.Result(exact.out[own], exact.lse[:, own], exact.size)
        eager = eager.map(lambda e: reference.Result(e.out[own], e.lse[:, own]))
        got, got_lse = got[own], got_lse[:, own]
    check_out(got, exact, eager, c.dt, c.key)
    check_lse(got_lse, exact.lse, c.dt, c.key, eager)
    return out.array, lse.array


__all__ = ["ABSURD", "INF", "NAN", "Ragged", "cumulative", "run"]
