"""attn_varlen: ragged batches of packed tokens."""

import numpy as np
import pytest
from hypothesis import given

import dlattn
from harness import DTYPES, PLACEMENTS, bits, rng
from paged_case import INF, NAN, Ragged, cumulative, run
from strategies import ragged_cases

dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
OPTIONS = {
    "plain": {},
    "causal": {"options": {"is_causal": True}},
    "window": {"options": {"window": (6, 2)}},
    "softcap+scale": {"options": {"softcap": 3.0, "scale": 0.6}},
    "sinks": {"sinks": True},
    "alibi": {"alibi": 1},
    "alibi-batch": {"alibi": 2},
    "mask-2b": {"mask": "2b"},
    "mask-3f": {"mask": "3f"},
    "mask-4b": {"mask": "4b"},
    "mask-4f1": {"mask": "4f1"},
    "all": {"options": {"is_causal": True, "window": (9, -1), "softcap": 9.0}, "mask": "4f", "sinks": True, "alibi": 2},
}


@dtypes
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("name", OPTIONS)
def test_option(dt, index, name):
    run(Ragged(dt=dt, lens_q=(20, 1, 0, 33, 4), lens_k=(35, 70, 8, 0, 2), index=index, head_rows=2, **OPTIONS[name]))


@dtypes
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_strides(dt, placement):
    for tensor in ("place_q", "place_k", "place_v", "place_out"):
        run(Ragged(dt=dt, lens_q=(7, 9), lens_k=(12, 31), **{tensor: placement}))


@dtypes
@pytest.mark.parametrize("edge", [1, 7, 31, 32, 33, 127, 128, 129, 255, 257, 511, 513])
def test_length_edges(dt, edge):
    run(Ragged(dt=dt, lens_q=(edge, 1, 3), lens_k=(edge, edge, 2), heads=2, kv_heads=1, options={"is_causal": True}))


@dtypes
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_rows_of_nobody_are_neither_read_nor_written(dt, poison):
    run(Ragged(dt=dt, lens_q=(5, 17), lens_k=(40, 3), head_rows=3, poison=poison))


@pytest.mark.parametrize(
    ("lens_q", "lens_k"), [((), ()), ((0,), (0,)), ((0, 0), (5, 0)), ((4,), (0,)), ((0, 3, 0), (0, 0, 7))]
)
def test_sizes_of_zero(lens_q, lens_k):
    for dt in DTYPES:
        run(Ragged(dt=dt, lens_q=lens_q, lens_k=lens_k, sinks=True))
        run(Ragged(dt=dt, lens_q=lens_q, lens_k=lens_k, options={"is_causal": True}))


@given(ragged_cases(paged=False))
def test_anything(case):
    run(case)


@dtypes
def test_equals_dense_calls_and_same_bits_for_any_number_of_threads(dt):
    case = Ragged(dt=dt, lens_q=(130, 1, 40), lens_k=(300, 900, 40), options={"is_causal": True})
    before, results = dlattn.get_num_threads(), []
    try:
        for threads in (1, 2, 2, 3):
            dlattn.set_num_threads(threads)
            results.append([bits(x).tobytes() for x in run(case)])
    finally:
        dlattn.set_num_threads(before)
    assert all(r == results[0] for r in results)


def test_new_outputs():
    r = rng("varlen outputs")
    q, k, v = (r.normal(size=(9, 4, 8)).astype(np.float32) for _ in "qkv")
    cu = cumulative((4, 5), 0, np.int32)
    out, lse = dlattn.attn_varlen(q, k, v, cu, cu, is_causal=True, return_lse=True)
    assert out.shape == (9, 4, 8)
    assert lse.shape == (4, 9)
    assert lse.dtype == np.float32
    for rows in (slice(0, 4), slice(4, 9)):
        one, one_lse = dlattn.attention(q[None, rows], k[None, rows], v[None, rows], is_causal=True, return_lse=True)
        np.testing.assert_allclose(out[rows], one[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse[:, rows], one_lse[0], rtol=1e-5, atol=1e-6)
