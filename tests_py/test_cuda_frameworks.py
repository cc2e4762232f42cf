"""CUDA arrays of PyTorch, CuPy, JAX and Numba: right results, made by the caller's framework."""

import numpy as np
import pytest

from cuda_calls import SAMPLES
from cuda_support import DEVICE, FRAMEWORKS, TOLERANCE, close, function, quietly
from harness import rng

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # the frameworks' own warnings
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE))


@pytest.fixture(params=list(FRAMEWORKS))
def framework(request):
    return FRAMEWORKS[request.param]()


@dtypes
@pytest.mark.parametrize("op", list(SAMPLES))
def test_every_operation(framework, op, dtype):
    sample = SAMPLES[op]
    if sample.writes and not framework.writable:
        pytest.skip("JAX arrays are never written")
    want, written = sample.on_cpu(dtype)
    arguments = sample.make(framework, dtype)
    like = next(iter(arguments.values()))
    like = like[0] if isinstance(like, list) else like
    got = sample.call(arguments)
    assert len(got) == sample.results
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert isinstance(x, framework.type)
        assert tuple(x.shape) == y.shape
        is_lse = i == 1 and op != "rotary_embedding"
        assert framework.dtype(x) == ("float32" if is_lse else dtype)
        assert framework.is_with(x, like)
        close(framework.numpy(x), y, dtype)
    for name, y in zip(sample.writes, written, strict=True):
        close(framework.numpy(arguments[name]), y, dtype)


@pytest.mark.parametrize("op", ["attention", "attn_paged_decode", "rotary_embedding", "merge_attention_states"])
def test_given_outputs_are_returned(framework, op):
    sample = SAMPLES[op]
    want, _ = sample.on_cpu("float16")
    arguments = sample.make(framework, "float16")
    out = tuple(
        framework.make(np.full(y.shape, np.nan, np.float32), "float32" if i and "rotary" not in op else "float16")
        for i, y in enumerate(want)
    )
    if not framework.writable:
        with pytest.raises(ValueError, match=rf"{op}: (q_)?out is read-only"):
            sample.call(arguments, out=out)
        return
    got = sample.call(arguments, out=out)
    for x, target, y in zip(got, out, want, strict=True):
        assert x is target
        close(framework.numpy(x), y, "float16")


def test_strided_views(framework):
    """One layer of a packed projection."""
    if framework.name in ("jax", "numba"):
        pytest.skip("its slices are copies, or cannot be made")
    r = rng("cuda views")
    packed = r.normal(size=(2, 33, 8, 20)).astype(np.float32)
    parts = [slice(0, 4), slice(4, 6), slice(6, 8)]
    want = function("attention")(*(packed[:, :, part, 2:18].copy() for part in parts), is_causal=True)
    there = framework.make(packed, "float32")
    got = function("attention")(*(there[:, :, part, 2:18] for part in parts), is_causal=True)
    close(framework.numpy(got), want, "float32")


def test_apply_rotary_emb(framework):
    r = rng("cuda apply")
    x, cos, sin = (r.normal(size=s).astype(np.float32) for s in [(2, 7, 3, 16), (7, 8), (7, 8)])
    want = function("apply_rotary_emb")(x, (cos, sin))
    got = function("apply_rotary_emb")(framework.make(x), (framework.make(cos), framework.make(sin)))
    close(framework.numpy(got), want, "float32")


@pytest.mark.parametrize("first", ["torch", "cupy", "jax"])
@pytest.mark.parametrize("second", ["torch", "cupy", "jax"])
def test_mixed_frameworks(first, second):
    a, b = FRAMEWORKS[first](), FRAMEWORKS[second]()
    r = rng("cuda mixed")
    q, k, v = (r.normal(size=s).astype(np.float32) for s in [(2, 3, 4, 8), (2, 50, 2, 8), (2, 50, 2, 8)])
    want = function("attention")(q, k, v)
    for _ in range(5):
        got = function("attention")(a.make(q), b.make(k), b.make(v))
        assert isinstance(got, a.type)
        close(a.numpy(got), want, "float32")
        if b.writable:
            out = b.make(np.full_like(q, np.nan))
            assert function("attention")(a.make(q), a.make(k), b.make(v), out=out) is out
            close(b.numpy(out), want, "float32")


def test_arrays_with_nothing_but_the_cuda_array_interface():
    """Any object with that attribute; nobody knows how to make another, so out= is needed."""
    torch = quietly("torch")

    class Plain:
        def __init__(self, tensor):
            self.tensor = tensor

        @property
        def __cuda_array_interface__(self):
            return self.tensor.__cuda_array_interface__

    r = rng("cuda interface")
    q, k, v = (r.normal(size=s).astype(np.float32) for s in [(2, 3, 4, 8), (2, 50, 2, 8), (2, 50, 2, 8)])
    want = function("attention")(q, k, v)
    given = [Plain(torch.from_numpy(x).to(DEVICE).transpose(1, 2).contiguous().transpose(1, 2)) for x in (q, k, v)]
    out = Plain(torch.full(q.shape, torch.nan, device=DEVICE))
    assert function("attention")(*given, out=out) is out
    close(out.tensor.cpu().numpy(), want, "float32")
    with pytest.raises(ValueError, match="attention: out is None"):
        function("attention")(*given)


def test_jax_arrays_may_be_dropped_and_results_used_at_once():
    """XLA gives memory away as soon as Python lets go of an array, and must wait for our work."""
    jax = FRAMEWORKS["jax"]()
    jnp, device = jax.jax.numpy, jax.device
    r = rng("cuda jax")
    q, k, v = (jax.make(r.normal(size=(1, 2048, 8, 64)).astype(np.float32)) for _ in "qkv")
    make = jax.jax.jit(lambda x, i: x * (1 + i))
    expected = [function("attention")(make(q, i), make(k, i), make(v, i)) for i in range(3)]
    expected = [np.asarray(x) for x in expected]
    for i in list(range(3)) * 8:
        out = function("attention")(make(q, i), make(k, i), make(v, i))
        noise = [jnp.full(q.shape, jnp.nan, device=device) for _ in range(4)]
        doubled = out * 2
        del out
        noise.append(jnp.full(q.shape, jnp.nan, device=device))
        np.testing.assert_array_equal(np.asarray(doubled), expected[i] * 2)
        del noise


def test_jax_arrays_are_left_alone():
    jax = FRAMEWORKS["jax"]()
    sample = SAMPLES["attention"]
    arguments = sample.make(jax, "float32")
    before = {name: np.array(x) for name, x in arguments.items()}
    sample.call(arguments)
    assert all(np.array_equal(np.asarray(x), before[name]) for name, x in arguments.items())
    table = jax.make(np.ones((3, 8), np.float32))
    with pytest.raises(ValueError, match="rotary_embedding: q is read-only"):
        function("rotary_embedding")(arguments["q"], None, table, table, interleaved=True, inplace=True)


def test_empty_results(framework):
    q, k = np.zeros((0, 3, 4, 8), np.float32), np.zeros((0, 5, 4, 8), np.float32)
    out, lse = function("attention")(framework.make(q), framework.make(k), framework.make(k), return_lse=True)
    assert isinstance(out, framework.type)
    assert tuple(out.shape) == (0, 3, 4, 8)
    assert tuple(lse.shape) == (0, 4, 3)
