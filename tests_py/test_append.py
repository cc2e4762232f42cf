"""append_kv and rotary_append_kv: new tokens into a paged cache, to the bit and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlattn
import reference
from attention_case import blhd
from harness import DTYPES, F32, PLACEMENTS, Placed, bits, rng
from rotary_case import Rotary, check_rotated, tables

dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
layouts = pytest.mark.parametrize("layout", ["blhd", "bhld"])


def random_slots(r, tokens, capacity, index):
    """Different slots in a random order, every fourth token skipped."""
    slots = r.permutation(capacity)[:tokens].astype(index)
    slots[::4] = -1
    return slots


def run(
    dt,
    batch=2,
    length=5,
    kv_heads=2,
    dim=16,
    dim_v=8,
    page_size=4,
    num_pages=6,
    layout="blhd",
    packed=False,
    index=np.int64,
    place="contiguous",
    place_cache="contiguous",
    flat=False,
):
    r = rng(
        "append", str(dt), batch, length, kv_heads, dim, dim_v, page_size, num_pages, layout, packed, place, place_cache
    )
    slots = random_slots(r, batch * length, page_size * num_pages, index)
    placed, caches, wanted = [], [], []
    for d in (dim, dim_v):
        x = r.normal(size=(batch, length, kv_heads, d))
        x[r.random(x.shape) < 0.05] = np.nan  # bits are copied, whatever they are
        x = x.reshape((-1, *x.shape[2:])) if packed else blhd(x, layout)
        placed.append(Placed(x.shape, dt, place, x))
        old = r.normal(size=blhd(np.empty((num_pages, page_size, kv_heads, d)), layout).shape)
        caches.append(Placed(old.shape, dt, place_cache, old))
        tokens = placed[-1].array if packed else blhd(placed[-1].array, layout).reshape(-1, kv_heads, d)
        wanted.append(reference.append(tokens, blhd(caches[-1].array, layout), slots))
    mapping = slots if packed or flat else slots.reshape(batch, length)
    result = dlattn.append_kv(*(x.give() for x in placed), *(x.give() for x in caches), mapping, layout=layout)
    assert result is None
    for x, cache, want in zip(placed, caches, wanted, strict=True):
        assert np.array_equal(bits(blhd(cache.array, layout)), bits(want))
        assert cache.intact()
        assert x.unchanged()


@dtypes
@layouts
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_forms(dt, layout, index):
    run(dt, layout=layout, index=index)
    run(dt, layout=layout, index=index, flat=True)
    run(dt, layout=layout, index=index, packed=True)


@dtypes
@layouts
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_strides(dt, layout, placement):
    run(dt, layout=layout, place=placement)
    run(dt, layout=layout, place_cache=placement)


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 3),
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([1, 2, 3, 16, 17]),
    st.sampled_from(["blhd", "bhld"]),
    st.booleans(),
    st.sampled_from(list(PLACEMENTS)),
    st.sampled_from(list(PLACEMENTS)),
)
def test_anything(dt, batch, length, kv_heads, dim, dim_v, page_size, layout, packed, place, place_cache):
    pages = -(-batch * length // page_size) + 1
    run(dt, batch, length, kv_heads, dim, dim_v, page_size, pages, layout, packed, place=place, place_cache=place_cache)


@dtypes
def test_empty_and_skipped(dt):
    run(dt, length=0)
    run(dt, batch=0, num_pages=0)
    k = Placed((3, 2, 8), dt, values=np.ones((3, 2, 8)))
    caches = [Placed((2, 4, 2, 8), dt) for _ in range(2)]
    dlattn.append_kv(k.give(), k.give(), *(x.give() for x in caches), np.full(3, -1, np.int32))
    assert all(x.unchanged() for x in caches)


def test_a_cache_filled_token_by_token_is_what_decode_reads():
    r = rng("fill")
    k, v, q = (r.normal(size=(1, 9, 2, 8)).astype(np.float32) for _ in range(3))
    k_cache, v_cache = (np.full((4, 4, 2, 8), np.nan, np.float32) for _ in range(2))
    table = np.array([[3, 0, 2]], np.int32)
    for t in range(9):
        slot = np.array([table[0, t // 4] * 4 + t % 4], np.int64)
        dlattn.append_kv(k[0, t : t + 1], v[0, t : t + 1], k_cache, v_cache, slot)
        got = dlattn.attn_paged_decode(q[:, t : t + 1], k_cache, v_cache, table, np.array([t + 1], np.int32))
        want = dlattn.attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@dtypes
@layouts
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("with_positions", [False, True])
@pytest.mark.parametrize("placement", ["contiguous", "packed", "reversed"])
def test_rotary_append(dt, layout, interleaved, packed, with_positions, placement):
    c = Rotary(
        dt=dt,
        batch=1 if packed and not with_positions else 2,
        interleaved=interleaved,
        layout=layout,
        packed=packed,
        positions="tokens" if packed else "batch",
        rotary_dim=12,
    )
    if not with_positions:
        c.positions = ""
    r = rng("rotary append", c.key, placement)
    cos, sin, positions, rows = tables(c, r)
    form = (lambda x: x.reshape((-1, *x.shape[2:]))) if packed else (lambda x: blhd(x, layout))
    unform = (lambda x: x.reshape((c.batch, c.length, *x.shape[1:]))) if packed else (lambda x: blhd(x, layout))
    shapes = [(c.batch, c.length, n, d) for n, d in ((c.heads, c.dim), (c.kv_heads, c.dim), (c.kv_heads, 24))]
    values = [form(r.normal(size=s)) for s in shapes]
    q, k, v = (Placed(x.shape, dt, placement, x) for x in values)
    old_k, old_v = (r.normal(size=(5, 3, c.kv_heads, d)) for d in (c.dim, 24))
    k_cache, v_cache = (Placed(blhd(x, layout).shape, dt, placement, blhd(x, layout)) for x in (old_k, old_v))
    before = k_cache.array.copy(), v_cache.array.copy()
    slots = random_slots(r, c.batch * c.length, 15, np.int32)
    mapping = slots if packed else slots.reshape(c.batch, c.length)
    out = Placed(q.array.shape, dt, placement)
    target = out.give()
    result = dlattn.rotary_append_kv(
        q.give(),
        k.give(),
        v.give(),
        cos,
        sin,
        positions,
        k_cache.give(),
        v_cache.give(),
        mapping,
        interleaved=interleaved,
        layout=layout,
        out=target,
    )
    assert result is target
    assert out.intact()
    assert k_cache.intact()
    assert v_cache.intact()
    assert q.unchanged()
    assert k.unchanged()
    assert v.unchanged()
    check_rotated(unform(out.array), unform(q.array), *rows, interleaved, dt)
    # v is copied to the bit; k equals what rotary_embedding makes of it, to the bit
    tokens_v = unform(v.array).reshape(-1, c.kv_heads, 24)
    assert np.array_equal(
        bits(blhd(v_cache.array, layout)), bits(reference.append(tokens_v, blhd(before[1], layout), slots))
    )
    rotated = Placed(k.array.shape, dt)
    dlattn.rotary_embedding(
        k.give(),
        None,
        cos,
        sin,
        positions=positions,
        interleaved=interleaved,
        layout=layout,
        out=(rotated.give(), None),
    )
    check_rotated(unform(rotated.array), unform(k.array), *rows, interleaved, dt)
    tokens_k = unform(rotated.array).reshape(-1, c.kv_heads, c.dim)
    assert np.array_equal(
        bits(blhd(k_cache.array, layout)), bits(reference.append(tokens_k, blhd(before[0], layout), slots))
    )


def test_rotary_append_makes_a_new_q():
    r = rng("rotary append new")
    q, k, v = (r.normal(size=(3, 2, 8)).astype(np.float32) for _ in "qkv")
    cos, sin = (r.normal(size=(9, 4)).astype(np.float32) for _ in "cs")
    cache = np.zeros((2, 4, 2, 8), np.float32)
    positions, slots = np.array([4, 0, 8], np.int64), np.array([0, 1, 7], np.int64)
    before = q.copy()
    got = dlattn.rotary_append_kv(q, k, v, cos, sin, positions, cache, cache.copy(), slots, interleaved=True)
    want, _ = dlattn.rotary_embedding(q, None, cos, sin, positions=positions, interleaved=True)
    assert np.array_equal(got, want)
    assert np.array_equal(q, before)


def test_rotary_append_skips_tokens_with_slot_minus_one():
    """The query of a skipped token is rotated all the same."""
    x = Placed((2, 1, 4), F32, values=np.ones((2, 1, 4)))
    caches = [Placed((1, 4, 1, 4), F32) for _ in range(2)]
    cos, sin = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    skip = np.array([-1, -1], np.int32)
    got = dlattn.rotary_append_kv(
        x.array, x.array, x.array, cos, sin, None, *(c.array for c in caches), skip, interleaved=True
    )
    assert all(c.unchanged() for c in caches)
    assert np.array_equal(got, np.broadcast_to(np.array([-1, 1, -1, 1], np.float32), got.shape))
