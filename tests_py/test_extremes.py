"""Numbers at the ends of their ranges: masks of the lowest finite value, tiny and huge soft caps, many threads."""

import os
import subprocess
import sys

import numpy as np
import pytest

import dlattn
from harness import BF16, DTYPES, F16, F32, at_liberty

dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
queries = pytest.mark.parametrize("len_q", [1, 3, 40])  # both kernels
LOWEST = {"float32": np.finfo(np.float32).min, "float16": -65504.0, "bfloat16": -3.3895313892515355e38}


def call(len_q, v, mask=None, **options):
    """q = 0 against one key a value; the first row of the result."""
    n = len(v)
    q, k = np.zeros((1, len_q, 1, 4), np.float32), np.ones((1, n, 1, 4), np.float32)
    values = np.repeat(np.asarray(v, np.float32).reshape(1, n, 1, 1), 4, axis=3)
    out, lse = dlattn.attention(q, k, values, mask=mask, return_lse=True, **options)
    np.testing.assert_array_equal(out, np.broadcast_to(out[:, :1], out.shape))
    np.testing.assert_array_equal(lse, np.broadcast_to(lse[..., :1], lse.shape))
    return float(out[0, 0, 0, 0]), float(lse[0, 0, 0])


@queries
@dtypes
def test_the_lowest_finite_mask_value_is_added_and_hides_nothing(dt, len_q):
    lowest = LOWEST[dt.name]
    row = dt.encode(np.full((1, len_q, 5), lowest))
    out, lse = call(len_q, [1, 2, 3, 4, 5], dt.give(row))
    assert out == 3
    assert lse == pytest.approx(float(np.float32(lowest)) + np.log(5), rel=1e-6)


@queries
@pytest.mark.parametrize("dt", [F32, BF16], ids=str)
def test_large_finite_mask_values_keep_their_order(dt, len_q):
    row = dt.encode(np.broadcast_to(np.array([-3e38, -3e38, -3.3e38, -np.inf]), (1, len_q, 4)))
    assert call(len_q, [1, 2, 100, -7], dt.give(row))[0] == 1.5
    assert at_liberty(call(len_q, [1, 2, 100, np.nan], dt.give(row))[0], 1.5) == 1.5
    row = dt.encode(np.broadcast_to(np.array([3e38, 0.0, -3e38]), (1, len_q, 3)))
    assert call(len_q, [7, 1, 2], dt.give(row))[0] == 7


@queries
@pytest.mark.parametrize("dt", [F32, F16, BF16], ids=str)
def test_a_value_under_a_finite_mask_counts_as_visible(dt, len_q):
    row = dt.encode(np.full((1, len_q, 3), LOWEST[dt.name]))
    assert np.isnan(call(len_q, [1, np.nan, 2], dt.give(row))[0])


@queries
def test_a_score_of_minus_infinity_hides_its_key(len_q):
    q, k = np.ones((1, len_q, 1, 4), np.float32), np.zeros((1, 3, 1, 4), np.float32)
    k[0, 1, 0, 0] = -np.inf
    v = np.repeat(np.array([2, np.nan, 4], np.float32).reshape(1, 3, 1, 1), 4, axis=3)
    assert (at_liberty(dlattn.attention(q, k, v), 3) == 3).all()
    v[np.isnan(v)] = 100
    assert (dlattn.attention(q, k, v) == 3).all()


@queries
@pytest.mark.parametrize("softcap", [1e-39, 1e-30, 1.0, 1e30, 3e38])
def test_softcap_of_any_size(softcap, len_q):
    q, k = np.ones((1, len_q, 1, 4), np.float32), np.zeros((1, 2, 1, 4), np.float32)
    k[0, 0] = 1
    v = np.zeros((1, 2, 1, 4), np.float32)
    v[0, 0] = 1
    s = float(np.float32(softcap)) * np.tanh(4 / float(np.float32(softcap)))
    got = dlattn.attention(q, k, v, scale=1.0, softcap=softcap)
    np.testing.assert_allclose(got, np.full(got.shape, 1 / (1 + np.exp(-s))), rtol=1e-6)


@queries
def test_a_huge_scale_times_zero_is_zero(len_q):
    assert call(len_q, [1, 2, 6], scale=3e38)[0] == 3


@pytest.mark.cpu
@pytest.mark.parametrize("text", ["abc", "0", "-1", "4097", "2x"])
def test_a_wrong_number_of_threads_in_the_environment_is_an_error(text):
    run = subprocess.run(
        [sys.executable, "-c", "import dlattn; dlattn.get_num_threads()"],
        env={**os.environ, "DLATTN_NUM_THREADS": text},
        capture_output=True,
        text=True,
    )
    assert f'ValueError: DLATTN_NUM_THREADS is "{text}", expected a number from 1 to 4096' in run.stderr
