"""CUDA: errors and what they leave behind, values that nobody checks, sizes, choice of kernels, same bits twice."""

import os
import subprocess
import sys

import numpy as np
import pytest

import dlattn
from cuda_calls import SAMPLES
from cuda_support import DEVICE, FRAMEWORKS, close, function, quietly

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
NAN = float("nan")


@pytest.fixture
def torch():
    return quietly("torch")


@pytest.fixture
def kind():
    return FRAMEWORKS["torch"]()


# ---- errors

# (operation, argument, what becomes of it, what the message says)
BAD = [
    ("attention", "q", lambda t, x: x.double(), r"q\.dtype is float64"),
    ("attention", "k", lambda t, x: x[..., :8], r"k\.head_dim"),
    ("attention", "v", lambda t, x: x[:, :5], r"v\.(len|seqlen)_?k?"),
    ("attention", "v", lambda t, x: x.half(), r"v\.dtype is float16"),
    ("attention", "k", lambda t, x: x.transpose(2, 3).contiguous().transpose(2, 3), r"k\.strides\[3\]"),
    ("attention", "seqlens_k", lambda t, x: x.float(), r"seqlens_k\.dtype is float32"),
    ("attention", "seqlens_k", lambda t, x: x[:1], r"seqlens_k\."),
    ("attn_prefill", "mask", lambda t, x: x[:, :2], r"mask\."),
    ("attn_prefill", "mask", lambda t, x: x.int(), r"mask\.dtype is int32"),
    ("attn_varlen", "cu_seqlens_q", lambda t, x: x[:2], r"cu_seqlens_"),
    ("attn_varlen", "cu_seqlens_k", lambda t, x: x.short(), r"cu_seqlens_k\.dtype is int16"),
    ("attn_paged_decode", "page_table", lambda t, x: x[0], r"page_table\.ndim"),
    ("attn_paged_decode", "v_cache", lambda t, x: x[:4], r"v_cache\."),
    ("attn_paged_decode", "seqlens_k", lambda t, x: x.cpu(), r"seqlens_k\.device is cpu"),
    ("attn_paged_prefill", "cu_seqlens_q", lambda t, x: None, r"cu_seqlens_q is None"),
    ("rotary_embedding", "cos", lambda t, x: x[:, :3], r"(cos|sin)\."),
    ("rotary_embedding", "positions", lambda t, x: x[:, :2], r"positions\."),
    ("append_kv", "slot_mapping", lambda t, x: x[:2], r"slot_mapping\."),
    ("append_kv", "v_cache", lambda t, x: x[:, :4], r"v_cache\."),
    ("append_kv", "k_cache", lambda t, x: x.half(), r"k_cache\.dtype|k\.dtype"),
    ("rotary_append_kv", "v", lambda t, x: x[:2], r"v\."),
    ("merge_attention_states", "lses", lambda t, x: [*x[:2], x[2].half()], r"lses\[2\]\.dtype"),
    ("merge_attention_states", "outs", lambda t, x: [*x[:2], x[2][:, :1]], r"outs\[2\]"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c[0]}-{c[1]}-{BAD.index(c)}")
def test_a_bad_argument_is_refused_before_anything_is_written(torch, kind, case):
    op, argument, change, text = case
    sample = SAMPLES[op]
    arguments = sample.make(kind, "float32")
    before = {name: x.clone() for name, x in arguments.items() if not isinstance(x, list)}
    want, _ = sample.on_cpu("float32")
    out = [torch.full(y.shape, NAN, device=DEVICE) for y in want]
    given = {} if not want else {"out": tuple(out) if len(out) > 1 else out[0]}
    with pytest.raises(ValueError, match=rf"^{op}: {text}"):
        sample.call({**arguments, argument: change(torch, arguments[argument])}, **given)
    torch.cuda.synchronize()
    assert all(torch.isnan(x).all() for x in out)
    assert all(torch.equal(x, before[name]) for name, x in arguments.items() if name in before)
    for x, y in zip(sample.call(arguments), want, strict=True):
        close(kind.numpy(x), y, "float32")


def test_overlapping_and_read_only_outputs(torch, kind):
    arguments = SAMPLES["attention"].make(kind, "float32")
    q, k, v = (arguments[name] for name in "qkv")
    with pytest.raises(ValueError, match="attention: out"):
        function("attention")(q, k, v, out=q)
    with pytest.raises(ValueError, match="attention: out"):
        function("attention")(q, k, v, out=torch.zeros(1, *q.shape[1:], device=DEVICE).expand(q.shape))


def test_a_result_that_is_too_large(torch):
    q = torch.ones(1, 1, 1, 8, device=DEVICE).expand(2**44, 1, 1, 8)
    with pytest.raises(RuntimeError, match=r"^attention: the result could not be allocated: "):
        function("attention")(q, q, q)
    q = torch.ones(1, 1, 1, 8, device=DEVICE)
    assert (function("attention")(q, q, q) == 1).all()
    torch.cuda.synchronize()


def test_a_tensor_that_requires_grad_goes_to_torch(torch, kind):
    q, k, v = (SAMPLES["attention"].make(kind, "float32")[name] for name in "qkv")
    out = function("attention")(q.requires_grad_(), k, v)
    out.sum().backward()
    assert q.grad is not None
    with dlattn.attn_backend(dlattn.ATTN_BACKEND.CUDA), pytest.raises(ValueError, match="attention: q requires grad"):
        function("attention")(q, k, v)
    with torch.no_grad():
        close(function("attention")(q, k, v).cpu().numpy(), out.detach().cpu().numpy(), "float32")


def run(script, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


# A launch on the legacy default stream fails while another stream that waits for it is captured.
FAILURE = """
import cupy, dlattn
x, table = cupy.ones((1, 1, 1, 8), cupy.float32), cupy.full((1, 4), 0.5, cupy.float32)
call = lambda stream: dlattn.rotary_embedding(x, None, table, table, interleaved=True, stream=stream)[0]
call(None)
cupy.cuda.runtime.deviceSynchronize()
stream = cupy.cuda.Stream()
stream.begin_capture()
try:
    call(1)
except RuntimeError as error:
    print("error:", error)
try:
    stream.end_capture()
except cupy.cuda.runtime.CUDARuntimeError:
    pass
got = call(None)
cupy.cuda.runtime.deviceSynchronize()
assert got.ravel().tolist() == [0.0, 1.0] * 4, got
print("works")
"""


def test_an_error_of_cuda_leaves_nothing_behind():
    quietly("cupy")
    done = run(FAILURE)
    assert done.stdout.endswith("works\n"), done.stdout + done.stderr
    assert "error: " in done.stdout
    assert "cuda" in done.stdout.lower()


# ---- which kernel

KERNEL = """
import torch, dlattn
q, k = torch.ones(1, 1, 4, 64, device="cuda").half(), torch.ones(1, 500, 1, 64, device="cuda").half()
print(dlattn.explain("attn_decode", q, k, k))
assert (dlattn.attn_decode(q, k, k) == 1).all()
"""


@pytest.mark.parametrize("family", ["simt", "mma", "wgmma", "nonsense", ""])
def test_a_family_that_the_environment_asks_for(torch, family):
    done = run(KERNEL, DLATTN_KERNEL=family)
    built = dlattn.info()["cuda_families"]
    if family == "":
        assert done.returncode == 0, done.stderr
        assert "supported=True, backend='cuda'" in done.stdout
    elif family == "nonsense":
        assert done.returncode != 0
        assert "ValueError" in done.stderr
        assert "DLATTN_KERNEL" in done.stderr
    elif family not in built:
        assert done.returncode != 0
        assert "NotImplementedError" in done.stderr or "RuntimeError" in done.stderr
        assert family in done.stderr
        assert all(name in done.stderr for name in built), "it says what is compiled"
    elif done.returncode == 0:
        assert f"_{family}" in done.stdout
    else:  # built, but not for this device or this problem
        assert "supported=False" in done.stdout, done.stdout + done.stderr
        assert "NotImplementedError" in done.stderr
        assert family in done.stderr


def test_a_family_without_float32_says_so(torch):
    if "mma" not in dlattn.info()["cuda_families"]:
        pytest.skip("this build has no mma kernels")
    done = run(KERNEL.replace(".half()", ""), DLATTN_KERNEL="mma")
    assert done.returncode != 0
    assert "supported=False, backend='cuda'" in done.stdout
    assert "NotImplementedError: attn_decode: DLATTN_KERNEL is mma: no kernel takes the call: no float32" in done.stderr


def test_explain_names_a_kernel_for_every_operation(kind):
    names = set(dlattn.info()["cuda_kernels"])
    for op, sample in SAMPLES.items():
        for dtype in ("float32", "float16", "bfloat16"):
            arguments = sample.make(kind, dtype)
            e = dlattn.explain(op, **arguments, **sample.options)
            assert e.supported
            assert e.backend == "cuda"
            assert e.kernel in names if op.startswith("att") else e.kernel
            assert e.reason


# ---- values that a launch cannot check


def test_lengths_out_of_range_are_brought_into_it(torch, kind):
    q, k, v = (SAMPLES["attn_decode"].make(kind, "float32")[name] for name in "qkv")
    keys = k.shape[1]
    wild = torch.tensor([-5, 10**9], dtype=torch.int32, device=DEVICE)
    tame = torch.tensor([0, keys], dtype=torch.int32, device=DEVICE)
    got, want = (function("attn_decode")(q, k, v, seqlens_k=x, return_lse=True) for x in (wild, tame))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    assert (got[0][0] == 0).all()


def test_cu_seqlens_and_page_ids_out_of_range_touch_nothing_else(torch, kind):
    arguments = SAMPLES["attn_varlen"].make(kind, "float32")
    for bad in ([0, 10**6, -3], [-7, 2, 10**9], [7, 3, 0]):
        cu = torch.tensor(bad, dtype=torch.int32, device=DEVICE)
        function("attn_varlen")(**{**arguments, "cu_seqlens_q": cu, "cu_seqlens_k": cu})
        function("attn_varlen")(**{**arguments, "cu_seqlens_k": cu})
    sample = SAMPLES["attn_paged_decode"]
    arguments = sample.make(kind, "float32")
    want, _ = sample.on_cpu("float32")
    arguments["page_table"][0] = 10**6
    arguments["page_table"][0, 1] = -(10**6)
    got = sample.call(arguments)
    torch.cuda.synchronize()
    close(kind.numpy(got[0][1]), want[0][1], "float32")


def test_positions_out_of_range_give_nan_rows(torch, kind):
    sample = SAMPLES["rotary_embedding"]
    arguments = sample.make(kind, "float32")
    want, _ = sample.on_cpu("float32")
    arguments["positions"][0, 1] = 20
    arguments["positions"][1, 2] = -1
    wild = torch.zeros(2, 3, dtype=torch.bool, device=DEVICE)
    wild[0, 1] = wild[1, 2] = True
    for x, y in zip(sample.call(arguments), want, strict=True):
        assert torch.isnan(x[wild]).all()
        close(kind.numpy(x[~wild]), y[~wild.cpu().numpy()], "float32")


@pytest.mark.parametrize("op", ["append_kv", "rotary_append_kv"])
def test_slots_out_of_range_are_skipped(torch, kind, op):
    sample = SAMPLES[op]
    arguments = sample.make(kind, "float32")
    _, want = sample.on_cpu("float32")
    slots = arguments["slot_mapping"]
    assert int(slots[2]) == -1
    for wild in (9 * 8, 10**9, -2, -(10**9)):
        slots[2] = wild
        again = {**arguments, **{name: arguments[name].clone() for name in sample.writes}}
        sample.call(again)
        for name, y in zip(sample.writes, want, strict=True):
            close(kind.numpy(again[name]), y, "float32")


# ---- sizes


def test_sizes_of_zero(torch):
    for shape_q, shape_k in (
        ((0, 3, 4, 64), (0, 5, 2, 64)),
        ((2, 0, 4, 64), (2, 5, 2, 64)),
        ((2, 3, 4, 64), (2, 0, 2, 64)),
    ):
        q, k = torch.ones(shape_q, device=DEVICE), torch.ones(shape_k, device=DEVICE)
        for name in ("attention", "attn_prefill", "attn_decode"):
            out, lse = function(name)(q, k, k, return_lse=True)
            assert out.shape == q.shape
            assert (out == 0).all()
            assert torch.isneginf(lse).all()
    empty = torch.ones(0, 4, 64, device=DEVICE)
    table = torch.ones(5, 32, device=DEVICE)
    cu = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    assert function("attn_varlen")(empty, empty, empty, cu, cu).shape == empty.shape
    assert function("rotary_embedding")(empty, empty, table, table, interleaved=True)[0].shape == empty.shape
    cache = torch.ones(2, 4, 4, 64, device=DEVICE)
    assert function("append_kv")(empty, empty, cache, cache.clone(), cu[:0]) is None
    merged, _ = function("merge_attention_states")([empty, empty], [torch.ones(4, 0, device=DEVICE)] * 2)
    assert merged.shape == empty.shape


@pytest.mark.parametrize("many", ["batch", "heads", "kv_heads"])
def test_more_than_65535(torch, many):
    """No axis of a grid limits batch or heads."""
    n, dim = 70_000, 8
    torch.manual_seed(1)
    batch, heads, kv_heads = {"batch": (n, 1, 1), "heads": (1, n, 1), "kv_heads": (1, n, n)}[many]
    q = torch.randn(batch, 1, heads, dim, device=DEVICE)
    k, v = (torch.randn(batch, 5, kv_heads, dim, device=DEVICE) for _ in "kv")
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (q, k, v)), enable_gqa=heads != kv_heads
    ).transpose(1, 2)
    for name in ("attention", "attn_prefill", "attn_decode"):
        torch.testing.assert_close(function(name)(q, k, v).double(), want, rtol=1e-4, atol=1e-5)
    cos, sin = torch.randn(2, 4, device=DEVICE), torch.randn(2, 4, device=DEVICE)
    got, _ = function("rotary_embedding")(q, None, cos, sin, interleaved=False)
    a, b = q[..., :4], q[..., 4:]
    torch.testing.assert_close(got, torch.cat([a * cos[0] - b * sin[0], b * cos[0] + a * sin[0]], -1))
    lse = torch.randn(batch, heads, 1, device=DEVICE)
    out, total = function("merge_attention_states")([q, q], [lse, lse])
    torch.testing.assert_close(out, q)
    torch.testing.assert_close(total, lse + float(np.log(2)))


def test_more_than_65535_sequences_pages_and_tokens(torch):
    n, dim = 70_000, 8
    torch.manual_seed(2)
    q, k, v = (torch.randn(n, 1, dim, device=DEVICE) for _ in "qkv")
    cu = torch.arange(n + 1, dtype=torch.int32, device=DEVICE)
    torch.testing.assert_close(function("attn_varlen")(q, k, v, cu, cu), v)
    k_cache, v_cache = (torch.full((n, 1, 1, dim), NAN, device=DEVICE) for _ in "kv")
    slots = torch.randperm(n, device=DEVICE)
    function("append_kv")(k, v, k_cache, v_cache, slots)
    assert torch.equal(v_cache[slots, 0], v)
    table, lens = slots.to(torch.int32)[:, None], torch.ones(n, dtype=torch.int32, device=DEVICE)
    torch.testing.assert_close(function("attn_paged_decode")(q[:, None], k_cache, v_cache, table, lens)[:, 0], v)
    torch.testing.assert_close(function("attn_paged_prefill")(q, k_cache, v_cache, table, lens, cu), v)


# ---- same bits twice


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("len_q", "len_k"), [(1, 16384), (3, 5000), (300, 300)])
def test_same_bits_twice(torch, dtype, len_q, len_k):
    torch.manual_seed(3)
    make = lambda *shape: torch.randn(shape, device=DEVICE).to(getattr(torch, dtype))  # noqa: E731
    q, k, v = make(2, len_q, 8, 64), make(2, len_k, 2, 64), make(2, len_k, 2, 64)
    results = [function("attention")(q, k, v, is_causal=True, return_lse=True) for _ in range(8)]
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])
