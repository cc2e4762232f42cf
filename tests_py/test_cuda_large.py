"""Offsets beyond 2^31 elements in GPU memory: the public reports' own sizes."""

import numpy as np
import pytest

from cuda_support import function, quietly

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch():
    torch = quietly("torch")
    free, _ = torch.cuda.mem_get_info()
    if free < 12 * 2**30:
        pytest.skip(f"{free / 2**30:.0f} GiB of GPU memory are free, expected 12")
    yield torch
    torch.cuda.empty_cache()


def test_br_28_rotary_on_more_than_2_to_the_31_elements(torch):
    x = torch.zeros(7200, 90, 3, 16, 72, dtype=torch.bfloat16, device="cuda")
    assert x.numel() > 2**31
    x[0].normal_(), x[-1].normal_()
    cos, sin = torch.randn(90, 36, device="cuda"), torch.randn(90, 36, device="cuda")
    before = x[-1].clone()
    alone = [function("rotary_embedding")(before[None, :, i], None, cos, sin, interleaved=True)[0][0] for i in (0, 1)]
    new, _ = function("rotary_embedding")(x[:, :, 0], None, cos, sin, interleaved=True)
    assert torch.equal(new[-1], alone[0])
    del new
    function("rotary_embedding")(x[:, :, 0], x[:, :, 1], cos, sin, interleaved=True, inplace=True)
    assert torch.equal(x[-1, :, 0], alone[0])
    assert torch.equal(x[-1, :, 1], alone[1])
    assert torch.equal(x[-1, :, 2], before[:, 2])
    assert (x[3600] == 0).all()


@pytest.mark.parametrize("name", ["attention", "attn_prefill", "attn_decode"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_br_37_cache_batch_stride_of_2_to_the_30_elements(torch, name, dtype):
    kind = getattr(torch, dtype)
    step = 2**30 if dtype == "float16" else 2**29 + 8
    buffer = torch.empty(4 * step + 512, dtype=kind, device="cuda")
    cache = buffer.as_strided((5, 8, 1, 64), (step, 64, 64, 1))
    packed = torch.randn(5, 8, 1, 64, device="cuda").to(kind)
    cache.copy_(packed)
    q, lens = torch.randn(5, 1, 1, 64, device="cuda").to(kind), torch.full((5,), 8, dtype=torch.int32, device="cuda")
    got = function(name)(q, cache, cache, seqlens_k=lens)
    assert torch.equal(got, function(name)(q, packed, packed, seqlens_k=lens))
    out = buffer.as_strided((5, 1, 1, 64), (step, 64, 64, 1))
    function(name)(q, packed, packed, seqlens_k=lens, out=out)
    assert torch.equal(got, out)


def test_br_38_page_number_times_page_stride(torch):
    """The report's pages are [256, 8, 512]; head_dim is at most 256: [256, 16, 256] has the same stride of 2^20."""
    pool = torch.empty(2049, 256, 16, 256, dtype=torch.float16, device="cuda")
    page = torch.randn(1, 256, 16, 256, device="cuda").half()
    pool[2048] = page[0]
    q = torch.randn(1, 1, 16, 256, device="cuda").half()
    lens, cu = torch.tensor([100], device="cuda"), torch.tensor([0, 1], device="cuda")
    high, low = torch.tensor([[2048]], device="cuda"), torch.tensor([[0]], device="cuda")
    for index in (torch.int32, torch.int64):
        got = function("attn_paged_decode")(q, pool, pool, high.to(index), lens)
        assert torch.equal(got, function("attn_paged_decode")(q, page, page, low.to(index), lens))
        assert torch.isfinite(got).all()
        assert got.any()
        got = function("attn_paged_prefill")(q[0], pool, pool, high.to(index), lens, cu)
        assert torch.equal(got, function("attn_paged_prefill")(q[0], page, page, low.to(index), lens, cu))
    values = torch.empty_like(pool)
    slot = torch.tensor([2048 * 256 + 7], device="cuda")
    function("append_kv")(page[0, :1] + 1, page[0, :1], pool, values, slot)
    assert torch.equal(pool[2048, 7], page[0, 0] + 1)
    assert torch.equal(pool[2048, 8], page[0, 8])
    assert torch.equal(values[2048, 7], page[0, 0])


def test_more_than_2_to_the_31_keys_times_width(torch):
    """One sequence's keys pass 2^31 elements: the last of them is the one that is seen."""
    heads, dim, keys = 64, 128, 2**18 + 5
    k = torch.zeros(1, keys, heads, dim, dtype=torch.float16, device="cuda")
    assert k.numel() > 2**31
    k[0, -1, :, 0] = 100
    v = torch.zeros(1, 1, 1, 8, dtype=torch.float16, device="cuda").expand(1, keys, heads, 8).contiguous()
    v[0, -1] = torch.arange(heads, device="cuda").half()[:, None]
    q = torch.zeros(1, 1, heads, dim, dtype=torch.float16, device="cuda")
    q[..., 0] = 10
    want = np.broadcast_to(np.arange(heads)[:, None], (heads, 8))
    for name in ("attn_decode", "attn_prefill"):
        got = function(name)(q, k, v)
        np.testing.assert_allclose(got[0, 0].float().cpu().numpy(), want, rtol=1e-3)
