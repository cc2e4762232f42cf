"""Streams and devices: work goes to the arrays' current stream or the one that is named, after what they wait for."""

import numpy as np
import pytest

from cuda_calls import SAMPLES
from cuda_support import DEVICE, FRAMEWORKS, close, function, quietly
from harness import rng

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
SLOW = 40_000_000  # clock cycles: some 20 ms, in which a launch on a wrong stream is long done


@pytest.fixture
def torch():
    return quietly("torch")


def arrays(torch, len_q=1, len_k=4096):
    """A decode that is split over the keys, so that it has partial results, and what it gives."""
    r = rng("cuda streams", len_q, len_k)
    q, k, v = (r.normal(size=s).astype(np.float32) for s in [(1, len_q, 8, 64), (1, len_k, 2, 64), (1, len_k, 2, 64)])
    want = function("attention")(q, k, v)
    return [torch.from_numpy(x).to(DEVICE) for x in (q, k, v)], want


def late(torch, k):
    """k's contents arrive late on the current stream."""
    truth = k.clone()
    torch.cuda.synchronize()
    k.zero_()
    torch.cuda._sleep(SLOW)
    k.copy_(truth)


def test_the_current_stream(torch):
    (q, k, v), want = arrays(torch)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late(torch, k)
        out = function("attention")(q, k, v)
        doubled = out * 2  # on the same stream, with no wait
    side.synchronize()
    close(out.cpu().numpy(), want, "float32")
    close(doubled.cpu().numpy(), 2 * want, "float32")


def test_the_default_stream(torch):
    (q, k, v), want = arrays(torch)
    late(torch, k)
    close(function("attention")(q, k, v).cpu().numpy(), want, "float32")


def named(torch, kind):
    """(the stream that is named, torch's name for it)."""
    if kind == "cupy":
        stream = quietly("cupy").cuda.Stream(non_blocking=True)
        return stream, torch.cuda.ExternalStream(stream.ptr)
    if kind in ("legacy 0", "legacy 1"):
        return int(kind[-1]), torch.cuda.default_stream()
    stream = torch.cuda.Stream()
    return (stream if kind == "object" else stream.cuda_stream), stream


@pytest.mark.parametrize("kind", ["int", "object", "cupy", "legacy 0", "legacy 1"])
def test_a_named_stream_waits_for_the_current_one(torch, kind):
    (q, k, v), want = arrays(torch)
    stream, theirs = named(torch, kind)
    current = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(current):
        late(torch, k)
        out = function("attention")(q, k, v, stream=stream)
    theirs.synchronize()
    close(out.cpu().numpy(), want, "float32")


@pytest.mark.parametrize("kind", ["int", "object", "cupy"])
def test_work_is_queued_on_the_named_stream(torch, kind):
    (q, k, v), want = arrays(torch)
    stream, theirs = named(torch, kind)
    torch.cuda.synchronize()
    with torch.cuda.stream(theirs):
        late(torch, k)
    out = function("attention")(q, k, v, stream=stream)  # the current stream is another, and idle
    with torch.cuda.stream(theirs):
        doubled = out * 2
    theirs.synchronize()
    close(out.cpu().numpy(), want, "float32")
    close(doubled.cpu().numpy(), 2 * want, "float32")


def test_the_per_thread_default_stream(torch):
    (q, k, v), want = arrays(torch)
    torch.cuda.synchronize()
    out = function("attention")(q, k, v, stream=2)
    torch.cuda.synchronize()
    close(out.cpu().numpy(), want, "float32")


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_results_and_partial_results_under_a_named_stream(torch, framework):
    """Memory of a named stream's call is not given to others while it runs."""
    kind = FRAMEWORKS[framework]()
    (q, k, v), want = arrays(torch)
    q, k, v = (kind.make(x.cpu().numpy()) for x in (q, k, v))
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
    results = []
    for _ in range(20):
        results.append(function("attention")(q, k, v, stream=side))
        for size in (32, 512, 2048, 2**14, 2**16, 2**18, 2**20):  # whatever size they have
            kind.make(np.full(size, np.nan, np.float32))  # on the current stream, and let go of at once
    side.synchronize()
    for out in results:
        close(kind.numpy(out), want, "float32")


def test_dropped_results_under_a_named_stream(torch):
    """What takes a dropped result's memory on the named stream comes after us."""
    (q, k, v), _ = arrays(torch)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
    keep = []
    for _ in range(5):
        function("attention")(q, k, v, stream=side)
        with torch.cuda.stream(side):
            keep.append(torch.full(q.shape, 7.0, device=DEVICE))
    side.synchronize()
    assert all((x == 7).all() for x in keep)


def test_cupys_current_stream(torch):
    cupy = quietly("cupy")
    (q, k, v), want = arrays(torch)
    q, k, v = (cupy.asarray(x.cpu().numpy()) for x in (q, k, v))
    truth = k.copy()
    k[...] = 0
    cupy.cuda.runtime.deviceSynchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(SLOW)
        k[...] = truth
        out = function("attention")(q, k, v)
        doubled = out * 2
    stream.synchronize()
    close(cupy.asnumpy(out), want, "float32")
    close(cupy.asnumpy(doubled), 2 * want, "float32")


@pytest.mark.parametrize("given", ["k", "out"])
def test_the_first_arrays_stream_and_another_frameworks_are_ordered(torch, given):
    """q is CuPy's on its stream, another array PyTorch's on a busy one: inputs before, outputs before and after."""
    cupy = quietly("cupy")
    (q, k, v), want = arrays(torch)
    cupy_q = cupy.asarray(q.cpu().numpy())
    out = torch.full(want.shape, torch.nan, device=DEVICE)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream, torch.cuda.stream(side):
        if given == "k":
            late(torch, k)
            got = function("attention")(cupy_q, k, v)
            stream.synchronize()
            got = cupy.asnumpy(got)
        else:
            torch.cuda._sleep(SLOW)
            out.fill_(3)
            function("attention")(cupy_q, k, v, out=out)
            got = (out * 1).cpu().numpy()
    close(got, want, "float32")


def test_jax_on_a_named_stream(torch):
    jax = FRAMEWORKS["jax"]()
    (q, k, v), want = arrays(torch)
    q, k, v = (jax.make(x.cpu().numpy()) for x in (q, k, v))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
    out = function("attention")(q, k, v, stream=side)
    close(np.asarray(out + 0), want, "float32")


def test_bad_streams(torch):
    (q, k, v), _ = arrays(torch)
    for stream in ("text", -1, 1.5, object()):
        with pytest.raises(ValueError, match="attention: stream"):
            function("attention")(q, k, v, stream=stream)


# ---- devices


def test_arrays_of_host_and_device_mixed(torch):
    (q, k, v), _ = arrays(torch)
    with pytest.raises(ValueError, match=r"attention: k\.device is cpu, expected cuda:0"):
        function("attention")(q, k.cpu(), v)
    with pytest.raises(ValueError, match=r"attention: k\.device is cuda:0, expected cpu"):
        function("attention")(q.cpu(), k, v)
    with pytest.raises(ValueError, match=r"attention: out\.device is cpu, expected cuda:0"):
        function("attention")(q, k, v, out=torch.zeros(q.shape))
    with pytest.raises(ValueError, match=r"attention: seqlens_k\.device is cpu, expected cuda:0"):
        function("attention")(q, k, v, seqlens_k=np.array([5], np.int32))
    assert function("attention")(q, k, v).device == q.device


@pytest.mark.parametrize("framework", ["torch", "cupy", "jax"])
def test_arrays_on_a_device_that_is_not_current(torch, framework):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    kind = FRAMEWORKS[framework]()
    for op, sample in SAMPLES.items():
        if sample.writes and not kind.writable:
            continue
        want, written = sample.on_cpu("float32")
        if framework == "torch":
            with torch.cuda.device(1):
                arguments = sample.make(kind, "float32")
        elif framework == "cupy":
            with kind.cupy.cuda.Device(1):
                arguments = sample.make(kind, "float32")
        else:
            kind.device = kind.jax.devices("gpu")[1]
            arguments = sample.make(kind, "float32")
        current = torch.cuda.current_device()  # JAX has made its own device current
        assert framework == "jax" or current == 0
        got = sample.call(arguments)
        assert torch.cuda.current_device() == current
        for x, y in zip(got, want, strict=True):
            assert framework != "torch" or x.device == torch.device("cuda:1")
            assert framework != "cupy" or x.device.id == 1
            close(kind.numpy(x), y, "float32")
        for name, y in zip(sample.writes, written, strict=True):
            close(kind.numpy(arguments[name]), y, "float32")
        if op == "attention" and framework == "torch":
            with pytest.raises(ValueError, match=r"attention: k\.device is cuda:0, expected cuda:1"):
                sample.call({**arguments, "k": arguments["k"].to("cuda:0")})
            side = torch.cuda.Stream(device=1)
            got = sample.call(arguments, stream=side)
            side.synchronize()
            close(kind.numpy(got[0]), want[0], "float32")
