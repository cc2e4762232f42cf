"""Offsets beyond 2^31 elements on every axis: addresses are reserved, only the pages that hold elements are touched."""

import numpy as np
import pytest

import dlattn
from harness import rng

STEP = 2**30 + 8  # elements; three of them on an axis pass 2^31


@pytest.fixture(scope="module")
def memory():
    return np.empty(2 * STEP + 2**16, np.float16)


def spread(memory, values, axis, start=0):
    """`values` in `memory` with stride STEP on one axis, contiguous on the others."""
    strides = [0] * values.ndim
    step = 1
    for i in reversed(range(values.ndim)):
        strides[i] = 2 * (STEP if i == axis else step)
        step *= 1 if i == axis else values.shape[i]
    view = np.lib.stride_tricks.as_strided(memory[start:], values.shape, strides)
    view[...] = values
    return view


def half(r, *shape):
    return r.normal(size=shape).astype(np.float16)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("tensor", ["q", "k", "v", "out"])
@pytest.mark.parametrize("len_q", [1, 3, 40])
def test_attention(memory, tensor, axis, len_q):
    r = rng("large", tensor, axis)
    batch = heads = 3
    if tensor in ("q", "out") and axis == 1:
        len_q = min(len_q, 3)  # as far apart as the buffer goes
    len_k = 3 if axis == 1 and tensor in ("k", "v") else 20
    x = {
        "q": half(r, batch, len_q, heads, 8),
        "k": half(r, batch, len_k, heads, 8),
        "v": half(r, batch, len_k, heads, 8),
    }
    for function in (dlattn.attn_prefill, dlattn.attn_decode):
        want = function(x["q"], x["k"], x["v"])
        far = dict(x)
        if tensor == "out":
            out = spread(memory, np.zeros_like(want), axis)
            function(x["q"], x["k"], x["v"], out=out)
            assert np.array_equal(out, want)
        else:
            far[tensor] = spread(memory, x[tensor], axis)
            assert np.array_equal(function(far["q"], far["k"], far["v"]), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_paged(memory, axis):
    """Pages, rows of a page and heads."""
    r = rng("large paged", axis)
    cache, q = half(r, 3, 3, 3, 8), half(r, 1, 1, 3, 8)
    table, lens = np.array([[2, 0, 1]], np.int32), np.array([8], np.int32)
    want = dlattn.attn_paged_decode(q, cache, cache, table, lens)
    far = spread(memory, cache, axis)
    assert np.array_equal(dlattn.attn_paged_decode(q, far, cache, table, lens), want)
    assert np.array_equal(dlattn.attn_paged_decode(q, cache, far, table, lens), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(memory, axis, interleaved):
    r = rng("large rotary", axis)
    x, cos = half(r, 3, 3, 3, 8), half(r, 3, 4)
    want, _ = dlattn.rotary_embedding(x, None, cos, cos, interleaved=interleaved)
    far = spread(memory, x, axis)
    got, _ = dlattn.rotary_embedding(far, None, cos, cos, interleaved=interleaved)
    assert np.array_equal(got, want)
    dlattn.rotary_embedding(far, None, cos, cos, interleaved=interleaved, inplace=True)
    assert np.array_equal(far, want)
    table = spread(memory, cos, 0)
    got, _ = dlattn.rotary_embedding(x, None, table, table, interleaved=interleaved)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_append(memory, axis):
    r = rng("large append", axis)
    k, slots = half(r, 4, 3, 8), np.array([8, 3, 0, 7], np.int64)
    near = [np.zeros((3, 3, 3, 8), np.float16) for _ in range(2)]
    dlattn.append_kv(k, k, *near, slots)
    far, other = spread(memory, np.zeros_like(near[0]), axis), np.zeros_like(near[0])
    dlattn.append_kv(k, k, far, other, slots)
    assert np.array_equal(far, near[0])
    other[...] = far[...] = 0
    dlattn.append_kv(k, k, other, far, slots)
    assert np.array_equal(far, near[1])


@pytest.mark.parametrize("axis", [0, 1])
def test_varlen(memory, axis):
    r = rng("large varlen", axis)
    q, k, cu = half(r, 3, 3, 8), half(r, 3, 3, 8), np.array([0, 1, 3], np.int32)
    want = dlattn.attn_varlen(q, k, k, cu, cu)
    far = spread(memory, k, axis)
    assert np.array_equal(dlattn.attn_varlen(q, far, k, cu, cu), want)
    assert np.array_equal(dlattn.attn_varlen(q, k, far, cu, cu), want)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_mask(memory, axis):
    r = rng("large mask", axis)
    q, k = half(r, 3, 3, 3, 8), half(r, 3, 3, 3, 8)
    mask = half(r, 3, 3, 3, 3)
    want = dlattn.attention(q, k, k, mask=mask)
    assert np.array_equal(dlattn.attention(q, k, k, mask=spread(memory, mask, axis)), want)
