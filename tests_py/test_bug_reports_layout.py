"""Public bug reports about strides, sizes, offsets and bounds. Each is a test of its own; the titles are the reports'.

Those about DLPack (BR-52 to BR-59) are in test_importer.py.
"""

import ctypes
import math
import mmap

import numpy as np
import pytest

import dlattn
import reference
from calls import attend
from harness import BF16, DTYPES, F16, F32, Placed, bits, check_lse, check_out, oracle, rng
from rotary_case import check_rotated

FUNCTIONS = [dlattn.attention, dlattn.attn_prefill, dlattn.attn_decode]
functions = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
dtypes = pytest.mark.parametrize("dt", DTYPES, ids=str)


@functions
def test_br_19_one_operand_is_a_transposed_view(function):
    r = rng("BR-19")
    x = [r.normal(size=(1, 62, 16, 128)) for _ in "qkv"]
    want, want_lse = attend(BF16, *x, function=function)
    for choice in range(8):
        placed = [Placed(a.shape, BF16, "swapped" if choice >> i & 1 else "contiguous", a) for i, a in enumerate(x)]
        out, lse = attend(BF16, *placed, function=function)
        assert np.array_equal(out, want), f"mix {choice:03b}"
        assert np.array_equal(lse, want_lse), f"mix {choice:03b}"


@functions
def test_br_20_last_axis_of_size_1_with_a_stride_that_is_not_1(function):
    q = np.array([[[[1, 2]]]], np.float32).transpose(0, 1, 3, 2)  # [1, 1, 2, 1], last stride 2 elements in torch's eyes
    q = np.lib.stride_tricks.as_strided(q, strides=(8, 8, 4, 8))
    one = np.ones((1, 1, 1, 1), np.float32)
    assert function(q, one, one).tolist() == [[[[1], [1]]]]
    assert function(q, one, one, layout="bhld").tolist() == [[[[1], [1]]]]


def test_br_26_rotary_q_and_k_with_different_head_strides():
    r = rng("BR-26")
    q_buffer = np.full(7 * 16384 + 63 * 256 + 64, BF16.poison, np.uint16)
    k_buffer = np.full(7 * 2624 + 64, BF16.poison, np.uint16)  # ends right after k's last element
    q = np.lib.stride_tricks.as_strided(q_buffer, (8, 64, 64), (2 * 16384, 2 * 256, 2))
    k = np.lib.stride_tricks.as_strided(k_buffer, (8, 1, 64), (2 * 2624, 2 * 64, 2))
    q[...], k[...] = BF16.encode(r.normal(size=q.shape)), BF16.encode(r.normal(size=k.shape))
    cos, sin = (r.normal(size=(8, 32)).astype(np.float32) for _ in "cs")
    for interleaved in (False, True):
        outputs = [Placed(x.shape, BF16) for x in (q, k)]
        dlattn.rotary_embedding(
            BF16.give(q), BF16.give(k), cos, sin, interleaved=interleaved, out=tuple(x.give() for x in outputs)
        )
        for got, x in zip(outputs, (q, k), strict=True):
            assert got.intact()
            check_rotated(got.array, x, cos.astype(np.float64), sin.astype(np.float64), interleaved, BF16)
        q2, k2 = q_buffer.copy(), k_buffer.copy()
        inplace = (
            np.lib.stride_tricks.as_strided(q2, q.shape, q.strides),
            np.lib.stride_tricks.as_strided(k2, k.shape, k.strides),
        )
        dlattn.rotary_embedding(*map(BF16.give, inplace), cos, sin, interleaved=interleaved, inplace=True)
        for got, x, buffer, before in zip(inplace, outputs, (q2, k2), (q_buffer, k_buffer), strict=True):
            assert np.array_equal(got, x.array)
            changed = buffer != before
            np.lib.stride_tricks.as_strided(changed, got.shape, tuple(s // 2 for s in got.strides))[...] = False
            assert not changed.any(), "written between the rows of the view"


def test_br_28_rotary_on_a_slice_of_packed_projections():
    """The large form (2.2e9 elements) is for a GPU; the small one has the same layout."""
    r = rng("BR-28")
    packed = BF16.encode(r.normal(size=(2, 90, 3, 16, 72)))
    before = packed.copy()
    cos, sin = (r.normal(size=(90, 36)).astype(np.float32) for _ in "cs")
    dlattn.rotary_embedding(
        BF16.give(packed[:, :, 0]), BF16.give(packed[:, :, 1]), cos, sin, interleaved=True, inplace=True
    )
    assert np.array_equal(packed[:, :, 2], before[:, :, 2])
    for i in (0, 1):
        rows = [np.broadcast_to(t.astype(np.float64), (2, 90, 36)) for t in (cos, sin)]
        check_rotated(packed[:, :, i], before[:, :, i], *rows, True, BF16)
        for b in range(2):
            out = Placed((1, 90, 16, 72), BF16)
            dlattn.rotary_embedding(
                BF16.give(before[b : b + 1, :, i]), None, cos, sin, interleaved=True, out=(out.give(), None)
            )
            assert np.array_equal(out.array[0], packed[b, :, i])


def test_br_29_zero_padded_frequencies_are_not_partial_rotary():
    x = np.zeros((1, 1, 1, 8), np.float32)
    x[..., 0] = 1
    cos, sin = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    cos[0, 0], sin[0, 0] = math.cos(0.5), math.sin(0.5)
    whole, _ = dlattn.rotary_embedding(x, None, cos, sin, interleaved=False)
    np.testing.assert_allclose(whole.ravel(), [0.8775826, 0, 0, 0, 0.4794255, 0, 0, 0], atol=1e-7)
    part, _ = dlattn.rotary_embedding(x, None, cos[:, :1], sin[:, :1], interleaved=False)
    np.testing.assert_allclose(part.ravel(), [0.8775826, 0.4794255, 0, 0, 0, 0, 0, 0], atol=1e-7)


def at_the_end_of_a_page(values):
    """A copy whose last byte is the last one before a page that must not be touched."""
    page = mmap.PAGESIZE
    room = -(-values.nbytes // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + room), ctypes.c_size_t(page), 0) == 0
    start = room - values.nbytes
    copy = np.frombuffer(memory, values.dtype, count=values.size, offset=start).reshape(values.shape)
    copy[...] = values
    return copy


@dtypes
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotary_dim", [2, 4, 6, 10, 12])
@pytest.mark.parametrize("more", [0, 2])
def test_br_31_vector_rotary_reads_behind_a_small_table(dt, interleaved, rotary_dim, more):
    r = rng("BR-31", str(dt), rotary_dim, more)
    x = at_the_end_of_a_page(dt.encode(r.normal(size=(1, 1, 1, rotary_dim + more))))
    out = at_the_end_of_a_page(np.zeros_like(x))
    for table_dt in DTYPES:
        cos, sin = (at_the_end_of_a_page(table_dt.encode(r.normal(size=(1, rotary_dim // 2)))) for _ in "cs")
        dlattn.rotary_embedding(
            dt.give(x), None, table_dt.give(cos), table_dt.give(sin), interleaved=interleaved, out=(dt.give(out), None)
        )
        check_rotated(out, x, table_dt.decode(cos)[None], table_dt.decode(sin)[None], interleaved, dt)


@dtypes
@functions
@pytest.mark.parametrize("dim", [1, 3, 8, 31, 33, 72])
def test_br_31_attention_reads_nothing_behind_its_inputs(function, dt, dim):
    """The same trap for the operands and the output of attention."""
    r = rng("BR-31 attention", str(dt), dim)
    for len_q, len_k in ((1, 5), (5, 33)):
        q, k, v = (
            at_the_end_of_a_page(dt.encode(r.normal(size=(1, n, h, dim))))
            for n, h in ((len_q, 2), (len_k, 1), (len_k, 1))
        )
        mask = at_the_end_of_a_page(r.random((1, len_q, len_k)) < 0.8)
        out, lse = at_the_end_of_a_page(np.zeros_like(q)), at_the_end_of_a_page(np.zeros((1, 2, len_q), np.float32))
        function(dt.give(q), dt.give(k), dt.give(v), mask=mask, out=(dt.give(out), lse), return_lse=True)
        exact, eager = oracle(reference.attention, dt, *map(dt.decode, (q, k, v)), mask=mask)
        check_out(dt.decode(out), exact, eager, dt)
        check_lse(lse, exact.lse, dt)


@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_br_32_rotary_heads_and_positions_swapped(layout):
    x = np.zeros((1, 3, 2, 2) if layout == "blhd" else (1, 2, 3, 2), np.float32)
    x[..., 0] = 1
    angle = np.arange(3)[:, None] * math.pi / 2
    y, _ = dlattn.rotary_embedding(
        x, None, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32), interleaved=True, layout=layout
    )
    y = y if layout == "blhd" else y.transpose(0, 2, 1, 3)
    for head in range(2):
        np.testing.assert_allclose(y[0, :, head], [[1, 0], [0, 1], [-1, 0]], atol=1e-7)


def test_br_34_fewer_tokens_than_sequences():
    r = rng("BR-34")
    q, k, v = (BF16.round(r.normal(size=(1, h, 120))) for h in (21, 7, 7))
    cu = np.array([0, 0, 0, 0, 1], np.int32)
    out, lse = attend(BF16, q, k, v, cu, cu, function=dlattn.attn_varlen, scale=math.sqrt(120))
    for h in range(21):
        assert np.array_equal(out[0, h], v[0, h // 3])
        assert abs(lse[h, 0] - math.sqrt(120) * float(q[0, h] @ k[0, h // 3])) <= 1e-3 * max(1, abs(lse[h, 0]))


@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("cu_k", [(0, 25, 42, 51, 81), (0, 25, 25, 51, 51)])
def test_br_35_zero_length_sequences_at_head_dim_256(dim, cu_k):
    r = rng("BR-35", dim)
    cu_q = (0, 0, 12, 20, 20)
    q, k, v = (BF16.round(r.normal(size=s)) for s in [(20, 4, dim), (81, 1, dim), (81, 1, dim)])
    out, lse = attend(BF16, q, k, v, np.array(cu_q, np.int32), np.array(cu_k, np.int32), function=dlattn.attn_varlen)
    for b in range(4):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        if keys.start == keys.stop:
            assert (out[rows] == 0).all()
            assert np.isneginf(lse[:, rows]).all()
        elif rows.start < rows.stop:
            exact, eager = oracle(reference.attention, BF16, q[None, rows], k[None, keys], v[None, keys])
            check_out(out[None, rows], exact, eager, BF16)
            check_lse(lse[None, :, rows].astype(np.float32), exact.lse, BF16)


@functions
def test_br_37_cache_batch_stride_of_2_to_the_30_elements(function):
    """8.6 GB of addresses; only the pages that hold keys are ever touched."""
    r = rng("BR-37")
    buffer = np.empty(4 * 2**30 + 8 * 64, np.float16)
    cache = np.lib.stride_tricks.as_strided(buffer, (5, 8, 1, 64), (2**31, 128, 128, 2))
    cache[...] = packed = r.normal(size=cache.shape).astype(np.float16)
    q = r.normal(size=(5, 1, 1, 64)).astype(np.float16)
    lens = np.full(5, 8, np.int32)
    assert np.array_equal(function(q, cache, cache, seqlens_k=lens), function(q, packed, packed, seqlens_k=lens))


@pytest.mark.cpu  # on a GPU: test_cuda_large.py
def test_br_38_page_number_times_page_stride():
    """The report's pages are [256, 8, 512]; head_dim is at most 256: [256, 16, 256] has the same stride of 2^20."""
    r = rng("BR-38")
    pool = np.empty((2049, 256, 16, 256), np.float16)
    page = r.normal(size=(1, 256, 16, 256)).astype(np.float16)
    pool[2048] = page[0]
    q, lens = r.normal(size=(1, 1, 16, 256)).astype(np.float16), np.array([100], np.int32)
    high = dlattn.attn_paged_decode(q, pool, pool, np.array([[2048]], np.int32), lens)
    low = dlattn.attn_paged_decode(q, page, page, np.array([[0]], np.int32), lens)
    assert np.array_equal(high, low)
    assert np.isfinite(high).all()
    assert high.any()
    cu = np.array([0, 1], np.int32)
    assert np.array_equal(dlattn.attn_paged_prefill(q[0], pool, pool, np.array([[2048]], np.int64), lens, cu), low[0])
    slot = np.array([2048 * 256 + 7], np.int64)
    values = np.empty_like(pool)
    dlattn.append_kv(page[0, :1] + 1, page[0, :1], pool, values, slot)
    assert np.array_equal(pool[2048, 7], page[0, 0] + 1)
    assert np.array_equal(pool[2048, 8], page[0, 8])
    assert np.array_equal(values[2048, 7], page[0, 0])


@functions
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
@pytest.mark.parametrize("len_q", [2, 3, 7, 16])
def test_br_40_split_kv_combine_and_the_output_layout(function, layout, len_q):
    r = rng("BR-40", len_q)
    q, k, v = (r.normal(size=(1, n, 8, 64)) for n in (len_q, 2048, 2048))
    exact, eager = oracle(reference.attention, F32, *(F32.round(x) for x in (q, k, v)))
    swap = (lambda x: x.transpose(0, 2, 1, 3)) if layout == "bhld" else (lambda x: x)
    for placement in ("contiguous", "swapped", "packed"):
        placed = [Placed(swap(x).shape, F32, values=swap(x)) for x in (q, k, v)]
        out, lse = Placed(swap(q).shape, F32, placement), Placed((1, 8, len_q), F32)
        function(*(x.give() for x in placed), layout=layout, out=(out.array, lse.array), return_lse=True)
        assert out.intact()
        assert lse.intact()
        check_out(swap(out.values()), exact, eager, F32)
        check_lse(lse.array, exact.lse, F32)


@functions
def test_br_49_batch_of_zero(function):
    q, k = np.zeros((0, 3952, 10, 64), np.float16), np.zeros((0, 16, 10, 64), np.float16)
    out, lse = function(q, k, k, return_lse=True)
    assert out.shape == (0, 3952, 10, 64)
    assert lse.shape == (0, 10, 3952)
    table = np.ones((4000, 32), np.float32)
    q2, k2 = dlattn.rotary_embedding(q, q[:, :, :2], table, table, interleaved=False)
    assert q2.shape == q.shape
    assert k2.shape == (0, 3952, 2, 64)


@functions
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("len_q", [3, 5, 6, 7, 9, 17])
def test_br_50_query_count_that_is_no_power_of_two(function, dim, len_q):
    r = rng("BR-50", dim, len_q)
    q, k, v = (r.normal(size=(2, n, 2, dim)) for n in (len_q, 40, 40))
    exact, eager = oracle(reference.attention, F16, *(F16.round(x) for x in (q, k, v)))
    out = Placed(q.shape, F16, "padded")
    function(*(F16.encode(x) for x in (q, k, v)), out=out.array)
    assert out.intact()
    assert not bits(out.array).tobytes().count(bits(F16.poison).tobytes() * 4)
    check_out(out.values(), exact, eager, F16)
