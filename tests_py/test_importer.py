"""What is accepted as an array and what is refused: NumPy and plain DLPack producers."""

import ctypes
import pickle
import timeit

import numpy as np
import pytest

import dlattn
from device_array import CUDA, CUDA_HOST, CUDA_MANAGED, DeviceArray, bfloat16, exports_alive
from harness import BF16, F32, Placed, rng


def arrays(key, dtype=np.float32, dim=16):
    r = rng("importer", key)
    return [r.normal(size=s).astype(dtype) for s in [(2, 6, 4, dim), (2, 9, 2, dim), (2, 9, 2, dim)]]


def same(got, want):
    assert np.array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64), equal_nan=True)


# ---- NumPy


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numpy_views(dtype):
    q, k, v = arrays("views", dtype)
    want = dlattn.attention(q, k, v)
    same(
        dlattn.attention(*(np.asfortranarray(x).transpose(0, 1, 2, 3) if x.shape[-1] == 1 else x for x in (q, k, v))),
        want,
    )
    views = [np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3) for x in (q, k, v)]
    same(dlattn.attention(*views), want)
    backwards = [x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1] for x in (q, k, v)]
    same(dlattn.attention(*backwards), want)


def test_numpy_read_only_and_broadcast_inputs():
    """BR-55, inputs."""
    q, k, v = arrays("read-only")
    want = dlattn.attention(q, k, np.broadcast_to(v[:1], v.shape).copy())
    q.flags.writeable = False
    same(dlattn.attention(q, k, np.broadcast_to(v[:1], v.shape)), want)


def test_br_55_read_only_outputs_are_refused():
    q, k, v = arrays("read-only")
    for out in (np.zeros_like(q), np.broadcast_to(np.zeros_like(q[:1]), q.shape)):
        out.flags.writeable = False
        with pytest.raises(ValueError, match=r"attention: out is read-only"):
            dlattn.attention(q, k, v, out=out)
    q.flags.writeable = False
    table = np.ones((6, 8), np.float32)
    with pytest.raises(ValueError, match=r"rotary_embedding: q is read-only"):
        dlattn.rotary_embedding(q, None, table, table, interleaved=True, inplace=True)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 3), (1, 1, 1, 2, 3), (1,) * 7])
def test_numpy_ranks(shape):
    _, k, v = arrays("ranks")
    with pytest.raises(ValueError, match=r"attention: q\.ndim"):
        dlattn.attention(np.zeros(shape, np.float32), k, v)


BAD_DTYPES = {
    "float64": np.float64,
    "complex64": np.complex64,
    "int8": np.int8,
    "uint16": np.uint16,
    "int32": np.int32,
    "bool": np.bool_,
    "big-endian": ">f4",
    "longdouble": np.longdouble,
    "structured": [("x", "f4")],
    "object": object,
    "string": "U4",
    "datetime": "M8[s]",
}


@pytest.mark.parametrize("name", BAD_DTYPES)
def test_numpy_dtypes_that_are_refused(name):
    q, k, v = arrays("dtypes")
    bad = np.empty((2, 9, 2, 16), BAD_DTYPES[name])
    with pytest.raises(ValueError, match=r"attention: k\b"):
        dlattn.attention(q, bad, v)
    with pytest.raises(ValueError, match=r"attention: q\b"):
        dlattn.attention(np.empty(q.shape, BAD_DTYPES[name]), k, v)


def test_numpy_memory_at_an_odd_address():
    q, k, v = arrays("odd")
    raw = np.zeros(q.nbytes + 8, np.uint8)
    odd = np.frombuffer(raw, np.uint8, offset=1)[: q.nbytes].view(np.float32).reshape(q.shape)
    with pytest.raises(ValueError, match=r"attention: q\b"):
        dlattn.attention(odd, k, v)
    with pytest.raises(ValueError, match=r"attention: out\b"):
        dlattn.attention(q, k, v, out=odd)


@pytest.mark.parametrize("cls", ["subclass", "memmap", "masked"])
def test_numpy_subclasses(cls, tmp_path):
    q, k, v = arrays("subclass")
    want = dlattn.attention(q, k, v)
    if cls == "subclass":
        given = q.view(type("Mine", (np.ndarray,), {}))
    elif cls == "memmap":
        given = np.memmap(tmp_path / "q", np.float32, "w+", shape=q.shape)
        given[...] = q
    else:
        pytest.importorskip("numpy.ma")
        given = np.ma.masked_array(q)
    same(dlattn.attention(given, k, v, out=np.empty_like(q)), want)


# ---- ml_dtypes


def test_ml_dtypes_bfloat16_in_and_out():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in arrays("ml_dtypes"))
    out, lse = dlattn.attention(q, k, v, return_lse=True)
    assert type(out) is np.ndarray
    assert out.dtype == ml_dtypes.bfloat16
    assert lse.dtype == np.float32
    own = Placed(q.shape, BF16)
    dlattn.attention(*(bfloat16(x.view(np.uint16)) for x in (q, k, v)), out=own.give())
    assert np.array_equal(own.array, out.view(np.uint16))
    mine = np.zeros_like(q)
    assert dlattn.attention(q[:, ::-1], k, v, out=mine) is mine
    q.flags.writeable = False
    same(dlattn.attention(q, k, v), out)
    with pytest.raises(ValueError, match="attention: out is read-only"):
        dlattn.attention(mine, k, v, out=q)
    empty = dlattn.attention(q[:0], k[:0], v[:0])
    assert empty.shape == (0, 6, 4, 16)
    assert empty.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "uint2"])
def test_ml_dtypes_that_are_refused(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = arrays("ml_dtypes")
    with pytest.raises(ValueError, match=rf"attention: k\b.*{name}|attention: k\b.*dtype"):
        dlattn.attention(q, k.astype(getattr(ml_dtypes, name)), v)


def test_many_dtype_objects_cost_no_more():
    """Each unpickled array has a dtype object of its own; only classes of dtypes are remembered."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = np.ones((1, 1, 1, 8), ml_dtypes.bfloat16)

    def cost(x):
        return min(timeit.repeat(lambda: dlattn.attn_decode(x, x, x, out=out), number=100, repeat=400)) / 100 * 1e6

    for i in range(100):
        dlattn.attn_decode(x := pickle.loads(pickle.dumps(np.ones((1, 1, 1, 8), np.float32))), x, x)
        with pytest.raises(ValueError, match="dtype"):
            dlattn.attention(np.zeros((1, 1, 1, 8), [(f"field {i}", "f4")]), q, q)
    out = np.ones((1, 1, 1, 8), np.float32)
    own = [pickle.loads(pickle.dumps(np.ones((1, 1, 1, 8), np.float32))) for _ in range(2)]
    assert own[0].dtype is not own[1].dtype
    reference = cost(np.ones((1, 1, 1, 8), np.float32))
    assert cost(own[0]) <= 4 * reference  # looking the dtype up each time costs 9 times as much
    assert dlattn.attn_decode(q, q, q).dtype == ml_dtypes.bfloat16


# ---- any DLPack producer


class Unversioned(DeviceArray):
    """A producer from before DLPack 1.0: its __dlpack__ takes no max_version."""

    def __init__(self, bits, **options):
        super().__init__(bits, versioned=False, **options)


@pytest.mark.parametrize("kind", [DeviceArray, Unversioned])
def test_plain_producers(kind):
    q, k, v = arrays("plain")
    want = dlattn.attention(q, k, v)
    before = exports_alive()
    out = np.empty_like(q)
    given = [kind(x) for x in (q, k, v)]
    for _ in range(2):
        assert dlattn.attention(*given, out=out) is out
    same(out, want)
    target = kind(np.zeros_like(q))
    assert dlattn.attention(q, k, v, out=target) is target
    same(target.bits, want)
    shifted = [kind(x, byte_offset=8) for x in (q, k, v)]
    same(dlattn.attention(*shifted, out=np.empty_like(q)), want)
    contiguous = [kind(x, strides="null") for x in (q, k, v)]
    same(dlattn.attention(*contiguous, out=np.empty_like(q)), want)
    assert exports_alive() == before, "an exported tensor was not released"


def test_nothing_is_kept_after_an_error():
    q, k, v = arrays("kept")
    before = exports_alive()
    with pytest.raises(ValueError, match="v"):
        dlattn.attention(DeviceArray(q), DeviceArray(k), DeviceArray(v[:, :3]), out=DeviceArray(np.zeros_like(q)))
    assert exports_alive() == before


def test_a_producer_that_cannot_make_arrays_needs_out():
    q, k, v = (DeviceArray(x) for x in arrays("needs out"))
    with pytest.raises(ValueError, match=r"attention: out\b"):
        dlattn.attention(q, k, v)


class Namespace:
    """The part of the array API standard that makes results."""

    float32 = np.float32

    @staticmethod
    def empty(shape, *, dtype=None, device=None):
        assert device == "here"
        return Standard(np.empty(shape, dtype))


class Standard(DeviceArray):
    """An array of a framework that dlattn has never heard of."""

    def __init__(self, bits):
        super().__init__(bits)
        self.device, self._place = "here", self.device
        self.dtype, self._code = bits.dtype, self.dtype

    def __dlpack_device__(self):
        return self._place

    def __dlpack__(self, **keywords):
        self.device, self.dtype = self._place, self._code
        try:
            return super().__dlpack__(**keywords)
        finally:
            self.device, self.dtype = "here", self.bits.dtype

    def __array_namespace__(self, *, api_version=None):
        return Namespace


def test_results_of_an_unknown_array_api_framework():
    q, k, v = arrays("standard")
    out, lse = dlattn.attention(*(Standard(x) for x in (q, k, v)), return_lse=True)
    assert type(out) is Standard
    assert type(lse) is Standard
    same(out.bits, dlattn.attention(q, k, v))


def test_read_only_producers():
    q, k, v = arrays("read-only producer")
    same(
        dlattn.attention(*(DeviceArray(x, read_only=True) for x in (q, k, v)), out=np.empty_like(q)),
        dlattn.attention(q, k, v),
    )
    target = DeviceArray(np.zeros_like(q), read_only=True)
    with pytest.raises(ValueError, match="attention: out is read-only"):
        dlattn.attention(q, k, v, out=target)
    assert (target.bits == 0).all()


REFUSED = {
    "null data": ({"null": True}, "memory|null"),
    "two lanes": ({"lanes": 2, "shape": (2, 9, 2, 8), "strides": (144, 16, 8, 1)}, "dtype"),
    "float8": ({"dtype": ("float8_e4m3fn", 8)}, "dtype"),
    "float4": ({"dtype": ("float4_e2m1fn", 4), "lanes": 2}, "dtype"),
    "float64": ({"dtype": ("float", 64)}, "dtype.*float64"),
    "complex": ({"dtype": ("complex", 64)}, "dtype.*complex64"),
    "negative size": ({"shape": (2, -9, 2, 16)}, "shape"),
    "another device": ({"device": (8, 0)}, "device"),
    "wrong last stride": ({"strides": (288, 32, 16, 2)}, "stride"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_producers_that_are_refused(what):
    options, text = REFUSED[what]
    q, _k, v = arrays("refused")
    big = np.zeros((2, 2, 9, 2, 16), np.float32)
    with pytest.raises(ValueError, match=rf"attention: k\b.*{text}"):
        dlattn.attention(q, DeviceArray(big[0], **options), v)


def test_null_data_without_elements_is_fine():
    q, k, v = arrays("null")
    out = dlattn.attention(q, DeviceArray(k[:, :0], null=True), DeviceArray(v[:, :0], null=True))
    assert (out == 0).all()


class Broken:
    """Producers that misbehave."""

    def __init__(self, result):
        self.result = result

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **keywords):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [BufferError("cannot"), RuntimeError("no"), None, 3, "text"], ids=repr)
def test_producers_that_fail(result):
    q, _, v = arrays("broken")
    with pytest.raises(ValueError, match=r"attention: k\b"):
        dlattn.attention(q, Broken(result), v)


def test_a_capsule_that_was_used_already():
    q, k, v = arrays("used")
    capsule = DeviceArray(k).__dlpack__()
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = b"used_dltensor"
    rename(capsule, name)
    with pytest.raises(ValueError, match=r"attention: k\b"):
        dlattn.attention(q, Broken(capsule), v)
    original = b"dltensor"
    rename(capsule, original)
    del capsule


def test_interrupts_are_not_swallowed():
    class Interrupted(Broken):
        def __dlpack__(self, **keywords):
            raise KeyboardInterrupt

    q, _, v = arrays("interrupt")
    with pytest.raises(KeyboardInterrupt):
        dlattn.attention(q, Interrupted(None), v)


# ---- strides that are no real strides


@pytest.mark.parametrize("shape", [(0, 4, 2, 64), (2, 0, 2, 64)])
@pytest.mark.parametrize("strides", [(0, 0, 0, 0), (1, 1, 1, 1), (512, 128, 64, 1), (7, -3, 1000, 5)])
def test_br_52_empty_dlpack_tensors_with_odd_strides(shape, strides):
    empty = np.zeros(shape, np.float32)
    odd = DeviceArray(empty, strides=strides)
    out = dlattn.attention(empty, odd, odd)
    assert out.shape == shape
    full = np.ones((shape[0], 3, 2, 64), np.float32)
    out, lse = dlattn.attention(full, odd, odd, return_lse=True)
    assert (out == 0).all()
    assert np.isneginf(lse).all()
    target = DeviceArray(empty, strides=strides)
    assert dlattn.attention(odd, full, full, out=target) is target
    table = np.ones((4, 32), np.float32)
    dlattn.rotary_embedding(
        odd, odd, table, table, interleaved=True, out=(target, DeviceArray(np.zeros(shape, np.float32)))
    )


def test_br_53_size_1_axes_carry_any_stride():
    r = rng("BR-53")
    q, k = r.normal(size=(1, 1, 1, 64)).astype(np.float32), r.normal(size=(1, 33, 1, 64)).astype(np.float32)
    want, want_lse = dlattn.attention(q, k, k, return_lse=True)
    out, lse = np.empty_like(q), np.empty((1, 1, 1), np.float32)
    target, target_lse = DeviceArray(out, strides=(9, 4, 17, 1)), DeviceArray(lse, strides=(3, 0, 5))
    odd_q, odd_k = DeviceArray(q, strides=(12345, 7, 99, 1)), DeviceArray(k, strides=(5, 64, 3, 1))
    for function in (dlattn.attention, dlattn.attn_prefill, dlattn.attn_decode):
        function(odd_q, odd_k, odd_k, out=(target, target_lse), return_lse=True)
        same(out, want)
        same(lse, want_lse)
    one = np.ones((1, 5, 1, 1), np.float32)
    same(dlattn.attention(one[:, :1], DeviceArray(one, strides=(77, 1, 4, 9)), one), one[:, :1])


def test_br_58_negative_strides():
    q, k, v = arrays("BR-58")
    same(dlattn.attention(q[:, ::-1], k, v), dlattn.attention(q[:, ::-1].copy(), k, v))
    with pytest.raises(ValueError, match=r"attention: q\.strides\[3\] is -1"):
        dlattn.attention(q[..., ::-1], k, v)


def test_br_59_byte_stride_that_is_no_multiple_of_the_item_size():
    record = np.zeros((2, 9, 2, 16), np.dtype([("tag", "u1"), ("x", "<f4")]))
    record["x"] = 1
    q, _, v = arrays("BR-59")
    with pytest.raises(ValueError, match=r"attention: k\b.*stride"):
        dlattn.attention(q, record["x"], v)
    raw = np.zeros(4 * 30 + 64, np.uint8)
    pitch = np.lib.stride_tricks.as_strided(raw.view(np.float32), (1, 4, 1, 4), (0, 30, 0, 4))
    with pytest.raises(ValueError, match=r"attention: k\b.*stride"):
        dlattn.attention(q[:1, :, :1, :4], pitch, pitch)
    table = np.lib.stride_tricks.as_strided(np.zeros(16, np.int64), (2, 3), (28, 8))
    cache = np.zeros((3, 4, 1, 4), np.float32)
    with pytest.raises(ValueError, match=r"attn_paged_decode: page_table\b.*stride"):
        dlattn.attn_paged_decode(q[:, :, :1, :4], cache, cache, table, np.array([1, 1], np.int32))


# ---- devices and streams

no_cuda = pytest.mark.skipif(
    dlattn.info()["cuda_compiled"], reason="built with CUDA: a made-up device may not be touched"
)


class SideStream:
    def __cuda_stream__(self):
        return (0, 0xBEEF0)


def on_device(key, device=(CUDA, 2)):
    return [DeviceArray(x, device=device) for x in arrays(key)]


@no_cuda
@pytest.mark.parametrize("device", [(CUDA, 2), (CUDA, 0), (CUDA_MANAGED, 0)])
@pytest.mark.parametrize(
    ("stream", "handle"), [(None, 1), (0, 1), (1, 1), (2, 2), (0xABC0, 0xABC0), (SideStream(), 0xBEEF0)]
)
def test_br_56_stream_numbers_in_dlpack(device, stream, handle):
    """The legacy stream is 1, never 0; a handle goes through as it is. Then a CPU build says that it has no CUDA."""
    q, k, v = on_device("stream", device)
    with pytest.raises(RuntimeError, match=r"(?is)attention: .*cuda.*(build|DLATTN_CUDA)") as caught:
        dlattn.attention(q, k, v, out=DeviceArray(np.zeros((2, 6, 4, 16), np.float32), device=device), stream=stream)
    assert not isinstance(caught.value, NotImplementedError)
    for x in (q, k, v):
        assert x.calls
        assert all(call.get("stream") == handle for call in x.calls)
    assert q.calls[0]["max_version"][0] >= 1


@no_cuda
def test_a_missing_backend_is_told_before_a_result_is_made():
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        dlattn.attention(*on_device("no result"))


def test_br_56_no_stream_on_the_cpu():
    for stream in (None, 0, 5, SideStream()):
        q, k, v = (DeviceArray(x) for x in arrays("cpu stream"))
        dlattn.attention(q, k, v, out=np.empty((2, 6, 4, 16), np.float32), stream=stream)
        assert all(call.get("stream") is None for x in (q, k, v) for call in x.calls)


def test_pinned_host_memory_is_host_memory():
    q, k, v = arrays("pinned")
    given = [DeviceArray(x, device=(CUDA_HOST, 1)) for x in (q, k, v)]
    same(dlattn.attention(*given, out=np.empty_like(q)), dlattn.attention(q, k, v))


@no_cuda
def test_arrays_on_two_devices():
    q, k, v = arrays("devices")
    with pytest.raises(ValueError, match=r"attention: k\.device is cuda:2, expected cpu"):
        dlattn.attention(q, DeviceArray(k, device=(CUDA, 2)), v)
    with pytest.raises(ValueError, match=r"attention: k\.device is cuda:1, expected cuda:2"):
        dlattn.attention(
            DeviceArray(q, device=(CUDA, 2)), DeviceArray(k, device=(CUDA, 1)), DeviceArray(v, device=(CUDA, 2))
        )
    with pytest.raises(ValueError, match=r"attention: out\.device is cuda:0, expected cpu"):
        dlattn.attention(q, k, v, out=DeviceArray(np.zeros_like(q), device=(CUDA, 0)))


@pytest.mark.parametrize("stream", ["text", -1, 1.5, True, object(), (0, 1)], ids=lambda s: type(s).__name__)
def test_streams_that_are_none(stream):
    q, k, v = arrays("bad stream")
    with pytest.raises(ValueError, match="attention: stream"):
        dlattn.attention(q, k, v, stream=stream)


@no_cuda
def test_cuda_array_interface():
    """Arrays that have only __cuda_array_interface__ are CUDA arrays; a CPU build says so."""

    class Interface:
        def __init__(self, x):
            self.memory = x
            self.__cuda_array_interface__ = {
                "shape": x.shape,
                "typestr": x.dtype.str,
                "data": (x.ctypes.data, False),
                "version": 3,
            }

    class OnType(Interface):
        @property
        def __cuda_array_interface__(self):
            return self.interface

        @__cuda_array_interface__.setter
        def __cuda_array_interface__(self, value):
            self.interface = value

    q, k, v = (OnType(x) for x in arrays("interface"))
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)cuda"):
        dlattn.attention(q, k, v, out=OnType(np.zeros((2, 6, 4, 16), np.float32)))


def test_lse_as_any_array():
    q, k, v = arrays("lse")
    lse = np.zeros((2, 4, 6), np.float32)
    dlattn.attention(q, k, v, out=(np.empty_like(q), DeviceArray(lse)), return_lse=True)
    same(lse, dlattn.attention(q, k, v, return_lse=True)[1])
    strided = Placed((2, 4, 6), F32, "packed")
    dlattn.attention(q, k, v, out=(np.empty_like(q), strided.array), return_lse=True)
    assert strided.intact()
    same(strided.array, lse)
