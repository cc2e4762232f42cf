"""The TORCH backend: the same meanings as the CPU backend, and gradients."""

import math

import pytest

import dlattn
from dlattn import ATTN_BACKEND, attn_backend

torch = pytest.importorskip("torch")
INF = math.inf


def tensors(len_q=5, len_k=9, dim=16, dim_v=12, dtype=torch.float32, seed=3):
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(s, generator=g).to(dtype) for s in [(2, len_q, 4, dim), (2, len_k, 2, dim), (2, len_k, 2, dim_v)]
    ]


def random_mask(shape, floating, seed=4):
    g = torch.Generator().manual_seed(seed)
    keep = torch.rand(shape, generator=g) < 0.6
    keep[..., 1, :] = False  # a row with no visible key
    return torch.randn(shape, generator=g).masked_fill(~keep, -INF) if floating else keep


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (3, 1)},
    "causal+window": {"is_causal": True, "window": (2, -1)},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])},
    "alibi-batch": {"alibi_slopes": torch.arange(8.0).reshape(2, 4) / 10, "is_causal": True},
    "mask-2b": {"mask": torch.tensor([[True, False] * 4 + [True], [False] * 9])},
    "mask-3b": {"mask": random_mask((2, 5, 9), False)},
    "mask-4f": {"mask": random_mask((2, 4, 5, 9), True)},
    "mask-4f1": {"mask": random_mask((1, 1, 5, 9), True)},
    "lengths": {"seqlens_k": torch.tensor([4, 0])},
    "all": {
        "is_causal": True,
        "window": (4, -1),
        "scale": 0.5,
        "softcap": 3.0,
        "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]),
        "alibi_slopes": torch.arange(8.0).reshape(2, 4) / 10,
        "mask": random_mask((2, 4, 5, 9), True),
        "seqlens_k": torch.tensor([7, 3], dtype=torch.int32),
    },
}
options = pytest.mark.parametrize("name", OPTIONS)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def both(function, *args, **keywords):
    """The results of the CPU and the TORCH backend."""
    with attn_backend(ATTN_BACKEND.CPU):
        cpu = function(*args, **keywords)
    with attn_backend(ATTN_BACKEND.TORCH):
        return cpu, function(*args, **keywords)


def assert_close(cpu, other, dtype=torch.float32):
    for a, b in zip(cpu, other, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(torch.isinf(a), torch.isinf(b))
        torch.testing.assert_close(b, a, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


@options
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_dense(name, dtype, layout):
    q, k, v = tensors(dtype=dtype)
    if layout == "bhld":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    cpu, other = both(dlattn.attention, q, k, v, layout=layout, return_lse=True, **OPTIONS[name])
    assert_close(cpu, other, dtype)
    alone = both(dlattn.attn_prefill, q, k, v, layout=layout, **OPTIONS[name])
    assert_close(alone[:1], alone[1:], dtype)


@options
def test_ragged_and_paged(name):
    chosen = {a: x for a, x in OPTIONS[name].items() if a != "seqlens_k"}
    q, k, v = (x.flatten(0, 1) for x in tensors())
    cu_q, cu_k = torch.tensor([0, 2, 7]), torch.tensor([0, 9, 14])
    # rows outside cu_seqlens_q stay as they were in `out`
    outs = [(torch.full((10, 4, 12), 5.0), torch.full((4, 10), 5.0)) for _ in range(2)]
    for backend, out in zip((ATTN_BACKEND.CPU, ATTN_BACKEND.TORCH), outs, strict=True):
        with attn_backend(backend):
            got = dlattn.attn_varlen(q, k, v, cu_q, cu_k, out=out, return_lse=True, **chosen)
        assert got[0] is out[0]
        assert got[1] is out[1]
    assert_close(*outs)
    cache_k, cache_v = k[:18].reshape(6, 3, 2, 16), v[:18].reshape(6, 3, 2, 12)
    table, lens = torch.tensor([[5, 0, 2], [1, 3, 999]], dtype=torch.int32), torch.tensor([9, 5], dtype=torch.int32)
    assert_close(
        *both(dlattn.attn_paged_decode, q.view(2, 5, 4, 16), cache_k, cache_v, table, lens, return_lse=True, **chosen)
    )
    cu_q = torch.tensor([0, 5, 10])
    assert_close(*both(dlattn.attn_paged_prefill, q, cache_k, cache_v, table, lens, cu_q, return_lse=True, **chosen))
    swapped = [x.transpose(1, 2) for x in (q.view(2, 5, 4, 16), cache_k, cache_v)]
    assert_close(*both(dlattn.attn_paged_decode, *swapped, table, lens, layout="bhld", return_lse=True, **chosen))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["blhd", "bhld"])
def test_rotary_append_and_merge(interleaved, layout):
    q, k, v = tensors(9, 9)
    cos, sin, positions = torch.randn(12, 6), torch.randn(12, 6), torch.randint(12, (2, 9))
    given = [x if layout == "blhd" else x.transpose(1, 2) for x in (q, k, v)]
    how = {"interleaved": interleaved, "layout": layout}
    assert_close(*both(dlattn.rotary_embedding, *given[:2], cos, sin, positions=positions, **how))
    caches = [[torch.zeros(7, 3, 2, 16), torch.zeros(7, 3, 2, 12)] for _ in range(2)]
    slots = torch.randperm(21)[:18].reshape(2, 9)
    slots[0, 3] = -1
    rotated = []
    for backend, cache in zip((ATTN_BACKEND.CPU, ATTN_BACKEND.TORCH), caches, strict=True):
        views = cache if layout == "blhd" else [x.transpose(1, 2) for x in cache]
        with attn_backend(backend):
            rotated.append([dlattn.rotary_append_kv(*given, cos, sin, positions, *views, slots, **how)])
    assert_close(*rotated)
    assert_close(*caches)
    for backend, cache in zip((ATTN_BACKEND.CPU, ATTN_BACKEND.TORCH), caches, strict=True):
        with attn_backend(backend):
            dlattn.append_kv(k, v, *cache, slots)
    assert_close(*caches)
    with attn_backend(ATTN_BACKEND.CPU):
        parts = [
            dlattn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 9), slice(0, 0))
        ]
    assert_close(*both(dlattn.merge_attention_states, [p[0] for p in parts], [p[1] for p in parts]))


def test_hidden_keys_and_visible_nan():
    q, k, v = tensors()
    k[:, 7:] = torch.nan
    assert_close(*both(dlattn.attention, q, k, v, seqlens_k=torch.tensor([7, 5]), return_lse=True))
    assert_close(*both(dlattn.attention, q, k, v, mask=torch.arange(9).expand(2, 9) < 7, return_lse=True))
    q[1, 2, 3, 0] = torch.nan
    assert_close(*both(dlattn.attention, q, k[:, :7], v[:, :7], return_lse=True))


@pytest.mark.parametrize("sizes", [(0, 9), (5, 0), (0, 0)])
def test_sizes_of_zero(sizes):
    for causal in (False, True):
        assert_close(*both(dlattn.attention, *tensors(*sizes), is_causal=causal, return_lse=True))
        assert_close(*([x] for x in both(dlattn.attention, *tensors(*sizes), is_causal=causal)))


def test_out():
    q, k, v = tensors()
    out, lse = torch.zeros(2, 5, 4, 12), torch.zeros(2, 4, 5)
    with attn_backend(ATTN_BACKEND.TORCH):
        got = dlattn.attention(q, k, v, out=(out, lse), return_lse=True)
        assert got[0] is out
        assert got[1] is lse
        want = dlattn.attention(q, k, v, return_lse=True)
    assert torch.equal(out, want[0])
    assert torch.equal(lse, want[1])


def test_mistakes_are_told_like_everywhere():
    q, k, v = tensors()
    with attn_backend(ATTN_BACKEND.TORCH):
        with pytest.raises(ValueError, match=r"attention: k\.head_dim is 8, expected 16"):
            dlattn.attention(q, k[..., :8], v)
        with pytest.raises(ValueError, match=r"attention: seqlens_k"):
            dlattn.attention(q, k, v, seqlens_k=torch.tensor([10, 1]))
        with pytest.raises(ValueError, match=r"attention: .*torch"):
            dlattn.attention(q.numpy(), k.numpy(), v.numpy())
    assert dlattn.explain("attention", q, k, v).backend == "cpu"
    with attn_backend(ATTN_BACKEND.TORCH):
        assert dlattn.explain("attention", q, k, v).backend == "torch"


def eager(
    q,
    k,
    v,
    is_causal=False,
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    sinks=None,
    alibi_slopes=None,
    mask=None,
    seqlens_k=None,
):
    """Attention in a few float64 operations that autograd knows."""
    len_q, len_k = q.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    lens = torch.full((2,), len_k) if seqlens_k is None else seqlens_k
    at = torch.arange(len_q)[None, :, None] + (lens - len_q)[:, None, None]
    key = torch.arange(len_k)[None, None]
    keep = key < lens[:, None, None]
    if is_causal:
        keep = keep & (key <= at)
    if window[0] >= 0:
        keep = keep & (key >= at - window[0])
    if window[1] >= 0:
        keep = keep & (key <= at + window[1])
    keep = keep.expand(2, len_q, len_k)[:, None]
    if mask is not None:
        m = mask[:, None, None] if mask.ndim == 2 else mask[:, None] if mask.ndim == 3 else mask
        keep = keep & (m if m.dtype == torch.bool else m > -INF)
        s = s if m.dtype == torch.bool else s + m.double().masked_fill(m == -INF, 0)
    if alibi_slopes is not None:
        slopes = alibi_slopes.double().reshape(-1, 4, 1, 1)
        s = s - slopes * (at - key).abs()[:, None]
    s = s.masked_fill(~keep, -1e300)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[None, :, None, None].expand(2, 4, len_q, 1)], -1)
    p = torch.softmax(s, -1)[..., :len_k] * keep
    return torch.einsum("bhij,bjhd->bihd", p, v)


@options
@pytest.mark.parametrize("backend", [ATTN_BACKEND.AUTO, ATTN_BACKEND.TORCH])
def test_gradients(name, backend):
    given = [x.requires_grad_() for x in tensors()]
    wide = [x.detach().double().requires_grad_() for x in given]
    weight = torch.randn(2, 5, 4, 12, generator=torch.Generator().manual_seed(9))
    with attn_backend(backend):
        out = dlattn.attention(*given, **OPTIONS[name])
    want = eager(*wide, **OPTIONS[name])
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
    (out * weight).sum().backward()
    (want * weight.double()).sum().backward()
    for x, w in zip(given, wide, strict=True):
        assert torch.isfinite(x.grad).all()
        torch.testing.assert_close(x.grad.double(), w.grad, rtol=1e-4, atol=1e-5)


def test_gradients_of_rotary_and_varlen():
    q, k, v = (x.flatten(0, 1).requires_grad_() for x in tensors(9, 9))
    cos, sin = torch.randn(18, 8), torch.randn(18, 8)
    q2, k2 = dlattn.rotary_embedding(q, k, cos, sin, interleaved=True)
    cu = torch.tensor([0, 9, 18])
    dlattn.attn_varlen(q2, k2, v, cu, cu, is_causal=True).square().sum().backward()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]

    def turn(x):
        a, b = x[..., 0::2], x[..., 1::2]
        c, s = cos.double()[:, None], sin.double()[:, None]
        return torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)

    rotated = [turn(wide[0]).view(2, 9, 4, 16), turn(wide[1]).view(2, 9, 2, 16), wide[2].view(2, 9, 2, 12)]
    eager(*rotated, is_causal=True).square().sum().backward()
    for x, w in zip((q, k, v), wide, strict=True):
        torch.testing.assert_close(x.grad.double(), w.grad, rtol=1e-4, atol=1e-4)


def test_no_gradients_where_none_are_wanted():
    q, k, v = tensors()
    q.requires_grad_()
    with torch.no_grad():
        assert not dlattn.attention(q, k, v).requires_grad
    assert not dlattn.attention(q.detach(), k, v).requires_grad
    with attn_backend(ATTN_BACKEND.CPU), pytest.raises((ValueError, RuntimeError), match="grad"):
        dlattn.attention(q, k, v)


def ones(*shape):
    return torch.ones(shape)


def wrong_calls():
    """name -> (function, arguments, outputs that must stay as they are)."""
    q, k = ones(2, 3, 4, 8), ones(2, 5, 2, 8)
    packed, keys = ones(6, 4, 8), ones(10, 2, 8)
    cache, table, lens = ones(5, 4, 2, 8), torch.tensor([[0, 1], [2, 3]]), torch.tensor([8, 5])
    cu, out = torch.tensor([0, 3, 6]), torch.full((6, 4, 8), 7.0)
    new, slots = ones(3, 2, 8), torch.tensor([0, 1, 2])
    caches = [torch.full((2, 4, 2, 8), 7.0) for _ in range(2)]
    cos = ones(3, 4)
    shared = torch.full((2, 4, 2, 8), 7.0)
    buffer = ones(1, 4, 2, 8)
    paged = (packed, cache, cache)
    rotary = {"interleaved": True}
    grad = ones(2, 3, 4, 8).requires_grad_()
    return {
        "length": (dlattn.attention, (q, k, k), {"seqlens_k": torch.tensor([5, 6])}, []),
        "last page": (
            dlattn.attn_paged_prefill,
            (*paged, torch.tensor([[0, 1], [99, 99]]), lens, cu),
            {"out": out},
            [out],
        ),
        "last length": (dlattn.attn_paged_prefill, (*paged, table, torch.tensor([8, 99]), cu), {"out": out}, [out]),
        "cu_seqlens_k": (dlattn.attn_varlen, (packed, keys, keys, cu, torch.tensor([0, 5, 11])), {"out": out}, [out]),
        "cu_seqlens_q": (dlattn.attn_varlen, (packed, keys, keys, torch.tensor([0, 5, 3]), cu), {"out": out}, [out]),
        "mask": (dlattn.attn_varlen, (packed, keys, keys, cu, cu), {"mask": ones(2, 2, 3) > 0, "out": out}, [out]),
        "page of decode": (dlattn.attn_paged_decode, (q, cache, cache, table - 1, lens), {}, []),
        "out is q": (dlattn.attention, (q, q, q), {"out": q}, [q]),
        "out is q, with gradients": (dlattn.attention, (grad, q, q), {"out": q}, [q]),
        "out overlaps itself": (dlattn.attention, (q, k, k), {"out": ones(1, 1, 4, 8).expand(2, 3, 4, 8)}, []),
        "slot": (dlattn.append_kv, (new, new, *caches, torch.tensor([0, 1, 8])), {}, caches),
        "slot twice": (dlattn.append_kv, (new, new, *caches, torch.tensor([1, 0, 1])), {}, caches),
        "one cache": (dlattn.append_kv, (new, new, shared, shared, slots), {}, [shared]),
        "position": (
            dlattn.rotary_append_kv,
            (new, new, new, cos, cos, torch.tensor([0, 1, 3]), *caches, slots),
            rotary,
            caches,
        ),
        "k is the cache": (
            dlattn.rotary_append_kv,
            (new, shared[0, :3], new, cos, cos, None, shared, caches[0], slots),
            rotary,
            [shared, caches[0]],
        ),
        "shifted": (
            dlattn.rotary_embedding,
            (buffer[:, :3], None, cos, cos),
            rotary | {"out": (buffer[:, 1:], None)},
            [buffer],
        ),
        "states": (
            dlattn.merge_attention_states,
            ([buffer[:, 1:], ones(1, 3, 2, 8)], [ones(1, 2, 3)] * 2),
            {"out": (buffer[:, :3], None)},
            [buffer],
        ),
    }


@pytest.mark.parametrize("what", wrong_calls())
def test_wrong_values_and_memory_are_told_alike_before_anything_is_written(what):
    texts = []
    for backend in (ATTN_BACKEND.CPU, ATTN_BACKEND.TORCH):
        function, args, keywords, outputs = wrong_calls()[what]
        before = [x.clone() for x in outputs]
        if backend is ATTN_BACKEND.CPU:
            args = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        with attn_backend(backend), pytest.raises(ValueError) as caught:
            function(*args, **keywords)
        texts.append(str(caught.value))
        assert all(torch.equal(x, b) for x, b in zip(outputs, before, strict=True))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("prefill", [False, True])
def test_pages_that_a_window_hides_may_have_any_number(prefill):
    q, cache_k, cache_v = torch.randn(2, 2, 4, 8), torch.randn(5, 2, 2, 8), torch.randn(5, 2, 2, 8)
    table, lens = torch.tensor([[999, -5, 1, 2], [3, 999, 999, 999]]), torch.tensor([8, 2])
    keywords = {"window": (2, -1), "is_causal": True, "return_lse": True}
    if prefill:
        args = (q.flatten(0, 1), cache_k, cache_v, table, lens, torch.tensor([0, 2, 4]))
        assert_close(*both(dlattn.attn_paged_prefill, *args, **keywords))
        none = (q.flatten(0, 1), cache_k, cache_v, table, lens, torch.tensor([2, 2, 4]))  # no queries: no page is read
        got = both(dlattn.attn_paged_prefill, *none, window=(2, -1))
        assert torch.allclose(got[0][2:], got[1][2:], atol=1e-6)
    else:
        assert_close(*both(dlattn.attn_paged_decode, q, cache_k, cache_v, table, lens, **keywords))


def test_things_that_are_no_tensors():
    q, k, v = tensors()
    with attn_backend(ATTN_BACKEND.TORCH):
        with pytest.raises(ValueError, match=r"attention: q is a numpy\.ndarray, expected a torch\.Tensor"):
            dlattn.attention(q.numpy(), k, v)
        with pytest.raises(ValueError, match=r"attention: out is a numpy\.ndarray, expected a torch\.Tensor"):
            dlattn.attention(q, k, v, out=torch.zeros(2, 5, 4, 12).numpy())


def test_explain_of_gradients_under_another_backend():
    q, k, v = tensors()
    q.requires_grad_()
    assert dlattn.explain("attention", q, k, v).backend == "torch"
    with attn_backend(ATTN_BACKEND.CPU):
        e = dlattn.explain("attention", q, k, v)
    assert (e.supported, e.backend) == (False, "cpu")
    assert e.reason.startswith("q requires grad")


@pytest.mark.parametrize("window", [(-1, -1), (0, 0), (3, 0)])
def test_without_queries_no_page_is_looked_at(window):
    q, cache = torch.zeros(1, 0, 1, 8), torch.ones(2, 4, 1, 8)
    table, lengths = torch.tensor([[99999, 1]], dtype=torch.int32), torch.tensor([8], dtype=torch.int32)
    with dlattn.attn_backend(dlattn.ATTN_BACKEND.TORCH):
        out, lse = dlattn.attn_paged_decode(q, cache, cache, table, lengths, window=window, return_lse=True)
    assert out.shape == (1, 0, 1, 8)
    assert lse.shape == (1, 1, 0)
