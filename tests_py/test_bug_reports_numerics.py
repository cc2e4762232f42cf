"""Public bug reports about numbers: ranges, tails, merges, NaN, each as a test; the titles are the reports'."""

import math

import numpy as np
import pytest

import dlattn
from calls import attend, paged, ramp
from harness import BF16, DTYPES, F16, F32, Placed, bits, rng

FUNCTIONS = [dlattn.attention, dlattn.attn_prefill, dlattn.attn_decode]
functions = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
INF = math.inf


def int32(*values):
    return np.array(values, np.int32)


@dtypes
def test_br_07_non_causal_paged_decode_counts_padding_lanes(dt):
    cache, table = paged(np.ones((100, 8, 128)), 16)
    out, lse = attend(dt, np.zeros((1, 1, 8, 128)), cache, cache, table, int32(100), function=dlattn.attn_paged_decode)
    assert (out == 1).all()
    np.testing.assert_allclose(lse, math.log(100), rtol=1e-6)


@dtypes
@pytest.mark.parametrize(
    "function",
    [*FUNCTIONS, dlattn.attn_varlen, dlattn.attn_paged_decode, dlattn.attn_paged_prefill],
    ids=lambda f: f.__name__,
)
def test_br_08_finite_sentinel_instead_of_minus_infinity(dt, function):
    q, k, v = np.full((1, 1, 1, 128), 64.0), np.full((1, 10, 1, 128), -64.0), np.ones((1, 10, 1, 128))
    if function is dlattn.attn_varlen:
        out, lse = attend(dt, q[0], k[0], v[0], int32(0, 1), int32(0, 10), function=function)
    elif function in FUNCTIONS:
        out, lse = attend(dt, q, k, v, function=function)
    else:
        (k, table), (v, _) = paged(k[0], 16), paged(v[0], 16)
        if function is dlattn.attn_paged_decode:
            out, lse = attend(dt, q, k, v, table, int32(10), function=function)
        else:
            out, lse = attend(dt, q[0], k, v, table, int32(10), int32(0, 1), function=function)
    assert (out == 1).all()
    np.testing.assert_allclose(lse, -524288 / math.sqrt(128) + math.log(10), rtol=1e-6)


@functions
def test_br_10_huge_equal_bf16_inputs(function):
    x = np.full((1, 1, 1, 64), 133120.0)
    out, lse = attend(BF16, x, x, x, function=function)
    assert (out == 133120).all()
    np.testing.assert_allclose(lse, 1.41767475e11, rtol=1e-6)


@dtypes
def test_br_13_merging_two_empty_partial_results(dt):
    for values in (np.zeros((1, 1, 64)), np.full((1, 1, 64), np.nan)):
        state = Placed((1, 1, 64), dt, values=values)
        lse = np.full((1, 1), -INF, np.float32)
        out, total = Placed((1, 1, 64), dt), np.zeros((1, 1), np.float32)
        dlattn.merge_attention_states([state.give(), state.give()], [lse, lse], out=(out.give(), total))
        assert (out.values() == 0).all()
        assert np.isneginf(total).all()


@functions
@dtypes
def test_br_13_an_empty_sequence_next_to_a_long_one(function, dt):
    r = rng("BR-13")
    q, k = r.normal(size=(2, 1, 4, 32)), r.normal(size=(2, 5000, 1, 32))
    out, lse = attend(dt, q, k, k, function=function, seqlens_k=int32(0, 5000))
    assert (out[0] == 0).all()
    assert np.isneginf(lse[0]).all()
    alone, alone_lse = attend(dt, q[1:], k[1:], k[1:], function=function)
    np.testing.assert_allclose(out[1:], alone, rtol=dt.eps, atol=dt.eps / 8)
    np.testing.assert_allclose(lse[1:], alone_lse, rtol=1e-5)


@functions
@pytest.mark.parametrize("length", [6, 70])
def test_br_43_score_beyond_the_fp16_range(function, length):
    """The report has D 512 and q = k = 12; with D at most 256, q = 24 makes the same raw score of 73728."""
    q, k = np.full((1, length, 1, 256), 24.0), np.full((1, length, 1, 256), 12.0)
    out, lse = attend(F16, q, k, ramp(length, dim=8), function=function, scale=1.0, is_causal=True)
    np.testing.assert_allclose(out[0, :, 0, 0], np.arange(length) / 2, rtol=F16.eps)
    np.testing.assert_allclose(lse[0, 0], 73728 + np.log(1 + np.arange(length)), rtol=1e-5)


@pytest.mark.parametrize("kv_len", [1000, 65536])
@pytest.mark.parametrize("q_len", [1, 33])
def test_br_44_output_accumulated_in_fp16_before_the_division(kv_len, q_len):
    k = np.broadcast_to(np.zeros((1, 1, 1, 8), np.float16), (1, kv_len, 1, 8))
    out, lse = dlattn.attention(np.zeros((1, q_len, 1, 8), np.float16), k, k + np.float16(300), return_lse=True)
    assert (out == 300).all()
    np.testing.assert_allclose(lse, math.log(kv_len), rtol=1e-6)


@functions
@pytest.mark.parametrize("dt", [F32, BF16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_br_47_nan_query_comes_out_as_zeros(function, dt, masked):
    r = rng("BR-47")
    q, k, v = (r.normal(size=(2, 4, 16, 8)) for _ in "qkv")
    mask = np.ones((2, 4, 4), bool)
    mask[1, 2] = False
    options = {"mask": mask} if masked else {}
    clean, _ = attend(dt, q, k, v, function=function, **options)
    all_nan, lse = attend(dt, np.full_like(q, np.nan), k, v, function=function, **options)
    empty = np.zeros((2, 4), bool)
    empty[1, 2] = masked
    assert np.isnan(all_nan[~empty]).all()
    assert (all_nan[empty] == 0).all()
    assert np.isnan(lse.transpose(0, 2, 1)[~empty]).all()
    assert np.isneginf(lse.transpose(0, 2, 1)[empty]).all()
    q[0, 1, 5, 3] = np.nan
    one, _ = attend(dt, q, k, v, function=function, **options)
    assert np.isnan(one[0, 1, 5]).all()
    one[0, 1, 5] = clean[0, 1, 5]
    assert np.array_equal(one, clean)


@functions
@dtypes
def test_br_46_grouped_heads_by_modulo(function, dt):
    v = np.zeros((1, 5, 2, 8))
    v[:, :, 1] = 1
    out, _ = attend(dt, np.zeros((1, 1, 4, 8)), np.ones((1, 5, 2, 8)), v, function=function)
    assert out[0, 0, :, 0].tolist() == [0, 0, 1, 1]


@dtypes
@functions
def test_br_41_lse_order_after_split_kv_with_grouped_heads(function, dt):
    lens = int32(4096, 3000, 17)
    keys = np.zeros((3, 4096, 2, 16))
    keys[..., 0] = 1
    _, lse = attend(dt, np.zeros((3, 1, 8, 16)), keys, keys, function=function, seqlens_k=lens)
    np.testing.assert_allclose(lse[..., 0], np.broadcast_to(np.log(lens)[:, None], (3, 8)), rtol=1e-5)
    q = np.zeros((3, 1, 8, 16))
    q[..., 0] = np.arange(8)
    want = np.log(lens)[:, None] + np.arange(8) / 4
    results = []
    before = dlattn.get_num_threads()
    try:
        for threads in (1, 2, 3):  # whatever the split
            dlattn.set_num_threads(threads)
            out, lse = attend(dt, q, keys, keys, function=function, seqlens_k=lens)
            np.testing.assert_allclose(lse[..., 0], want, rtol=1e-5)
            results.append(bits(out).tobytes() + bits(lse).tobytes())
    finally:
        dlattn.set_num_threads(before)
    assert len(set(results)) == 1
    for b, n in enumerate(lens):  # one sequence alone, in pages
        (cache, table), q_b = paged(keys[b, :n], 64), q[b : b + 1]
        _, lse = attend(dt, q_b, cache, cache, table, int32(n), function=dlattn.attn_paged_decode)
        np.testing.assert_allclose(lse[0, :, 0], want[b], rtol=1e-5)
