"""merge_attention_states: partial results over disjoint keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlattn
import reference
from attention_case import blhd
from harness import DTYPES, F32, PLACEMENTS, Eager, Placed, bits, check_lse, check_out, rng

dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)


def run(
    dt,
    count=3,
    batch=2,
    length=5,
    heads=3,
    dim=8,
    layout="blhd",
    packed=False,
    place="contiguous",
    place_out="contiguous",
    empty=0.2,
    spread=3.0,
):
    """Random states, some rows of some states empty and full of NaN."""
    r = rng("merge", str(dt), count, batch, length, heads, dim, layout, packed, place, place_out, empty, spread)
    lses = (r.normal(size=(count, batch, heads, length)) * spread).astype(np.float32)
    lses[r.random(lses.shape) < empty] = -np.inf
    outs = r.normal(size=(count, batch, length, heads, dim))
    outs[np.isneginf(lses).transpose(0, 1, 3, 2)] = np.nan
    form = (lambda x: x[0]) if packed else (lambda x: blhd(x, layout))
    given_outs = [Placed(form(o).shape, dt, place, form(o)) for o in outs]
    given_lses = [Placed((lse[0] if packed else lse).shape, F32, place, lse[0] if packed else lse) for lse in lses]
    exact = reference.merge(dt.round(outs), lses.astype(np.float64))
    out, lse = Placed(given_outs[0].array.shape, dt, place_out), Placed(given_lses[0].array.shape, F32, "contiguous")
    target = out.give()
    result = dlattn.merge_attention_states(
        [x.give() for x in given_outs], [x.array for x in given_lses], layout=layout, out=(target, lse.array)
    )
    assert result[0] is target
    assert result[1] is lse.array
    assert out.intact()
    assert lse.intact()
    assert all(x.unchanged() for x in given_outs + given_lses)
    rounded = reference.Result(dt.round(exact.out), exact.lse)
    got = out.values()[None] if packed else blhd(out.values(), layout)
    check_out(got, exact, Eager(lambda order: rounded), dt)
    check_lse(lse.array[None] if packed else lse.array, exact.lse, dt)
    return out.array


@dtypes
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_counts(dt, layout, count):
    run(dt, count=count, layout=layout)
    run(dt, count=count, batch=1, packed=True)
    run(dt, count=count, layout=layout, empty=0.9)


@dtypes
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_strides(dt, placement):
    for layout in ("blhd", "bhld"):
        run(dt, layout=layout, place_out=placement)
        run(dt, layout=layout, place=placement)


@given(
    st.sampled_from(DTYPES),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(0, 20),
    st.integers(1, 5),
    st.integers(1, 256),
    st.sampled_from(["blhd", "bhld"]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 3.0, 100.0]),
)
def test_anything(dt, count, batch, length, heads, dim, layout, empty, spread):
    run(dt, count, batch, length, heads, dim, layout, empty=empty, spread=spread)


@dtypes
def test_parts_of_an_attention_make_the_whole(dt):
    r = rng("parts", str(dt))
    q, k, v = (dt.encode(r.normal(size=s)) for s in [(2, 3, 4, 16), (2, 90, 2, 16), (2, 90, 2, 8)])
    exact = reference.attention(*map(dt.decode, (q, k, v)))
    outs, lses = [], []
    for keys in (slice(0, 0), slice(0, 13), slice(13, 64), slice(64, 90)):
        out, lse = Placed((2, 3, 4, 8), dt), Placed((2, 4, 3), F32)
        dlattn.attention(
            dt.give(q), dt.give(k[:, keys]), dt.give(v[:, keys]), out=(out.give(), lse.array), return_lse=True
        )
        outs.append(out.give())
        lses.append(lse.array)
    out, lse = Placed((2, 3, 4, 8), dt), Placed((2, 4, 3), F32)
    dlattn.merge_attention_states(outs, lses, out=(out.give(), lse.array))
    assert np.abs(out.values() - exact.out).max() <= 3 * dt.eps * exact.size
    check_lse(lse.array, exact.lse, dt)


def test_stacked_arrays_and_new_outputs():
    r = rng("stacked")
    outs = r.normal(size=(3, 2, 5, 4, 8)).astype(np.float32)
    lses = r.normal(size=(3, 2, 4, 5)).astype(np.float32)
    stacked = dlattn.merge_attention_states(outs, lses)
    listed = dlattn.merge_attention_states(list(outs), tuple(lses))
    assert stacked[0].shape == (2, 5, 4, 8)
    assert stacked[1].shape == (2, 4, 5)
    assert stacked[1].dtype == np.float32
    assert all(np.array_equal(a, b) for a, b in zip(stacked, listed, strict=True))


def test_the_first_state_may_be_the_output():
    r = rng("merge alias")
    outs, lses = r.normal(size=(2, 1, 5, 4, 8)).astype(np.float32), r.normal(size=(2, 1, 4, 5)).astype(np.float32)
    want = dlattn.merge_attention_states(outs, lses)
    got = dlattn.merge_attention_states(outs, lses, out=(outs[0], lses[0]))
    assert np.array_equal(outs[0], want[0])
    assert np.array_equal(got[1], want[1])


def test_visible_nan_propagates():
    outs, lses = np.ones((2, 1, 2, 1, 4), np.float32), np.zeros((2, 1, 1, 2), np.float32)
    outs[1, 0, 1, 0, 2] = np.nan
    out, lse = dlattn.merge_attention_states(outs, lses)
    assert np.argwhere(np.isnan(out)).tolist() == [[0, 1, 0, 2]]
    assert np.isfinite(lse).all()
    lses[0, 0, 0, 0] = np.nan
    out, lse = dlattn.merge_attention_states(outs, lses)
    assert np.isnan(out[0, 0]).all()
    assert np.isnan(lse[0, 0, 0])
    assert np.isfinite(lse[0, 0, 1])


@dtypes
def test_same_bits_for_any_number_of_threads(dt):
    before, results = dlattn.get_num_threads(), []
    try:
        for threads in (1, 2, 2, 3):
            dlattn.set_num_threads(threads)
            results.append(bits(run(dt, length=200, dim=64)).tobytes())
    finally:
        dlattn.set_num_threads(before)
    assert all(x == results[0] for x in results)
