"""One attention call, described by a few numbers: builds the inputs, runs dlattn, compares with the oracle."""

from dataclasses import dataclass, field

import numpy as np

import dlattn
import reference
from harness import F32, Placed, check_lse, check_out, oracle, rng

NAN, INF = np.nan, np.inf


@dataclass
class Case:
    dt: object = F32
    batch: int = 2
    len_q: int = 5
    len_k: int = 9
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    dim_v: int = 16
    layout: str = "blhd"
    place_q: str = "contiguous"
    place_k: str = "contiguous"
    place_v: str = "contiguous"
    place_out: str = "contiguous"
    options: dict = field(default_factory=dict)  # is_causal, window, scale, softcap
    mask: str = ""  # "", or rank and kind: 2b 3b 4b 2f 3f 4f, with "1" appended: batch (and heads) of size 1
    sinks: bool = False
    alibi: int = 0  # rank of alibi_slopes; 0: none
    lengths: object = None  # seqlens_k
    index: type = np.int32
    poison: float = NAN  # in keys and values past the length
    spread: float = 1.0  # of q: sharper softmax

    @property
    def key(self):
        return repr(self)


def mask_values(r, kind, batch, heads, len_q, len_k):
    """A mask with holes, empty rows now and then, and (floating) -inf among finite biases."""
    rank, single = int(kind[0]), kind.endswith("1")
    b, h = (1, 1) if single else (batch, heads)
    shape = {2: (b, len_k), 3: (b, len_q, len_k), 4: (b, h, len_q, len_k)}[rank]
    keep = r.random(shape) < 0.7
    if rank > 2 and len_q:
        keep[..., r.integers(len_q), :] &= r.random() < 0.5
    if kind[1] == "b":
        return keep
    return np.where(keep, np.round(r.normal(size=shape) * 8) / 8, -INF)


def build(c):
    """(placed q, k, v, keyword arguments for dlattn, the same for the oracle)."""
    r = rng(c.key)
    q = r.normal(size=(c.batch, c.len_q, c.heads, c.dim)) * c.spread
    k = r.normal(size=(c.batch, c.len_k, c.kv_heads, c.dim))
    v = r.normal(size=(c.batch, c.len_k, c.kv_heads, c.dim_v))
    if c.lengths is not None:
        for b, n in enumerate(c.lengths):
            k[b, n:], v[b, n:] = c.poison, -c.poison
    give, want = dict(c.options), dict(c.options)
    if c.mask:
        m = mask_values(r, c.mask, c.batch, c.heads, c.len_q, c.len_k)
        if c.mask[1] == "b":
            give["mask"] = want["mask"] = m
        else:
            stored = c.dt.encode(m)
            give["mask"], want["mask"] = c.dt.give(stored), c.dt.decode(stored)
    if c.sinks:
        stored = c.dt.encode(r.normal(size=c.heads) * 2)
        give["sinks"], want["sinks"] = c.dt.give(stored), c.dt.decode(stored)
    if c.alibi:
        slopes = (r.random((c.heads,) if c.alibi == 1 else (c.batch, c.heads)) / 2).astype(np.float32)
        give["alibi_slopes"], want["alibi_slopes"] = slopes, slopes.astype(np.float64)
    if c.lengths is not None:
        give["seqlens_k"] = want["seqlens_k"] = np.array(c.lengths, c.index)
    if c.layout == "bhld":
        give["layout"] = "bhld"
    flip = (lambda x: x.transpose(0, 2, 1, 3)) if c.layout == "bhld" else (lambda x: x)
    placed = [Placed(flip(x).shape, c.dt, p, flip(x)) for x, p in ((q, c.place_q), (k, c.place_k), (v, c.place_v))]
    return placed, give, want


def blhd(x, layout):
    return x.transpose(0, 2, 1, 3) if layout == "bhld" else x


def run(c, function=None):
    """Run a dense case with out= inside guards, check out, lse and what may not be written; (out, lse) as stored."""
    function = function or dlattn.attention
    (q, k, v), give, want = build(c)
    exact, eager = oracle(reference.attention, c.dt, *(blhd(x.values(), c.layout) for x in (q, k, v)), **want)
    shape = (c.batch, c.len_q, c.heads, c.dim_v)
    shape = shape if c.layout == "blhd" else (shape[0], shape[2], shape[1], shape[3])
    out = Placed(shape, c.dt, c.place_out)
    lse = Placed((c.batch, c.heads, c.len_q), F32)
    out_object = out.give()
    result = function(q.give(), k.give(), v.give(), out=(out_object, lse.array), return_lse=True, **give)
    assert result[0] is out_object
    assert result[1] is lse.array
    check_out(blhd(out.values(), c.layout), exact, eager, c.dt, c.key)
    check_lse(lse.array, exact.lse, c.dt, c.key, eager)
    assert out.intact(), f"{c.key}: written outside the output"
    assert lse.intact(), f"{c.key}: written outside lse"
    assert all(x.unchanged() for x in (q, k, v)), f"{c.key}: an input was written"
    return out.array, lse.array
