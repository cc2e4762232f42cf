"""Dense attention: attention, attn_prefill and attn_decode against the oracle."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given

import dlattn
import reference
from attention_case import INF, NAN, Case, build, run
from harness import BF16, DTYPES, F16, F32, PLACEMENTS, Placed, at_liberty, bits, check_lse, check_out, oracle, rng
from strategies import dense_cases

FUNCTIONS = [dlattn.attention, dlattn.attn_prefill, dlattn.attn_decode]
LENGTHS = [1, 7, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 512, 513]
OPTIONS = {
    "plain": {},
    "causal": {"options": {"is_causal": True}},
    "window": {"options": {"window": (20, 5)}},
    "left": {"options": {"window": (20, -1)}},
    "right": {"options": {"window": (-1, 3)}},
    "causal+window": {"options": {"window": (20, 9), "is_causal": True}},
    "softcap": {"options": {"softcap": 3.0}},
    "scale": {"options": {"scale": 0.6}},
    "sinks": {"sinks": True},
    "alibi": {"alibi": 1},
    "alibi-batch": {"alibi": 2, "options": {"is_causal": True}},
    "mask-2b": {"mask": "2b"},
    "mask-3b": {"mask": "3b"},
    "mask-4b": {"mask": "4b"},
    "mask-2f": {"mask": "2f"},
    "mask-3f1": {"mask": "3f1"},
    "mask-4f": {"mask": "4f"},
    "mask-4f1": {"mask": "4f1"},
    "lengths": {"lengths": (40, 0)},
    "all": {
        "options": {"is_causal": True, "window": (30, -1), "softcap": 10.0, "scale": 0.3},
        "mask": "4f",
        "sinks": True,
        "alibi": 2,
        "lengths": (61, 7),
    },
}
dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)
functions = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


@dtypes
@functions
@pytest.mark.parametrize("name", OPTIONS)
def test_option(function, dt, name):
    run(Case(dt=dt, len_q=33, len_k=70, dim=32, dim_v=24, spread=3.0, **OPTIONS[name]), function)
    run(Case(dt=dt, len_q=1, len_k=70, dim=32, dim_v=24, spread=3.0, **OPTIONS[name]), function)


@dtypes
@pytest.mark.parametrize("len_k", LENGTHS)
def test_key_lengths(dt, len_k):
    for len_q in (1, 3, 33):
        run(Case(dt=dt, batch=1, len_q=len_q, len_k=len_k, heads=2, kv_heads=1, options={"is_causal": True}))


@dtypes
@pytest.mark.parametrize("len_q", LENGTHS)
def test_query_lengths(dt, len_q):
    run(Case(dt=dt, batch=1, len_q=len_q, len_k=40, heads=2, kv_heads=1))
    run(Case(dt=dt, batch=1, len_q=len_q, len_k=len_q, heads=1, kv_heads=1, options={"is_causal": True}))


@dtypes
@pytest.mark.parametrize(
    "dim", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 40, 63, 64, 65, 72, 80, 96, 100, 127, 128, 160, 192, 255, 256]
)
def test_head_dims(dt, dim):
    for dim_v in {dim, 257 - dim}:
        for len_q in (1, 9):
            run(Case(dt=dt, len_q=len_q, len_k=37, dim=dim, dim_v=dim_v))


@dtypes
@pytest.mark.parametrize("group", range(1, 17))
def test_group_ratios(dt, group):
    for len_q in (1, 4):
        run(Case(dt=dt, len_q=len_q, len_k=50, heads=2 * group, kv_heads=2, options={"is_causal": True}))


@dtypes
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_strides(dt, layout, placement):
    for tensor in ("place_q", "place_k", "place_v", "place_out"):
        for len_q in (1, 19):
            run(Case(dt=dt, len_q=len_q, len_k=35, layout=layout, mask="4f", **{tensor: placement}))


@dtypes
def test_expanded_batch(dt):
    """A stride of 0: one sequence of keys for the whole batch."""
    r = rng("expanded", str(dt))
    q = dt.encode(r.normal(size=(3, 5, 4, 16)))
    k, v = (np.broadcast_to(dt.encode(r.normal(size=(1, 21, 2, 16))), (3, 21, 2, 16)) for _ in "kv")
    out = Placed((3, 5, 4, 16), dt)
    dlattn.attention(dt.give(q), dt.give(k), dt.give(v), out=out.give())
    exact, eager = oracle(reference.attention, dt, *map(dt.decode, (q, k, v)))
    check_out(out.values(), exact, eager, dt)


@dtypes
@pytest.mark.parametrize("mask_dt", DTYPES, ids=str)
def test_mask_dtype_is_free(dt, mask_dt):
    r = rng("mask dtype", str(dt), str(mask_dt))
    q, k, v = (dt.encode(r.normal(size=s)) for s in [(2, 5, 2, 8), (2, 40, 2, 8), (2, 40, 2, 8)])
    mask = mask_dt.encode(np.where(r.random((2, 2, 5, 40)) < 0.3, -np.inf, r.normal(size=(2, 2, 5, 40))))
    out = Placed(q.shape, dt)
    dlattn.attention(dt.give(q), dt.give(k), dt.give(v), mask=mask_dt.give(mask), out=out.give())
    exact, eager = oracle(reference.attention, dt, *map(dt.decode, (q, k, v)), mask=mask_dt.decode(mask))
    check_out(out.values(), exact, eager, dt)


@dtypes
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_sinks_and_slopes_dtype_is_free(dt, other):
    r = rng("sinks dtype", str(dt), str(other))
    q, k, v = (dt.encode(r.normal(size=s)) for s in [(2, 5, 4, 8), (2, 40, 2, 8), (2, 40, 2, 8)])
    sinks, slopes = other.encode(r.normal(size=4)), other.encode(r.random((2, 4)))
    out = Placed(q.shape, dt)
    options = {"sinks": other.give(sinks), "alibi_slopes": other.give(slopes)}
    dlattn.attention(dt.give(q), dt.give(k), dt.give(v), out=out.give(), **options)
    exact, eager = oracle(
        reference.attention,
        dt,
        *map(dt.decode, (q, k, v)),
        sinks=other.decode(sinks),
        alibi_slopes=other.decode(slopes),
    )
    check_out(out.values(), exact, eager, dt)


@given(dense_cases())
def test_anything(case):
    run(case, FUNCTIONS[len(case.key) % 3])


@dtypes
@functions
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_keys_past_the_length_never_matter(dt, function, poison):
    for len_q in (1, 20):
        case = Case(dt=dt, batch=4, len_q=len_q, len_k=300, lengths=(0, 1, 129, 300), poison=poison)
        poisoned = run(case, function)
        (q, k, v), give, _ = build(case)
        for b, n in enumerate(case.lengths):
            k.array[b, n:] = v.array[b, n:] = 0
        clean = Placed((4, len_q, 4, 16), dt)
        function(q.give(), k.give(), v.give(), out=clean.give(), **give)
        assert np.array_equal(bits(poisoned[0]), bits(clean.array))


@dtypes
@functions
@pytest.mark.parametrize("how", ["bool", "float", "causal", "window", "length"])
@pytest.mark.parametrize("poison", [NAN, INF])
def test_hidden_keys_and_values_never_matter(dt, function, how, poison):
    """Not even a NaN in the value of a masked key: the CPU backend keeps that out too, CUDA that past a length."""
    r = rng("hidden", str(dt), how)
    q, k, v = (r.normal(size=s) for s in [(1, 3, 2, 8), (1, 70, 1, 8), (1, 70, 1, 8)])
    hidden = np.zeros((1, 3, 70), bool)
    options = {}
    if how in ("bool", "float"):
        hidden[:] = r.random(70) < 0.5
        options["mask"] = ~hidden if how == "bool" else np.where(hidden, -np.inf, 0.0).astype(np.float32)
    elif how == "causal":
        k, v = k[:, :33], v[:, :33]  # the last two keys are hidden from the first query, the last from the second
        hidden = ~reference.visible(3, 33, is_causal=True)[None]
        options["is_causal"] = True
    elif how == "window":
        hidden = ~reference.visible(3, 70, window=(10, 2))[None]
        options["window"] = (10, 2)
    else:
        hidden[..., 50:] = True
        options["seqlens_k"] = np.array([50], np.int32)
    exact, eager = oracle(reference.attention, dt, *(dt.round(x) for x in (q, k, v)), **options)
    nobody, somebody = hidden[0].all(axis=0), hidden[0, 0]
    for row, which in [(0, somebody), (slice(None), nobody)]:
        kp, vp = np.array(k), np.array(v)
        kp[0, which], vp[0, which] = poison, poison
        out = Placed(q.shape, dt)
        function(*(dt.give(dt.encode(x)) for x in (q, kp, vp)), out=out.give(), **options)
        part = reference.Result(exact.out[:, row], exact.lse[:, :, row], exact.size)
        parts = eager.map(lambda e, row=row: reference.Result(e.out[:, row], e.lse[:, :, row]))
        got = out.values()[:, row]
        check_out(got if how == "length" else at_liberty(got, part.out), part, parts, dt, how)


@dtypes
@functions
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_visible_nan_propagates(dt, function, where):
    for len_q in (1, 6):
        r = rng("visible nan", str(dt), where)
        x = {
            "q": r.normal(size=(2, len_q, 2, 8)),
            "k": r.normal(size=(2, 600, 2, 8)),
            "v": r.normal(size=(2, 600, 2, 8)),
        }
        x[where][1, -1, 0, 3] = NAN
        exact, eager = oracle(reference.attention, dt, *(dt.round(x[n]) for n in "qkv"), is_causal=True)
        assert np.isnan(exact.out).any()
        assert not np.isnan(exact.out).all()
        out, lse = Placed((2, len_q, 2, 8), dt), Placed((2, 2, len_q), F32)
        function(
            *(dt.give(dt.encode(x[n])) for n in "qkv"), is_causal=True, out=(out.give(), lse.array), return_lse=True
        )
        got = out.values()
        if where == "v":  # causality hides the key from all queries but the last
            got[1, :, 0, 3] = at_liberty(got[1, :, 0, 3], exact.out[1, :, 0, 3])
        check_out(got, exact, eager, dt)
        check_lse(lse.array, exact.lse, dt)


@functions
@pytest.mark.parametrize("empty", ["batch", "len_q", "len_k"])
def test_sizes_of_zero(function, empty):
    for dt in DTYPES:
        run(Case(dt=dt, **{empty: 0}), function)
        run(Case(dt=dt, **{empty: 0}, sinks=True, mask="4b", alibi=2, options={"is_causal": True}), function)


def test_no_keys_with_a_sink():
    out, lse = run(Case(len_k=0, sinks=True))
    assert (out == 0).all()
    assert np.isfinite(lse).all()


def test_sink_of_minus_infinity_is_no_sink():
    r = rng("no sink")
    q, k, v = (r.normal(size=(1, 5, 2, 8)).astype(np.float32) for _ in "qkv")
    plain = dlattn.attention(q, k, v, return_lse=True)
    sunk = dlattn.attention(q, k, v, return_lse=True, sinks=np.full(2, -np.inf, np.float32))
    np.testing.assert_allclose(sunk[0], plain[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(sunk[1], plain[1], rtol=1e-6)
    empty = dlattn.attention(q, k[:, :0], v[:, :0], return_lse=True, sinks=np.full(2, -np.inf, np.float32))
    assert (empty[0] == 0).all()
    assert np.isneginf(empty[1]).all()


@dtypes
@functions
def test_same_bits_twice_and_for_any_number_of_threads(dt, function):
    before = dlattn.get_num_threads()
    results = []
    try:
        for threads in (1, 1, 2, 3):
            dlattn.set_num_threads(threads)
            assert dlattn.get_num_threads() == threads
            run_results = []
            for len_q, len_k in ((1, 1500), (130, 300)):
                case = Case(dt=dt, batch=1, len_q=len_q, len_k=len_k, heads=4, kv_heads=1, options={"is_causal": True})
                out, lse = run(case, function)
                run_results.append(bits(out).tobytes() + bits(lse).tobytes())
            results.append(run_results)
    finally:
        dlattn.set_num_threads(before)
    assert all(r == results[0] for r in results)


def test_results_of_numpy_calls():
    r = rng("results")
    q, k, v = (r.normal(size=s).astype(np.float32) for s in [(2, 5, 4, 8), (2, 9, 2, 8), (2, 9, 2, 6)])
    out = dlattn.attention(q, k, v)
    assert type(out) is np.ndarray
    assert out.shape == (2, 5, 4, 6)
    assert out.dtype == np.float32
    out2, lse = dlattn.attention(q, k, v, return_lse=True)
    assert lse.shape == (2, 4, 5)
    assert lse.dtype == np.float32
    assert np.array_equal(out2, out)
    mine = np.empty_like(out)
    assert dlattn.attention(q, k, v, out=mine) is mine
    assert np.array_equal(mine, out)
    mine[:] = NAN
    given = dlattn.attention(q, k, v, out=mine, return_lse=True)
    assert isinstance(given, tuple)
    assert given[0] is mine
    assert np.array_equal(mine, out)
    assert np.array_equal(given[1], lse)
    swapped = dlattn.attention(
        *(np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)), layout="bhld", return_lse=True
    )
    assert swapped[0].shape == (2, 4, 5, 6)
    assert np.array_equal(swapped[0].transpose(0, 2, 1, 3), out)
    assert np.array_equal(swapped[1], lse)
    half = dlattn.attention(*(x.astype(np.float16) for x in (q, k, v)))
    assert half.dtype == np.float16


def test_default_scale_is_one_over_root_of_head_dim():
    r = rng("scale")
    q, k, v = (r.normal(size=(1, 4, 1, 12)).astype(np.float32) for _ in "qkv")
    np.testing.assert_allclose(
        dlattn.attention(q, k, v), dlattn.attention(q, k, v, scale=12**-0.5), rtol=1e-5, atol=1e-6
    )


def test_large_scores_do_not_overflow():
    for dt in (F32, F16, BF16):
        run(Case(dt=dt, len_q=3, len_k=70, spread=300.0, options={"is_causal": True}))


MEMORY = """
import resource, numpy as np, dlattn
n = 8192
q = np.ones((1, n, 1, 8), np.float32)
out = np.zeros_like(q)
dlattn.attention(q[:, :64], q[:, :64], q[:, :64])  # threads and their scratch
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dlattn.attention(q, q, q, out=out, is_causal=%s)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
assert abs(out - 1).max() < 1e-5
"""


@pytest.mark.cpu
@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_does_not_grow_with_queries_times_keys(is_causal):
    printed = subprocess.run([sys.executable, "-c", MEMORY % is_causal], capture_output=True, text=True, check=True)
    assert int(printed.stdout) < 8192 * 8192 * 4 // 16
