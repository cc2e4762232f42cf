"""Rotary calls against the oracle."""

from dataclasses import dataclass

import numpy as np

import dlattn
import reference
from attention_case import blhd
from harness import F32, Placed, bits, rng


@dataclass
class Rotary:
    dt: object = F32
    table_dt: object = F32
    batch: int = 2
    length: int = 5
    heads: int = 4
    kv_heads: int = 2  # 0: k is None
    dim: int = 16
    rotary_dim: int = 16
    interleaved: bool = False
    layout: str = "blhd"
    packed: bool = False  # q and k are [tokens, heads, dim]
    positions: str = ""  # "", "batch" [batch, len] or "tokens" [tokens]
    gathered: bool = False
    rows: int = 40  # of the table
    place_q: str = "contiguous"
    place_k: str = "contiguous"
    place_out: str = "contiguous"
    inplace: bool = False
    index: type = np.int64

    @property
    def key(self):
        return repr(self)


def check_rotated(got, before, cos, sin, interleaved, dt, what=""):
    """Rotation in float32, rounded once; the rest to the bit. got, before: storage [batch, len, heads, dim]."""
    want = reference.rotate(dt.decode(before), cos, sin, interleaved)
    size = reference.rotate(
        np.abs(dt.decode(before)), np.abs(cos), -np.abs(sin), interleaved
    )  # |x cos| + |y sin| of first parts
    other = reference.rotate(np.abs(dt.decode(before)), np.abs(cos), np.abs(sin), interleaved)
    size = np.maximum(np.abs(size), np.abs(other))
    r = 2 * cos.shape[-1]
    error = np.abs(dt.decode(got) - want)
    allowed = np.abs(want) * dt.eps / 2 + 4 * 2.0**-24 * size * (1 + dt.eps) + dt.tiny
    over = error[..., :r] > allowed[..., :r]
    assert not over.any(), (
        f"{what}: off by {error[..., :r][over].max():.3e}, allowed {allowed[..., :r][over].min():.3e}"
    )
    assert not np.isnan(dt.decode(got)).any()
    assert np.array_equal(bits(got[..., r:]), bits(before[..., r:])), f"{what}: the rest does not pass through"


def tables(c, r):
    """(cos and sin as stored, positions as given, the rows of every token in float64)."""
    shape = (c.batch, c.length, c.rotary_dim // 2) if c.gathered else (max(c.rows, c.length), c.rotary_dim // 2)
    angle = r.normal(size=shape) * 3
    cos, sin = c.table_dt.encode(np.cos(angle) * 1.2), c.table_dt.encode(np.sin(angle) * 1.2)
    positions = None
    if c.positions:
        positions = r.integers(0, shape[0], size=(c.batch, c.length)).astype(c.index)
    rows = [reference.rotary_rows(c.table_dt.decode(t), positions, c.batch, c.length) for t in (cos, sin)]
    if c.positions == "tokens":
        positions = positions.reshape(-1)
    return cos, sin, positions, rows


def form(x, c):
    return x.reshape((-1, *x.shape[2:])) if c.packed else blhd(x, c.layout)


def unform(x, c):
    return x.reshape((c.batch, c.length, *x.shape[1:])) if c.packed else blhd(x, c.layout)


def run(c):
    r = rng(c.key)
    cos, sin, positions, (cos_rows, sin_rows) = tables(c, r)
    if c.packed and not c.positions and not c.gathered:
        assert c.batch == 1, "packed tokens count their positions through"
    inputs, outputs = [], []
    for heads, place in ((c.heads, c.place_q), (c.kv_heads, c.place_k)):
        if heads:
            x = form(r.normal(size=(c.batch, c.length, heads, c.dim)), c)
            inputs.append(Placed(x.shape, c.dt, place, x))
            outputs.append(inputs[-1] if c.inplace else Placed(x.shape, c.dt, c.place_out))
        else:
            inputs.append(None)
            outputs.append(None)
    before = [None if x is None else x.array.copy() for x in inputs]
    given = [None if x is None else x.give() for x in inputs]
    targets = given if c.inplace else [None if x is None else x.give() for x in outputs]
    how = {"inplace": True} if c.inplace else {"out": tuple(targets)}
    result = dlattn.rotary_embedding(
        *given,
        c.table_dt.give(cos),
        c.table_dt.give(sin),
        positions=positions,
        interleaved=c.interleaved,
        layout=c.layout,
        **how,
    )
    for got, target, x, out, old in zip(result, targets, inputs, outputs, before, strict=True):
        assert got is target
        if x is not None:
            assert out.intact(), f"{c.key}: written outside the output"
            assert c.inplace or x.unchanged(), f"{c.key}: an input was written"
            check_rotated(unform(out.array, c), unform(old, c), cos_rows, sin_rows, c.interleaved, c.dt, c.key)
    return outputs
