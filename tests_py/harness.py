"""Tensors for the tests: dtypes, strided placements inside poisoned buffers, and the comparison with the oracle.

A tensor is a NumPy array of storage (float32, float16, or uint16 bit patterns for bfloat16), so that every view NumPy
can make works for every dtype; `give` turns it into what dlattn gets.
"""

import zlib
from dataclasses import dataclass

import numpy as np

import device_array
import on_device
import reference


@dataclass(frozen=True)
class DType:
    name: str
    storage: type
    eps: float  # spacing at 1
    tiny: float  # spacing of the subnormals
    lse_tolerance: float
    via: str = ""  # who wraps bfloat16: our own DeviceArray or ml_dtypes

    def encode(self, x):
        """Storage of float values, rounded to nearest even."""
        with np.errstate(over="ignore"):
            x = np.asarray(x, dtype=np.float32)
        if self.name != "bfloat16":
            with np.errstate(over="ignore"):
                return x.astype(self.storage)
        bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)

    def decode(self, storage):
        """float64 values of storage."""
        if self.name != "bfloat16":
            return storage.astype(np.float64)
        return (storage.astype(np.uint32) << 16).view(np.float32).reshape(storage.shape).astype(np.float64)

    def round(self, x):
        return self.decode(self.encode(x))

    @property
    def poison(self):
        """A quiet NaN with a payload that no computation makes."""
        bits = {"float32": 0x7FEBCDEF, "float16": 0x7EAD, "bfloat16": 0x7FED}[self.name]
        return np.array(bits, np.uint32 if self.name == "float32" else np.uint16).view(self.storage)[()]

    def give(self, storage):
        """The object that dlattn gets; its memory is `storage`'s."""
        if self.name != "bfloat16":
            return storage
        if self.via == "ml_dtypes":
            import ml_dtypes

            return storage.view(ml_dtypes.bfloat16)
        return device_array.bfloat16(storage)

    def __str__(self):
        return self.name + (f"-{self.via}" if self.via else "")


F32 = DType("float32", np.float32, 2.0**-23, 2.0**-149, 1e-5)
F16 = DType("float16", np.float16, 2.0**-10, 2.0**-24, 1e-3)
BF16 = DType("bfloat16", np.uint16, 2.0**-7, 2.0**-133, 1e-3)
DTYPES = [F32, F16, BF16]


def bits(storage):
    """Storage as integers, for comparisons to the bit."""
    return np.ascontiguousarray(storage).view(f"u{storage.dtype.itemsize}")


def rng(*key):
    """A generator that depends on the test's parameters only."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


# How a [A, B, C, D] (or [A, B, C]) tensor lies in its buffer: shape -> (buffer shape, view of the buffer).
def _packed(shape):  # one of several slices of a fused projection, at an odd offset
    outer, heads, dim = shape[:-2], shape[-2], shape[-1]
    return (*outer, heads + 3, dim + 5), lambda b: b[..., 2 : 2 + heads, 3 : 3 + dim]


def _swapped(shape):  # [batch, heads, len, dim] seen as [batch, len, heads, dim]
    return (*shape[:-3], shape[-2], shape[-3], shape[-1]), lambda b: b.swapaxes(-2, -3)


def _reversed(shape):  # negative strides on every axis but the last
    return shape, lambda b: b[tuple([slice(None, None, -1)] * (len(shape) - 1))]


def _layer(shape):  # one layer of a big cache
    return (3, *shape), lambda b: b[1]


def _padded(shape):  # every row of the first two axes followed by something else, as a cache padded per page
    return (shape[0], shape[1] + 3, *shape[2:]), lambda b: b[:, 1 : 1 + shape[1]]


def _sparse(shape):  # every other entry
    return (2 * shape[0], 2 * shape[1], *shape[2:]), lambda b: b[::2, 1::2]


PLACEMENTS = {
    "contiguous": lambda shape: (shape, lambda b: b),
    "packed": _packed,
    "swapped": _swapped,
    "reversed": _reversed,
    "layer": _layer,
    "padded": _padded,
    "sparse": _sparse,
}


class Placed:
    """A tensor inside a buffer full of poison with guards around it; `intact()`: nothing outside it was written."""

    GUARD = 64

    def __init__(self, shape, dt, placement="contiguous", values=None):
        shape = tuple(shape)
        buffer_shape, view = PLACEMENTS[placement](shape)
        n = int(np.prod(buffer_shape))
        self.dt = dt
        self.flat = np.full(n + 2 * self.GUARD, dt.poison, dt.storage)
        mark = np.zeros(n + 2 * self.GUARD, bool)
        inside = slice(self.GUARD, self.GUARD + n)
        self.array = view(self.flat[inside].reshape(buffer_shape))
        view(mark[inside].reshape(buffer_shape))[...] = True
        assert self.array.shape == shape, (self.array.shape, shape)
        self.outside = ~mark
        if values is not None:
            self.array[...] = dt.encode(values)
        self.before = bits(self.flat).copy()

    def give(self):
        return self.dt.give(self.array)

    def values(self):
        return self.dt.decode(self.array)

    def intact(self):
        return bool((bits(self.flat)[self.outside] == self.before[self.outside]).all())

    def unchanged(self):
        return bool((bits(self.flat) == self.before).all())


def at_liberty(got, want):
    """`got`, where a NaN or infinity in the value of a key lies hidden inside the sequence's length.

    CUDA is free to let it into the row (a weight of 0 times NaN is NaN): such entries count as right. The CPU is not.
    """
    return np.where(np.isnan(got), want, got) if on_device.on_cuda() else got


def same_pattern(got, want):
    """NaN in the same places, infinities too and with the same sign."""
    infinite = np.isinf(got)
    return (
        np.array_equal(np.isnan(got), np.isnan(want))
        and np.array_equal(infinite, np.isinf(want))
        and np.array_equal(got[infinite], want[infinite])
    )


def worst(got, want):
    """Largest absolute difference over the finite entries."""
    keep = np.isfinite(want)
    return float(np.abs(got[keep] - want[keep]).max(initial=0.0))


def relative_l2(got, want):
    keep = np.isfinite(want) & np.isfinite(got)
    norm = float(np.sqrt((want[keep] ** 2).sum()))
    return float(np.sqrt(((got[keep] - want[keep]) ** 2).sum())) / (norm or 1.0)


def check_out(got, exact, eager, dt, what=""):
    """The FlashAttention rule: inf/NaN pattern equal, error <= 2 x that of same-dtype eager code + 2 roundings."""
    assert got.shape == exact.out.shape, (got.shape, exact.out.shape)
    largest = np.abs(exact.out[np.isfinite(exact.out)]).max(initial=0.0)
    want = dt.round(exact.out) if largest > 6e4 else exact.out  # float16 may end in infinities
    assert same_pattern(got, want), f"{what}: NaN or infinity differ\ngot {got}\nwant {want}"
    error, roundings = worst(got, want), 2 * dt.eps * exact.size + 2 * dt.tiny
    for orders in (2, 40):  # in a small problem the error of one order of summation is luck: then ask many
        of_eager = max(worst(e.out, want) for e in eager.results(orders))
        if error <= 2 * of_eager + roundings:
            return
    raise AssertionError(
        f"{what}: out is off by {error:.3e}, allowed {2 * of_eager + roundings:.3e} (eager code by {of_eager:.3e}; "
        f"relative L2 {relative_l2(got, want):.3e})"
    )


def check_lse(got, want, dt, what="", eager=None):
    """Within the dtype's tolerance, relative to max(1, |lse|).

    Where scores are small sums of large products no float32 code gets there: then `eager` is the yardstick.
    """
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == np.float32
    got = got.astype(np.float64)
    assert same_pattern(got, want), f"{what}: lse's NaN or infinity differ\ngot {got}\nwant {want}"
    keep = np.isfinite(want)
    scale = np.maximum(1.0, np.abs(want[keep]))
    error, allowed = (np.abs(got[keep] - want[keep]) / scale).max(initial=0.0), dt.lse_tolerance
    if error > allowed and eager is not None and dt.name == "float32":
        allowed = 2 * max((np.abs(e.lse[keep] - want[keep]) / scale).max() for e in eager.results(40))
    assert error <= allowed, (
        f"{what}: lse is off by {error:.3e}, allowed {allowed:.3e} (relative L2 {relative_l2(got, want):.3e})"
    )


class Eager:
    """Results of eager code in a dtype, one for each of several orders of summation."""

    def __init__(self, compute):
        self.compute = compute  # order -> Result

    def results(self, orders):
        return [self.compute(order) for order in range(orders)]

    def map(self, change):
        return Eager(lambda order: change(self.compute(order)))


def oracle(function, dt, *arrays, **options):
    """(exact result, results of eager code in dtype dt)."""
    rnd = None if dt.name == "float32" else dt.round

    def compute(order):
        return function(*arrays, steps=reference.Steps(np.float32, rnd, order), **options)

    return function(*arrays, **options), Eager(compute)
