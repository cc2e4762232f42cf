"""Public bug reports about masks, alignment and windows, each as a test of its own; the titles are the reports'."""

import math

import numpy as np
import pytest

import dlattn
import reference
from calls import attend, paged, ramp
from harness import BF16, DTYPES, F16, F32, Placed, at_liberty, bits, check_lse, check_out, oracle, rng

FUNCTIONS = [dlattn.attention, dlattn.attn_prefill, dlattn.attn_decode]
functions = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
INF = math.inf


@functions
def test_br_01_causal_with_more_queries_than_keys(function):
    k = rng("BR-01").normal(size=(1, 2, 1, 64))
    out, lse = attend(F16, np.zeros((1, 5, 1, 64)), k, ramp(2, dim=64, first=1), function=function, is_causal=True)
    assert out[0, :, 0, 0].tolist() == [0, 0, 0, 1, 1.5]
    assert (out == out[..., :1]).all()
    np.testing.assert_allclose(lse[0, 0], [-INF, -INF, -INF, 0, math.log(2)], rtol=1e-6)


@functions
def test_br_02_two_backends_of_one_runtime_align_causal_differently(function):
    out, _ = attend(
        F32, np.zeros((1, 1, 2, 64)), np.ones((1, 7, 2, 64)), ramp(7, 2, 64), function=function, is_causal=True
    )
    np.testing.assert_allclose(out, 3.0, rtol=1e-6)


def test_br_02_torch_backend_aligns_the_same_way():
    torch = pytest.importorskip("torch")
    q, k, v = torch.zeros(1, 1, 2, 64), torch.ones(1, 7, 2, 64), torch.from_numpy(ramp(7, 2, 64)).float()
    with dlattn.attn_backend(dlattn.ATTN_BACKEND.TORCH):
        out = dlattn.attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, torch.full_like(out, 3.0))


@functions
@dtypes
@pytest.mark.parametrize("is_causal", [False, True])
def test_br_04_bool_mask_with_all_false_rows(function, dt, is_causal):
    mask = np.zeros((1, 8, 8), bool)
    mask[:, :4, :4] = True
    zeros = np.zeros((1, 8, 1, 8))
    out, lse = attend(dt, zeros, zeros, ramp(8, dim=8), function=function, mask=mask, is_causal=is_causal)
    if is_causal:
        np.testing.assert_allclose(out[0, :4, 0, 0], [0, 0.5, 1, 1.5])
        np.testing.assert_allclose(lse[0, 0, :4], np.log([1, 2, 3, 4]), rtol=1e-6)
    else:
        assert (out[0, :4] == 1.5).all()
        np.testing.assert_allclose(lse[0, 0, :4], math.log(4), rtol=1e-6)
    assert (out[0, 4:] == 0).all()
    assert np.isneginf(lse[0, 0, 4:]).all()


@functions
def test_br_05_nan_stored_in_a_masked_out_key(function):
    """dlattn's decision: on the CPU not even a NaN in the masked value matters, on CUDA it may reach the row."""
    x = np.arange(8, dtype=np.float64).reshape(1, 2, 1, 4)
    mask = np.array([[[True, False], [True, False]]])
    for bad_key, bad_value in ((1e10, x[0, 1]), (np.nan, x[0, 1]), (np.nan, np.nan), (INF, INF)):
        k, v = x.copy(), x.copy()
        k[0, 1], v[0, 1] = bad_key, bad_value
        out, _ = attend(F32, x, k, v, function=function, mask=mask)
        assert (at_liberty(out, [0, 1, 2, 3]) == [0, 1, 2, 3]).all()
        assert np.isfinite(out).all() or not np.isfinite(bad_value).all()
        out, _ = attend(F32, x, k, v, function=function, seqlens_k=np.array([1], np.int32))
        assert (out == [0, 1, 2, 3]).all()


@functions
def test_br_11_bool_mask_with_holes_taken_as_a_length(function):
    mask = np.array([[True, False, True, True, False, True]])
    out, lse = attend(
        F32, np.zeros((1, 1, 1, 64)), np.ones((1, 6, 1, 64)), ramp(6, dim=64), function=function, mask=mask
    )
    assert (out == 2.5).all()
    np.testing.assert_allclose(lse, math.log(4), rtol=1e-6)


def test_br_14_window_that_spans_the_whole_sequence():
    r, n = rng("BR-14"), 513
    q, k, v = (r.normal(size=(1, n, 8, 128)) for _ in "qkv")
    causal, _ = attend(F16, q, k, v, is_causal=True)
    for window in ((-1, 0), (n, 0), (n - 1, 0)):
        out, _ = attend(F16, q, k, v, window=window)
        assert np.abs(out - causal).max() <= 2 * F16.eps * np.abs(v).max(), window
        both, _ = attend(F16, q, k, v, window=window, is_causal=True)
        assert np.abs(both - causal).max() <= 2 * F16.eps * np.abs(v).max(), window
    less, _ = attend(F16, q, k, v, window=(n - 2, 0))
    assert np.abs(less - causal)[:, :-1].max() <= 2 * F16.eps * np.abs(v).max()
    assert (less != causal)[:, -1].any()


@functions
def test_br_16_window_given_as_a_token_count(function):
    zeros = np.zeros((1, 8, 1, 8))
    out, _ = attend(F32, zeros, zeros, ramp(8, dim=8), function=function, is_causal=True, window=(3, 0))
    np.testing.assert_allclose(out[0, :, 0, 0], [0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5], rtol=1e-6)
    out, _ = attend(F32, zeros, zeros, ramp(8, dim=8), function=function, is_causal=True, window=(4, 0))
    np.testing.assert_allclose(out[0, -1], 5.0, rtol=1e-6)


def test_br_16_documentation_says_that_a_window_counts_other_tokens():
    assert "inclusive" in dlattn.attention.__doc__


@dtypes
@pytest.mark.parametrize("how", ["nan pages", "one nan page", "absurd ids"])
def test_br_17_freed_pages_outside_the_window_are_still_read(dt, how):
    keys, values = np.ones((200, 1, 8)), ramp(200, dim=8)[0]
    k_cache, table = paged(keys, 16)
    v_cache, _ = paged(values, 16)
    freed = range(169 // 16)  # pages that end before key 169
    for i in freed:
        if how == "nan pages":
            k_cache[table[0, i]] = v_cache[table[0, i]] = np.nan
        else:
            table[0, i] = len(k_cache) - 1 if how == "one nan page" else 1_000_000
    q = np.zeros((1, 1, 1, 8))
    lens = np.array([200], np.int32)
    out, lse = attend(dt, q, k_cache, v_cache, table, lens, function=dlattn.attn_paged_decode, window=(31, 0))
    np.testing.assert_allclose(out, 183.5, rtol=dt.eps)
    np.testing.assert_allclose(lse, math.log(32), rtol=1e-5)
    cu = np.array([0, 1], np.int32)
    out, _ = attend(dt, q[0], k_cache, v_cache, table, lens, cu, function=dlattn.attn_paged_prefill, window=(31, 0))
    np.testing.assert_allclose(out, 183.5, rtol=dt.eps)


@pytest.mark.parametrize("shape", [(16, 43, 43), (133, 77, 77)])
@pytest.mark.parametrize("form", ["contiguous", "wide", "odd byte"])
def test_br_22_mask_rows_at_odd_addresses(shape, form):
    r = rng("BR-22", shape)
    values = r.random(shape) < 0.6
    if form == "contiguous":
        mask = values
    elif form == "wide":
        mask = np.ones((*shape[:2], 80), bool)[:, :, : shape[2]]
    else:
        mask = np.empty(values.size + 1, bool)[1:].reshape(shape)
    mask[...] = values
    if shape[0] == 133:  # keeps the float64 oracle fast; the reported batch and rows stay
        heads, dim = 1, 16
    else:
        heads, dim = 8, 64
    q, k, v = (F16.encode(r.normal(size=(shape[0], n, heads, dim))) for n in shape[1:] + shape[2:])
    exact, eager = oracle(reference.attention, F16, *map(F16.decode, (q, k, v)), mask=values)
    out, lse = dlattn.attention(q, k, v, mask=mask, return_lse=True)
    check_out(F16.decode(out), exact, eager, F16)
    check_lse(lse, exact.lse, F16)


@pytest.mark.parametrize("kind", ["bool", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "form", ["steps", "transposed", "negative", "expanded batch", "expanded rows", "expanded columns"]
)
def test_br_23_mask_assumed_contiguous(kind, form):
    r = rng("BR-23", kind, form)
    shape = {
        "steps": (3, 40, 210),
        "transposed": (3, 70, 20),
        "expanded batch": (1, 20, 70),
        "expanded rows": (3, 1, 70),
        "expanded columns": (3, 20, 1),
    }.get(form, (3, 20, 70))
    keep = r.random(shape) < 0.6
    dt = {"float32": F32, "float16": F16, "bfloat16": BF16}.get(kind)
    stored = keep if dt is None else dt.encode(np.where(keep, r.normal(size=shape), -np.inf))
    view = {
        "steps": lambda m: m[:, ::2, ::3],
        "transposed": lambda m: m.transpose(0, 2, 1),
        "negative": lambda m: m[::-1, ::-1, ::-1],
    }.get(form, lambda m: np.broadcast_to(m, (3, 20, 70)))(stored)
    give = (lambda m: m) if dt is None else dt.give
    q, k, v = (r.normal(size=(3, n, 2, 16)).astype(np.float32) for n in (20, 70, 70))
    got = dlattn.attention(q, k, v, mask=give(view))
    assert np.array_equal(bits(got), bits(dlattn.attention(q, k, v, mask=give(view.copy()))))
    exact, eager = oracle(
        reference.attention,
        F32,
        *(x.astype(np.float64) for x in (q, k, v)),
        mask=view if dt is None else dt.decode(view),
    )
    check_out(got.astype(np.float64), exact, eager, F32)


def test_br_25_bf16_with_a_block_diagonal_mask():
    r, n = rng("BR-25"), 600
    blocks = [(0, 128), (128, 256), (256, 384), (543, 600)]
    mask = np.zeros((1, n, n), bool)
    for a, b in blocks:
        mask[:, a:b, a:b] = True
    q, k, v = (r.normal(size=(1, n, 2, 80)) for _ in "qkv")
    out, lse = attend(BF16, q, k, v, mask=mask)
    for a, b in blocks:
        part = [BF16.round(x[:, a:b]) for x in (q, k, v)]
        exact, eager = oracle(reference.attention, BF16, *part)
        check_out(out[:, a:b], exact, eager, BF16)
        check_lse(lse[:, :, a:b].astype(np.float32), exact.lse, BF16)
    assert (out[:, 384:543] == 0).all()
    assert np.isneginf(lse[:, :, 384:543]).all()


def test_br_19_mask_as_a_transposed_view_with_every_mix_of_transposed_operands():
    r = rng("BR-19")
    x = [r.normal(size=(1, 62, 16, 128)) for _ in "qkv"]
    mask = r.random((1, 62, 62)) < 0.7
    want, want_lse = attend(BF16, *x, mask=mask)
    exact, eager = oracle(reference.attention, BF16, *(BF16.round(a) for a in x), mask=mask)
    check_out(want, exact, eager, BF16)
    view = np.ascontiguousarray(mask.transpose(0, 2, 1)).transpose(0, 2, 1)
    for choice in range(8):
        placed = [Placed(a.shape, BF16, "swapped" if choice >> i & 1 else "contiguous", a) for i, a in enumerate(x)]
        out, lse = attend(BF16, *placed, mask=view)
        assert np.array_equal(out, want), f"mix {choice:03b}"
        assert np.array_equal(lse, want_lse), f"mix {choice:03b}"
