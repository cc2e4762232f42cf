"""JAX arrays on the CPU, eagerly: accepted as inputs, never written, results are JAX arrays."""

import numpy as np
import pytest

import dlattn

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture(autouse=True)
def on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def arrays(dtype="float32"):
    keys = jax.random.split(jax.random.key(0), 3)
    return [
        jax.random.normal(key, s, dtype)
        for key, s in zip(keys, [(2, 6, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16)], strict=True)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes_and_results(dtype):
    q, k, v = arrays(dtype)
    before = [np.array(x) for x in (q, k, v)]
    out, lse = dlattn.attention(q, k, v, is_causal=True, return_lse=True)
    assert isinstance(out, jax.Array)
    assert out.dtype == q.dtype
    assert out.shape == q.shape
    assert out.devices() == q.devices()
    assert isinstance(lse, jax.Array)
    assert lse.dtype == jnp.float32
    assert lse.shape == (2, 4, 6)
    if dtype != "bfloat16":
        assert np.array_equal(np.asarray(out), dlattn.attention(*before, is_causal=True))
    else:
        wide = dlattn.attention(*(x.astype(np.float32) for x in before), is_causal=True)
        np.testing.assert_allclose(np.asarray(out, np.float32), wide, rtol=2e-2, atol=2e-2)
    assert all(np.array_equal(np.asarray(x), b) for x, b in zip((q, k, v), before, strict=True))


def test_transposed_and_index_arrays():
    q, k, v = arrays()
    swapped = dlattn.attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), layout="bhld")
    assert np.array_equal(np.asarray(swapped).transpose(0, 2, 1, 3), np.asarray(dlattn.attention(q, k, v)))
    lens = jnp.array([4, 9], jnp.int32)
    assert np.array_equal(
        np.asarray(dlattn.attention(q, k, v, seqlens_k=lens, mask=jnp.ones((2, 9), bool))),
        dlattn.attention(*(np.asarray(x) for x in (q, k, v)), seqlens_k=np.asarray(lens)),
    )


def test_jax_arrays_are_never_written():
    q, k, v = arrays()
    before = [np.array(x) for x in (q, k)]
    with pytest.raises(ValueError, match="attention: out is read-only"):
        dlattn.attention(q, k, v, out=jnp.zeros_like(q))
    table = jnp.ones((9, 8))
    with pytest.raises(ValueError, match="rotary_embedding: q is read-only"):
        dlattn.rotary_embedding(q, k[:, :6], table, table, interleaved=True, inplace=True)
    with pytest.raises(ValueError, match="append_kv: k_cache is read-only"):
        dlattn.append_kv(
            k, v, jnp.zeros((5, 4, 2, 16)), jnp.zeros((5, 4, 2, 16)), jnp.arange(18, dtype=jnp.int32).reshape(2, 9)
        )
    assert np.array_equal(np.asarray(q), before[0])
    assert np.array_equal(np.asarray(k), before[1])
    out = np.empty(q.shape, np.float32)  # an array of another framework may be given
    assert dlattn.attention(q, k, v, out=out) is out


def test_rotary_and_merge():
    q, k, v = arrays()
    table = jax.random.normal(jax.random.key(1), (9, 8))
    q2, k2 = dlattn.rotary_embedding(q, k[:, :6], table, table, interleaved=False)
    want = dlattn.rotary_embedding(
        np.asarray(q), np.asarray(k[:, :6]), np.asarray(table), np.asarray(table), interleaved=False
    )
    assert isinstance(q2, jax.Array)
    assert np.array_equal(np.asarray(q2), want[0])
    assert np.array_equal(np.asarray(k2), want[1])
    parts = [dlattn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 9))]
    out, lse = dlattn.merge_attention_states([p[0] for p in parts], [p[1] for p in parts])
    assert isinstance(out, jax.Array)
    assert isinstance(lse, jax.Array)
    np.testing.assert_allclose(np.asarray(out), np.asarray(dlattn.attention(q, k, v)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int8", "int4"])
def test_dtypes_that_are_refused(name):
    q, k, v = arrays()
    with pytest.raises(ValueError, match=r"attention: k\b"):
        dlattn.attention(q, k.astype(name), v)


@pytest.mark.parametrize("transform", [jax.jit, lambda f: jax.vmap(f, in_axes=0), jax.grad])
def test_tracers_are_refused_with_a_word_about_why(transform):
    q, k, v = arrays()
    if transform is jax.grad:
        function = lambda x: dlattn.attention(x, k, v).sum()  # noqa: E731
    else:
        function = lambda x: dlattn.attention(x, k, v)  # noqa: E731
    with pytest.raises((ValueError, NotImplementedError), match=r"(?i)attention: q is a JAX tracer"):
        transform(function)(q)
