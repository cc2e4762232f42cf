"""PyTorch tensors as arguments: what is accepted, what comes back, what is refused."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import dlattn

torch = pytest.importorskip("torch")


def tensors(dtype=torch.float32, dim=16):
    g = torch.Generator().manual_seed(5)
    return [torch.randn(s, generator=g).to(dtype) for s in [(2, 6, 4, dim), (2, 9, 2, dim), (2, 9, 2, dim)]]


def direct(*given, **options):
    """The CPU backend, so that nothing can go to torch's own operations."""
    with dlattn.attn_backend(dlattn.ATTN_BACKEND.CPU):
        return dlattn.attention(*given, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_and_results(dtype):
    q, k, v = tensors(dtype)
    out, lse = dlattn.attention(q, k, v, return_lse=True)
    assert type(out) is torch.Tensor
    assert out.dtype == dtype
    assert out.device == q.device
    assert out.shape == q.shape
    assert lse.dtype == torch.float32
    assert lse.shape == (2, 4, 6)
    assert not out.requires_grad
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)), enable_gqa=True
    ).transpose(1, 2)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    mine = torch.full_like(q, torch.nan)
    assert dlattn.attention(q, k, v, out=mine) is mine
    assert torch.equal(mine, out)
    mine_lse = torch.full_like(lse, torch.nan)
    given = dlattn.attention(q, k, v, out=(mine, mine_lse), return_lse=True)
    assert given[0] is mine
    assert given[1] is mine_lse
    assert torch.equal(mine_lse, lse)


def test_views_with_offsets_and_strides():
    q, k, v = tensors()
    want = dlattn.attention(q, k, v)
    packed = torch.randn(2, 9, 8, 20)
    packed[:, :6, :4, 3:19], packed[:, :, 4:6, 3:19], packed[:, :, 6:8, 3:19] = q, k, v
    got = dlattn.attention(packed[:, :6, :4, 3:19], packed[:, :, 4:6, 3:19], packed[:, :, 6:8, 3:19])
    assert torch.equal(got, want)
    swapped = dlattn.attention(*(x.transpose(1, 2) for x in (q, k, v)), layout="bhld")
    assert torch.equal(swapped.transpose(1, 2), want)
    odd = torch.empty(0).set_(torch.arange(48.0).untyped_storage(), 0, (1, 3, 1, 16), (77, 16, 5, 1))
    assert torch.equal(dlattn.attention(odd, odd, odd), dlattn.attention(odd.clone(), odd.clone(), odd.clone()))


def test_expanded_inputs_and_outputs():
    q, k, v = tensors()
    assert torch.equal(
        dlattn.attention(q, k[:1].expand(2, -1, -1, -1), v), dlattn.attention(q, k[:1].repeat(2, 1, 1, 1), v)
    )
    with pytest.raises(ValueError, match="attention: out"):
        dlattn.attention(q, k, v, out=torch.zeros(1, 6, 4, 16).expand(2, -1, -1, -1))


@pytest.mark.parametrize(
    "name", ["float64", "complex64", "int32", "uint16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bool"]
)
def test_dtypes_that_are_refused(name):
    q, k, v = tensors()
    with pytest.raises(ValueError, match=r"attention: k\b.*dtype"):
        dlattn.attention(q, torch.zeros(k.shape, dtype=getattr(torch, name)), v)


def test_bool_and_float_masks():
    q, k, v = tensors()
    keep = torch.rand(2, 6, 9) < 0.7
    want = dlattn.attention(q, k, v, mask=keep.numpy())
    assert torch.equal(dlattn.attention(q, k, v, mask=keep), want)
    bias = torch.zeros(2, 6, 9).masked_fill(~keep, -torch.inf)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        torch.testing.assert_close(dlattn.attention(q, k, v, mask=bias.to(dtype)), want)


def test_a_tensor_that_requires_grad_is_not_taken_silently():
    for make in (lambda x: x.clone().requires_grad_(), torch.nn.Parameter):
        q, k, v = tensors()
        q = make(q)
        with pytest.raises((ValueError, RuntimeError), match=r"attention: .*\bq\b.*grad"):
            direct(q, k, v)
        with torch.no_grad():
            assert not direct(q, k, v).requires_grad
        with torch.inference_mode():
            direct(q, k, v)
        out = dlattn.attention(q, k, v)  # AUTO: torch's own operations
        assert out.requires_grad
        with pytest.raises(ValueError, match=r"attention: out.*grad"):
            direct(*tensors(), out=torch.zeros(q.shape, requires_grad=True))


def test_negative_and_conjugate_views():
    q, k, v = tensors()
    negative = torch.view_as_complex(torch.randn(*k.shape, 2)).conj().imag
    assert negative.is_neg()
    with pytest.raises(ValueError, match=r"attention: (k|v).*negative"):
        dlattn.attention(q, torch._neg_view(k), v)
    with pytest.raises(ValueError, match=r"attention: k\b"):
        dlattn.attention(q, negative, v)
    with pytest.raises(ValueError, match=r"attention: k\b"):
        dlattn.attention(q, torch.complex(k, k).conj(), v)


def test_tensors_without_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = tensors()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(k)
    for bad in (
        fake,
        torch.empty(k.shape, device="meta"),
        k.to_sparse(),
        torch.nn.Parameter(torch.empty(k.shape, device="meta"), False),
    ):
        with pytest.raises(ValueError, match=r"attention: k\b"):
            dlattn.attention(q, bad, v)


def test_mixed_frameworks_give_the_framework_of_q():
    q, k, v = tensors()
    want = dlattn.attention(q, k, v)
    got = dlattn.attention(q, k.numpy(), v)
    assert type(got) is torch.Tensor
    assert torch.equal(got, want)
    got = dlattn.attention(q.numpy(), k, v)
    assert type(got) is np.ndarray
    assert np.array_equal(got, want.numpy())


def test_every_function_takes_tensors():
    q, k, v = tensors()
    cu_q, cu_k = torch.tensor([0, 6, 12]), torch.tensor([0, 9, 18])
    out = dlattn.attn_varlen(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k)
    torch.testing.assert_close(out.view(q.shape), dlattn.attention(q, k, v))
    cache_k, cache_v = torch.zeros(6, 4, 2, 16), torch.zeros(6, 4, 2, 16)
    slots = torch.stack([torch.arange(9), torch.arange(12, 21)])
    assert dlattn.append_kv(k, v, cache_k, cache_v, slots) is None
    table, lens = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32), torch.tensor([9, 9], dtype=torch.int32)
    torch.testing.assert_close(dlattn.attn_paged_decode(q, cache_k, cache_v, table, lens), dlattn.attention(q, k, v))
    paged = dlattn.attn_paged_prefill(q.flatten(0, 1), cache_k, cache_v, table, lens, cu_q)
    torch.testing.assert_close(paged.view(q.shape), dlattn.attention(q, k, v))
    cos, sin = torch.randn(9, 8), torch.randn(9, 8)
    q2, _ = dlattn.rotary_embedding(q, k[:, :6], cos, sin, interleaved=True)
    _, k2 = dlattn.rotary_embedding(k, k, cos, sin, interleaved=True)
    assert type(q2) is torch.Tensor
    assert torch.equal(dlattn.apply_rotary_emb(q, (cos[:6], sin[:6])), q2)
    k3 = k.clone()
    assert dlattn.rotary_embedding(k3, None, cos, sin, interleaved=True, inplace=True)[0] is k3
    assert torch.equal(k3, k2)
    a, b = (dlattn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 9)))
    merged, lse = dlattn.merge_attention_states([a[0], b[0]], [a[1], b[1]])
    torch.testing.assert_close(merged, dlattn.attention(q, k, v))
    assert lse.dtype == torch.float32


def writes():
    """name -> (call, the tensors that it writes)."""
    q, k, v = tensors()
    cos = torch.ones(9, 8)
    out, lse = torch.zeros(2, 6, 4, 16), torch.zeros(2, 4, 6)
    caches = [torch.zeros(5, 4, 2, 16) for _ in range(2)]
    slots, cu, cu_k = torch.arange(18).reshape(2, 9), torch.tensor([0, 6, 12]), torch.tensor([0, 9, 18])
    table, lens = torch.tensor([[0, 1, 2]] * 2), torch.tensor([9, 9])
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out3 = out.flatten(0, 1)
    q2, k2 = q.clone(), k[:, :6].clone()
    k_out = torch.zeros_like(k2)
    both = {"out": (out, lse), "return_lse": True}
    one, lses = q.clone(), torch.zeros(2, 4, 6)
    states = [one, q], [lses, torch.zeros(2, 4, 6)]
    rotary = {"interleaved": True}
    return {
        "attention": (lambda: dlattn.attention(q, k, v, out=out), [out]),
        "attn_prefill": (lambda: dlattn.attn_prefill(q, k, v, **both), [out, lse]),
        "attn_decode": (lambda: dlattn.attn_decode(q, k, v, **both), [out, lse]),
        "attn_varlen": (lambda: dlattn.attn_varlen(*packed, cu, cu_k, out=out3), [out3]),
        "attn_paged_decode": (lambda: dlattn.attn_paged_decode(q, *caches, table, lens, out=out), [out]),
        "attn_paged_prefill": (
            lambda: dlattn.attn_paged_prefill(packed[0], *caches, table, lens, cu, out=out3),
            [out3],
        ),
        "rotary_embedding": (
            lambda: dlattn.rotary_embedding(q, k2, cos, cos, out=(out, k_out), **rotary),
            [out, k_out],
        ),
        "in place": (lambda: dlattn.rotary_embedding(q2, k2, cos, cos, inplace=True, **rotary), [q2, k2]),
        "append_kv": (lambda: dlattn.append_kv(k, v, *caches, slots), caches),
        "rotary_append_kv": (
            lambda: dlattn.rotary_append_kv(q, k2, k_out, cos, cos, None, *caches, slots[:, :6], out=out, **rotary),
            [out, *caches],
        ),
        "merge_attention_states": (lambda: dlattn.merge_attention_states(*states, out=(one, lses)), [one, lses]),
        "large": (lambda: dlattn.attention(big, big, big, out=big_out), [big_out]),
    }


big = torch.ones(1, 100, 4, 16)
big_out = torch.zeros(1, 100, 4, 16)


@pytest.mark.parametrize("what", writes())
def test_autograd_sees_what_is_written(what):
    call, written = writes()[what]
    for context in (torch.enable_grad, torch.no_grad):
        saved = [torch.ones_like(x, requires_grad=True) for x in written]
        with torch.enable_grad():
            products = [(w * x).sum() for w, x in zip(saved, written, strict=True)]  # backward() needs x as it is now
        before = [x._version for x in written]
        with context():
            call()
        assert all(x._version > b for x, b in zip(written, before, strict=True))
        for product in products:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()


def test_an_error_and_a_question_count_as_no_write():
    q, k, v = tensors()
    out = torch.zeros_like(q)
    with pytest.raises(ValueError, match="seqlens_k"):
        dlattn.attention(q, k, v, out=out, seqlens_k=torch.tensor([99, 1]))
    dlattn.explain("attention", q, k, v, out=out)
    assert out._version == 0


def test_inference_tensors_have_no_version_and_are_written():
    q, k, v = tensors()
    with torch.inference_mode():
        out = torch.zeros_like(q)
    assert dlattn.attention(q, k, v, out=out) is out
    with torch.inference_mode():
        dlattn.attention(q, k, v, out=out)
    assert torch.equal(out.clone(), dlattn.attention(q, k, v))


def test_the_state_that_requires_grad_is_named():
    state = [torch.ones(1, 3, 4, 8) for _ in range(30)]
    lses = [torch.zeros(1, 4, 3) for _ in range(30)]
    for i in (1, 23):
        given = [x.clone().requires_grad_(j == i) for j, x in enumerate(state)]
        with (
            dlattn.attn_backend(dlattn.ATTN_BACKEND.CPU),
            pytest.raises(ValueError, match=rf"^merge_attention_states: outs\[{i}\] requires grad"),
        ):
            dlattn.merge_attention_states(given, lses)


def test_a_result_that_is_too_large_is_told_in_one_line():
    q = torch.ones(1, 1, 1, 8).expand(2**44, 1, 1, 8)
    with pytest.raises(RuntimeError, match=r"^attention: the result could not be allocated: ") as caught:
        dlattn.attention(q, q, q)
    assert "\n" not in str(caught.value)


LAYOUT = r"""
#include <cstdio>
#include "ATen/dlpack.h"
#include "dlpack.h"
namespace d = dlattn::dlpack;
#define SIZE(a, b) std::printf("%s %zu %zu\n", #a, sizeof(a), sizeof(b));
#define FIELD(a, f, b, g) std::printf("%s.%s %zu %zu\n", #a, #f, offsetof(a, f), offsetof(b, g));
#define VALUE(a, b) std::printf("%s %lld %lld\n", #a, (long long)(a), (long long)(b));
int main() {
  SIZE(DLPackVersion, d::Version) SIZE(DLDevice, d::DeviceId) SIZE(DLDataType, d::DataType) SIZE(DLTensor, d::Tensor)
  SIZE(DLManagedTensor, d::ManagedTensor) SIZE(DLManagedTensorVersioned, d::ManagedTensorVersioned)
  SIZE(DLPackExchangeAPIHeader, d::ExchangeHeader) SIZE(DLPackExchangeAPI, d::ExchangeApi)
  FIELD(DLPackVersion, minor, d::Version, minor) FIELD(DLDevice, device_id, d::DeviceId, index)
  FIELD(DLDataType, bits, d::DataType, bits) FIELD(DLDataType, lanes, d::DataType, lanes)
  FIELD(DLTensor, data, d::Tensor, data) FIELD(DLTensor, device, d::Tensor, device)
  FIELD(DLTensor, ndim, d::Tensor, ndim)
  FIELD(DLTensor, dtype, d::Tensor, dtype) FIELD(DLTensor, shape, d::Tensor, shape)
  FIELD(DLTensor, strides, d::Tensor, strides) FIELD(DLTensor, byte_offset, d::Tensor, byte_offset)
  FIELD(DLManagedTensor, dl_tensor, d::ManagedTensor, tensor)
  FIELD(DLManagedTensor, manager_ctx, d::ManagedTensor, context)
  FIELD(DLManagedTensor, deleter, d::ManagedTensor, deleter)
  FIELD(DLManagedTensorVersioned, version, d::ManagedTensorVersioned, version)
  FIELD(DLManagedTensorVersioned, manager_ctx, d::ManagedTensorVersioned, context)
  FIELD(DLManagedTensorVersioned, deleter, d::ManagedTensorVersioned, deleter)
  FIELD(DLManagedTensorVersioned, flags, d::ManagedTensorVersioned, flags)
  FIELD(DLManagedTensorVersioned, dl_tensor, d::ManagedTensorVersioned, tensor)
  FIELD(DLPackExchangeAPIHeader, prev_api, d::ExchangeHeader, previous)
  FIELD(DLPackExchangeAPI, managed_tensor_allocator, d::ExchangeApi, allocate)
  FIELD(DLPackExchangeAPI, managed_tensor_from_py_object_no_sync, d::ExchangeApi, managed_from_object)
  FIELD(DLPackExchangeAPI, managed_tensor_to_py_object_no_sync, d::ExchangeApi, object_from_managed)
  FIELD(DLPackExchangeAPI, dltensor_from_py_object_no_sync, d::ExchangeApi, tensor_from_object)
  FIELD(DLPackExchangeAPI, current_work_stream, d::ExchangeApi, current_stream)
  VALUE(kDLCPU, d::kCPU) VALUE(kDLCUDA, d::kCUDA) VALUE(kDLCUDAHost, d::kCUDAHost)
  VALUE(kDLCUDAManaged, d::kCUDAManaged)
  VALUE(kDLInt, d::kInt) VALUE(kDLUInt, d::kUInt) VALUE(kDLFloat, d::kFloat) VALUE(kDLBfloat, d::kBfloat)
  VALUE(kDLComplex, d::kComplex) VALUE(kDLBool, d::kBool) VALUE(DLPACK_FLAG_BITMASK_READ_ONLY, d::kFlagReadOnly)
  VALUE(DLPACK_MAJOR_VERSION, d::kMajor)
}
"""


def test_our_dlpack_structs_are_those_of_pytorchs_header(tmp_path):
    ours = Path(__file__).parents[1] / "python" / "src"
    compiler = shutil.which("g++") or shutil.which("c++") or (sysconfig.get_config_var("CXX") or "c++").split()[0]
    if not shutil.which(compiler) or not (ours / "dlpack.h").exists():
        pytest.skip("needs a C++ compiler and the source tree")
    (tmp_path / "layout.cpp").write_text(LAYOUT)
    theirs = Path(torch.__file__).parent / "include"
    command = [compiler, "-std=c++17", f"-I{theirs}", f"-I{ours}", "-o", tmp_path / "layout", tmp_path / "layout.cpp"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    lines = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == 8 + 25 + 12
    for line in lines:
        name, their, our = line.split()
        assert their == our, name
