"""rotary_embedding and apply_rotary_emb."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlattn
from harness import DTYPES, F32, PLACEMENTS, Placed, bits, rng
from rotary_case import Rotary, check_rotated, run

dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
styles = pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])


@dtypes
@styles
@pytest.mark.parametrize("table_dt", DTYPES, ids=str)
def test_table_dtype_is_free(dt, table_dt, interleaved):
    run(Rotary(dt=dt, table_dt=table_dt, interleaved=interleaved, positions="batch"))


@dtypes
@styles
@pytest.mark.parametrize(
    ("dim", "rotary_dim"),
    [
        (2, 2),
        (3, 2),
        (8, 0),
        (8, 6),
        (16, 4),
        (33, 20),
        (64, 64),
        (80, 20),
        (96, 24),
        (128, 64),
        (192, 64),
        (256, 256),
        (255, 254),
    ],
)
def test_rotary_dims(dt, interleaved, dim, rotary_dim):
    for inplace in (False, True):
        run(Rotary(dt=dt, interleaved=interleaved, dim=dim, rotary_dim=rotary_dim, inplace=inplace))


@dtypes
@styles
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_strides(dt, interleaved, layout, placement):
    for tensor in ("place_q", "place_k", "place_out"):
        run(Rotary(dt=dt, interleaved=interleaved, layout=layout, positions="batch", **{tensor: placement}))
    run(Rotary(dt=dt, interleaved=interleaved, layout=layout, inplace=True, place_q=placement, place_k=placement))


@dtypes
@styles
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("where", ["default", "batch", "tokens", "gathered"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_positions(dt, interleaved, packed, where, index):
    if packed and where == "batch":  # packed tokens have positions [tokens]
        where = "tokens"
    run(
        Rotary(
            dt=dt,
            interleaved=interleaved,
            packed=packed,
            batch=1 if packed and where in ("default", "gathered") else 3,
            positions=where if where in ("batch", "tokens") else "",
            gathered=where == "gathered",
            index=index,
        )
    )


@dtypes
@styles
def test_heads_and_lengths(dt, interleaved):
    for length in (0, 1, 7, 31, 32, 33, 129, 513):
        run(Rotary(dt=dt, interleaved=interleaved, length=length, heads=3, kv_heads=1, dim=8, rotary_dim=8))
    for kv_heads in (0, 1, 5):  # k is None, or has heads of its own number
        run(Rotary(dt=dt, interleaved=interleaved, heads=1, kv_heads=kv_heads))
    run(Rotary(dt=dt, interleaved=interleaved, batch=0))


@st.composite
def cases(draw):
    dim = draw(st.integers(1, 96))
    packed = draw(st.booleans())
    where = draw(st.sampled_from(["", "tokens"] if packed else ["", "batch", "tokens"]))
    gathered = draw(st.booleans()) and not where and not packed
    place = st.sampled_from(list(PLACEMENTS))
    return Rotary(
        dt=draw(st.sampled_from(DTYPES)),
        table_dt=draw(st.sampled_from(DTYPES)),
        batch=1 if packed and not where else draw(st.integers(0, 3)),
        length=draw(st.integers(0, 35)),
        heads=draw(st.integers(1, 6)),
        kv_heads=draw(st.integers(0, 4)),
        dim=dim,
        rotary_dim=2 * draw(st.integers(0, dim // 2)),
        interleaved=draw(st.booleans()),
        layout=draw(st.sampled_from(["blhd", "bhld"])),
        packed=packed,
        positions=where,
        gathered=gathered,
        place_q=draw(place),
        place_k=draw(place),
        place_out=draw(place),
        inplace=draw(st.booleans()),
        index=draw(st.sampled_from([np.int32, np.int64])),
    )


@given(cases())
def test_anything(case):
    run(case)


def test_table_may_be_a_view():
    """cos and sin as two halves of one table, as vLLM and others keep them."""
    r = rng("table view")
    both = r.normal(size=(20, 16)).astype(np.float32)
    q, k = r.normal(size=(1, 5, 2, 16)).astype(np.float32), r.normal(size=(1, 5, 1, 16)).astype(np.float32)
    got = dlattn.rotary_embedding(q, k, both[:, :8], both[:, 8:], interleaved=False)
    want = dlattn.rotary_embedding(q, k, both[:, :8].copy(), both[:, 8:].copy(), interleaved=False)
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_gathered_rows_may_be_shared_by_the_batch():
    r = rng("gathered")
    rows = r.normal(size=(1, 5, 8)).astype(np.float32)
    q = r.normal(size=(3, 5, 2, 16)).astype(np.float32)
    shared = np.broadcast_to(rows, (3, 5, 8))
    got, none = dlattn.rotary_embedding(q, None, shared, shared, interleaved=True)
    assert none is None
    check_rotated(got, q, shared.astype(np.float64), shared.astype(np.float64), True, F32)


def test_new_outputs_leave_the_inputs_alone():
    r = rng("rotary outputs")
    q, k = r.normal(size=(2, 5, 4, 16)).astype(np.float16), r.normal(size=(2, 5, 2, 16)).astype(np.float16)
    cos, sin = r.normal(size=(9, 8)).astype(np.float32), r.normal(size=(9, 8)).astype(np.float32)
    before = q.copy(), k.copy()
    q2, k2 = dlattn.rotary_embedding(q, k, cos, sin, interleaved=False)
    assert type(q2) is np.ndarray
    assert q2.dtype == np.float16
    assert q2.shape == q.shape
    assert k2.shape == k.shape
    assert np.array_equal(q, before[0])
    assert np.array_equal(k, before[1])
    q3, k3 = dlattn.rotary_embedding(q, k, cos, sin, interleaved=False, inplace=True)
    assert q3 is q
    assert k3 is k
    assert np.array_equal(bits(q), bits(q2))
    assert np.array_equal(bits(k), bits(k2))


def test_out_may_be_the_input():
    """out=(q, k) is the same as inplace=True."""
    r = rng("rotary alias")
    q, k = r.normal(size=(2, 5, 4, 16)).astype(np.float32), r.normal(size=(2, 5, 2, 16)).astype(np.float32)
    cos, sin = r.normal(size=(9, 8)).astype(np.float32), r.normal(size=(9, 8)).astype(np.float32)
    want = dlattn.rotary_embedding(q, k, cos, sin, interleaved=True)
    got = dlattn.rotary_embedding(q, k, cos, sin, interleaved=True, out=(q, k))
    assert got[0] is q
    assert got[1] is k
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


@dtypes
@styles
def test_same_bits_for_any_number_of_threads(dt, interleaved):
    before, results = dlattn.get_num_threads(), []
    try:
        for threads in (1, 2, 2, 3):
            dlattn.set_num_threads(threads)
            outputs = run(
                Rotary(dt=dt, interleaved=interleaved, batch=2, length=300, dim=64, rotary_dim=64, positions="batch")
            )
            results.append([bits(x.array).tobytes() for x in outputs])
    finally:
        dlattn.set_num_threads(before)
    assert all(r == results[0] for r in results)


@dtypes
def test_apply_rotary_emb(dt):
    """Interleaved pairs, float32 tables, 3-D or 4-D, a new array in the dtype of x."""
    if dt.name == "bfloat16":
        pytest.importorskip("ml_dtypes")
        dt = replace(dt, via="ml_dtypes")
    r = rng("apply", str(dt))
    cos, sin = (r.normal(size=(7, 8)).astype(np.float32) for _ in range(2))
    for shape in ((2, 7, 3, 16), (7, 3, 16), (2, 7, 3, 20)):
        x = dt.encode(r.normal(size=shape))
        before = x.copy()
        y = dlattn.apply_rotary_emb(dt.give(x), (cos, sin))
        assert y.dtype == dt.give(x).dtype
        assert y.shape == shape
        assert np.array_equal(bits(x), bits(before))
        x, y = (t.reshape((-1, *shape[-3:])) for t in (x, y.view(dt.storage)))
        rows = [np.broadcast_to(t.astype(np.float64), (len(x), *t.shape)) for t in (cos, sin)]
        check_rotated(y, x, *rows, True, dt)


def test_nan_elements_stay_where_they_are():
    """A NaN reaches its own pair only."""
    q = Placed((1, 3, 2, 8), F32, values=np.ones((1, 3, 2, 8)))
    q.array[0, 1, 1, 2] = np.nan
    cos, sin = np.full((3, 4), 0.6, np.float32), np.full((3, 4), 0.8, np.float32)
    for interleaved, partner in ((True, 3), (False, 6)):
        out, _ = dlattn.rotary_embedding(q.array, None, cos, sin, interleaved=interleaved)
        assert {tuple(i) for i in np.argwhere(np.isnan(out))} == {(0, 1, 1, 2), (0, 1, 1, partner)}
