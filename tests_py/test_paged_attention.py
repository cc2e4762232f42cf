"""attn_paged_decode and attn_paged_prefill: keys in pages, poison around them, absurd ids in the table's tails."""

import numpy as np
import pytest
from hypothesis import given

import dlattn
from harness import DTYPES, F32, PLACEMENTS, bits, rng
from paged_case import INF, NAN, Ragged, cumulative, run
from strategies import ragged_cases
from test_varlen import OPTIONS

dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
decode = pytest.mark.parametrize("decode", [True, False], ids=["decode", "prefill"])


def queries(decode, *lens):
    return (lens[0],) * len(lens) if decode else lens


@dtypes
@decode
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("name", OPTIONS)
def test_option(dt, decode, index, name):
    lens_k = (35, 70, 8, 0, 2)
    for lens_q in {queries(decode, 1, 20, 0, 33, 4), queries(decode, 5, 1, 0, 33, 4)}:
        run(Ragged(dt=dt, lens_q=lens_q, lens_k=lens_k, page_size=16, decode=decode, index=index, **OPTIONS[name]))


@dtypes
@decode
@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 16, 17, 32, 64, 128, 256, 1000])
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_page_sizes(dt, decode, page_size, layout):
    lens_k = (1, page_size - 1, page_size, page_size + 1, 3 * page_size)
    lens_q = queries(decode, 2, 1, 9, 4, 3)
    run(
        Ragged(
            dt=dt,
            lens_q=lens_q,
            lens_k=lens_k,
            page_size=page_size,
            decode=decode,
            layout=layout,
            heads=2,
            kv_heads=1,
            options={"is_causal": True},
        )
    )


@dtypes
@decode
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_strides(dt, decode, layout, placement):
    for tensor in ("place_q", "place_k", "place_v", "place_out"):
        run(
            Ragged(
                dt=dt,
                lens_q=queries(decode, 3, 9),
                lens_k=(12, 31),
                page_size=8,
                decode=decode,
                layout=layout,
                **{tensor: placement},
            )
        )


@dtypes
@decode
@pytest.mark.parametrize("edge", [1, 7, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 512, 513])
def test_length_edges(dt, decode, edge):
    run(
        Ragged(
            dt=dt,
            lens_q=queries(decode, 1, 5),
            lens_k=(edge, edge + 3),
            page_size=16,
            decode=decode,
            heads=2,
            kv_heads=1,
        )
    )


@dtypes
@pytest.mark.parametrize("group", range(1, 17))
def test_group_ratios(dt, group):
    for lens_q in ((1, 1), (3, 3)):
        run(
            Ragged(
                dt=dt,
                lens_q=lens_q,
                lens_k=(50, 70),
                heads=2 * group,
                page_size=16,
                decode=True,
                options={"is_causal": True},
            )
        )


@dtypes
@decode
@pytest.mark.parametrize(
    ("dim", "dim_v"),
    [(1, 1), (8, 256), (256, 3), (33, 40), (64, 64), (80, 80), (96, 128), (128, 128), (192, 128), (255, 7)],
)
def test_head_dims(dt, decode, dim, dim_v):
    run(Ragged(dt=dt, lens_q=queries(decode, 1, 6), lens_k=(50, 70), dim=dim, dim_v=dim_v, page_size=16, decode=decode))


@dtypes
@decode
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_page_tails_and_unused_pages_never_matter(dt, decode, poison):
    run(Ragged(dt=dt, lens_q=queries(decode, 1, 6, 2), lens_k=(50, 0, 17), page_size=16, decode=decode, poison=poison))


@decode
def test_sizes_of_zero(decode):
    for dt in DTYPES:
        for lens_q, lens_k in [((), ()), ((0,), (0,)), ((3, 3), (0, 0)), ((0, 0), (5, 0))]:
            for more in (0, 2):
                run(Ragged(dt=dt, lens_q=lens_q, lens_k=lens_k, page_size=4, decode=decode, more_pages=more))
                run(
                    Ragged(dt=dt, lens_q=lens_q, lens_k=lens_k, page_size=4, decode=decode, more_pages=more, sinks=True)
                )


@given(ragged_cases(paged=True, decode=True))
def test_any_decode(case):
    run(case)


@given(ragged_cases(paged=True))
def test_any_prefill(case):
    run(case)


@dtypes
@decode
def test_same_bits_for_any_number_of_threads(dt, decode):
    case = Ragged(
        dt=dt,
        lens_q=queries(decode, 1, 33, 5),
        lens_k=(2000, 40, 700),
        page_size=16,
        decode=decode,
        options={"is_causal": True},
    )
    before, results = dlattn.get_num_threads(), []
    try:
        for threads in (1, 2, 2, 3):
            dlattn.set_num_threads(threads)
            results.append([bits(x).tobytes() for x in run(case)])
    finally:
        dlattn.set_num_threads(before)
    assert all(r == results[0] for r in results)


def test_one_page_may_serve_several_sequences():
    """A shared prefix: the same page id in several rows of the table."""
    r = rng("prefix")
    q = r.normal(size=(2, 1, 2, 8)).astype(np.float32)
    cache = r.normal(size=(3, 4, 1, 8)).astype(np.float32)
    table, lens = np.array([[2, 0], [2, 1]], np.int32), np.array([7, 6], np.int32)
    out = dlattn.attn_paged_decode(q, cache, cache, table, lens)
    for b in range(2):
        keys = cache[table[b]].reshape(1, 8, 1, 8)[:, : lens[b]]
        np.testing.assert_allclose(out[b], dlattn.attention(q[b : b + 1], keys, keys)[0], rtol=1e-5, atol=1e-6)


def test_k_and_v_interleaved_in_one_cache():
    """One buffer [pages, 2, page_size, heads, dim] seen as two caches."""
    r = rng("one cache")
    pool = r.normal(size=(5, 2, 4, 2, 8)).astype(np.float32)
    q = r.normal(size=(1, 2, 4, 8)).astype(np.float32)
    table, lens = np.array([[3, 1]], np.int64), np.array([6], np.int64)
    got = dlattn.attn_paged_decode(q, pool[:, 0], pool[:, 1], table, lens, is_causal=True)
    want = dlattn.attn_paged_decode(q, pool[:, 0].copy(), pool[:, 1].copy(), table, lens, is_causal=True)
    assert np.array_equal(got, want)


def test_strided_table():
    """A slice of a larger table."""
    r = rng("table")
    cache = r.normal(size=(6, 4, 1, 8)).astype(np.float32)
    q = r.normal(size=(2, 1, 1, 8)).astype(np.float32)
    big = np.full((5, 9), 1_000_000, np.int32)
    big[1:4:2, 2:5] = [[0, 3, 5], [4, 2, 1]]
    lens = np.array([11, 9], np.int32)
    got = dlattn.attn_paged_decode(q, cache, cache, big[1:4:2, 2:5], lens)
    assert np.array_equal(got, dlattn.attn_paged_decode(q, cache, cache, big[1:4:2, 2:5].copy(), lens))


def test_new_outputs():
    r = rng("paged outputs")
    cache = r.normal(size=(6, 4, 2, 8)).astype(np.float32)
    values = r.normal(size=(6, 4, 2, 5)).astype(np.float32)
    table, lens = np.array([[0, 3, 5], [4, 2, 1]], np.int32), np.array([11, 9], np.int32)
    q = r.normal(size=(2, 3, 4, 8)).astype(np.float32)
    out, lse = dlattn.attn_paged_decode(q, cache, values, table, lens, is_causal=True, return_lse=True)
    assert out.shape == (2, 3, 4, 5)
    assert lse.shape == (2, 4, 3)
    assert lse.dtype == np.float32
    packed, packed_lse = dlattn.attn_paged_prefill(
        q.reshape(6, 4, 8), cache, values, table, lens, cumulative((3, 3), 0, np.int32), is_causal=True, return_lse=True
    )
    assert packed.shape == (6, 4, 5)
    assert packed_lse.shape == (4, 6)
    np.testing.assert_allclose(packed.reshape(out.shape), out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(packed_lse.reshape(4, 2, 3).transpose(1, 0, 2), lse, rtol=1e-5, atol=1e-6)
    swapped = dlattn.attn_paged_decode(
        q.transpose(0, 2, 1, 3),
        cache.transpose(0, 2, 1, 3),
        values.transpose(0, 2, 1, 3),
        table,
        lens,
        is_causal=True,
        layout="bhld",
    )
    assert swapped.shape == (2, 4, 3, 5)
    np.testing.assert_allclose(swapped.transpose(0, 2, 1, 3), out, rtol=1e-5, atol=1e-6)


def test_decode_of_a_long_cache_against_the_oracle():
    run(Ragged(dt=F32, lens_q=(1,), lens_k=(20000,), heads=8, kv_heads=1, dim=64, dim_v=64, page_size=64, decode=True))
