"""dlattn's operations on arrays in a device's memory, for tests that hold NumPy arrays.

After install(), which pytest --device=cuda calls, an operation of dlattn that gets NumPy arrays runs on a device: the
buffers that they are views of (guards and poison too) are copied there, the operation gets arrays of the same strides
and alignment, and afterwards the buffers are copied back, so that a test sees every byte that was written. Between and
around the buffers lie guards of our own. Results that the operation makes itself become NumPy arrays.

Calls with arrays of other frameworks, and calls without arrays, are left alone.
"""

import ctypes
import functools

import numpy as np

import dlattn
from device_array import CPU, CUDA, DeviceArray
from dlattn._explain import _OPERATIONS as OPERATIONS

GUARD = 1024  # bytes around every buffer
ALIGNMENT = 256  # of device memory; a buffer keeps its address modulo this
FILL = 0xFF  # every byte of a guard: NaN in all our dtypes
LARGE = 2**26  # bytes of a buffer from which on only the elements of views are copied


class CudaMemory:
    """Memory of the GPU, by CuPy's binding of CUDA's runtime. Copies are in the order of the legacy default stream."""

    place = (CUDA, 0)

    def __init__(self):
        from cupy.cuda import runtime

        self.runtime = runtime

    def allocate(self, size):
        return self.runtime.malloc(size)

    def free(self, address):
        self.runtime.free(address)

    def write(self, address, source, size):
        self.runtime.memcpy(address, source, size, self.runtime.memcpyHostToDevice)

    def read(self, target, address, size):
        self.runtime.memcpy(target, address, size, self.runtime.memcpyDeviceToHost)

    def fill(self, address, size):
        self.runtime.memset(address, FILL, size)


class HostMemory:
    """The host's memory in the role of a device's: all of this module's ways without a GPU."""

    place = (CPU, 0)

    def __init__(self):
        self.blocks = {}

    def allocate(self, size):
        block = np.empty(size + ALIGNMENT, np.uint8)
        address = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.blocks[address] = block
        return address

    def free(self, address):
        del self.blocks[address]

    def write(self, address, source, size):
        ctypes.memmove(address, source, size)

    def read(self, target, address, size):
        ctypes.memmove(target, address, size)

    def fill(self, address, size):
        if size < LARGE:  # else only the pages that hold elements are ever touched
            ctypes.memset(address, FILL, size)


def extent(array):
    """(first, last + 1) byte of an array's elements."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, low
    for size, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + array.itemsize


def buffer_extent(array):
    """The same of the NumPy array that owns the memory that this one is a view of."""
    owner = base = array
    while (base := getattr(base, "base", None)) is not None:
        if isinstance(base, np.ndarray):
            owner = base
    (low, high), (own_low, own_high) = extent(owner), extent(array)
    return (low, high) if array.size == 0 else (min(low, own_low), max(high, own_high))


def merged(ranges):
    """Ranges of bytes without overlaps, in order."""
    result = []
    for low, high in sorted(ranges):
        if result and low < result[-1][1]:
            result[-1][1] = max(high, result[-1][1])
        else:
            result.append([low, high])
    return result


def runs(array):
    """(address, bytes) of the parts of an array that are contiguous along its last axis."""
    step = array.strides[-1] if array.ndim else array.itemsize
    inner = array.shape[-1] if array.ndim and step == array.itemsize else 1
    outer = array[..., 0] if array.ndim and inner == array.shape[-1] else array
    for index in np.ndindex(outer.shape):
        offset = sum(i * stride for i, stride in zip(index, outer.strides, strict=True))
        yield array.ctypes.data + offset, inner * array.itemsize


class Namespace:
    """What makes results for dlattn, as the array API standard has it."""

    float32 = ("float", 32, np.dtype(np.float32))

    @staticmethod
    def empty(shape, *, dtype, device):
        return _device.new_array(shape, dtype)


class OnDevice(DeviceArray):
    """An array in device memory; dtype is (kind, bits, NumPy's dtype)."""

    def __init__(self, address, shape, strides, dtype, read_only=False):
        super().__init__(None, dtype, _device.memory.place, shape=shape, strides=strides, read_only=read_only)
        self._address = address

    @property
    def address(self):
        return self._address

    def __array_namespace__(self, *, api_version=None):
        return Namespace


def dlpack_dtype(array):
    if array.dtype.name == "bfloat16":  # of ml_dtypes
        return ("bfloat", 16, array.dtype)
    kind = {"f": "float", "i": "int", "u": "uint", "b": "bool"}[array.dtype.kind]
    return (kind, 8 * array.itemsize, array.dtype)


class Call:
    """The arrays of one call."""

    def __init__(self, device):
        self.device = device
        self.views = {}  # id of an argument -> (the argument, its NumPy array, its dtype)
        self.given = {}  # id of a device array -> the argument
        self.places = []  # (first byte, last byte + 1, offset in the arena) of small buffers
        self.size = 0

    def collect(self, x):
        if isinstance(x, (list, tuple)):
            for item in x:
                self.collect(item)
        elif isinstance(x, DeviceArray):
            self.views[id(x)] = (x, x.bits, (*x.dtype, x.bits.dtype))
        elif isinstance(x, np.ndarray):
            self.views[id(x)] = (x, x, dlpack_dtype(x))

    def upload(self):
        ranges = [buffer_extent(view) for _, view, _ in self.views.values()]
        offset = GUARD
        for low, high in merged(r for r in ranges if r[1] - r[0] < LARGE):
            offset = -(-offset // ALIGNMENT) * ALIGNMENT + low % ALIGNMENT
            self.places.append((low, high, offset))
            offset += high - low + GUARD
        self.size = offset
        before, _, arena = self.device.arena(self.size)
        before[: self.size] = FILL
        for low, high, offset in self.places:
            ctypes.memmove(before.ctypes.data + offset, low, high - low)
        self.device.memory.write(arena, before.ctypes.data, self.size)
        for (low, high), (_, view, _) in zip(ranges, self.views.values(), strict=True):
            if high - low >= LARGE:
                shift = self.device.large(low, high) - low
                for address, size in runs(view):
                    self.device.memory.write(address + shift, address, size)

    def shift_of(self, view):
        """Device address minus host address."""
        low, high = buffer_extent(view)
        if high - low >= LARGE:
            return self.device.large(low, high) - low
        for first, last, offset in self.places:
            if first <= low and high <= last:
                return self.device.arena(self.size)[2] + offset - first
        raise AssertionError("an array without a buffer")

    def on_device(self, x):
        if isinstance(x, (list, tuple)):
            return type(x)(self.on_device(item) for item in x)
        if id(x) not in self.views:
            return x
        _, view, dtype = self.views[id(x)]
        strides = tuple(s // view.itemsize for s in view.strides)
        array = OnDevice(
            view.ctypes.data + self.shift_of(view), view.shape, strides, dtype, read_only=not view.flags.writeable
        )
        self.given[id(array)] = (array, x)
        return array

    def download(self):
        before, after, arena = self.device.arena(self.size)
        self.device.memory.read(after.ctypes.data, arena, self.size)
        for low, high, offset in self.places:
            place = slice(offset, offset + high - low)
            if not np.array_equal(before[place], after[place]):
                ctypes.memmove(low, after.ctypes.data + offset, high - low)
            after[place] = FILL
        assert (after[: self.size] == FILL).all(), "written outside of all buffers"
        for _, view, _ in self.views.values():
            low, high = buffer_extent(view)
            if high - low >= LARGE and view.flags.writeable:
                shift = self.device.large(low, high) - low
                for address, size in runs(view):
                    self.device.memory.read(address, address + shift, size)

    def result(self, x):
        if isinstance(x, tuple):
            return tuple(self.result(item) for item in x)
        if not isinstance(x, OnDevice):
            return x
        return self.given[id(x)][1] if id(x) in self.given else self.device.to_numpy(x)


class Device:
    def __init__(self, memory):
        self.memory = memory
        self.arena_address = self.fresh_address = None
        self.capacity = self.fresh_capacity = self.fresh_used = 0
        self.before = self.after = None
        self.fresh = []  # (address, bytes, room with guards) of results and workspace of the running call
        self.old = []
        self.large_buffer = None

    def arena(self, size):
        """(bytes as they were uploaded, bytes as downloaded, device address) with room for `size`."""
        if size > self.capacity:
            if self.arena_address is not None:
                self.memory.free(self.arena_address)
            self.capacity = max(2**22, 2 * size)
            self.arena_address = self.memory.allocate(self.capacity)
            self.before, self.after = (np.empty(self.capacity, np.uint8) for _ in range(2))
        return self.before, self.after, self.arena_address

    def large(self, low, high):
        """Device memory for a buffer of which only parts are looked at. It stays until the next one."""
        if self.large_buffer is None or self.large_buffer[:2] != (low, high):
            if self.large_buffer is not None:
                self.memory.free(self.large_buffer[2])
            self.large_buffer = None
            address = self.memory.allocate(high - low + ALIGNMENT)
            self.memory.fill(address, high - low)
            self.large_buffer = (low, high, address)
        return self.large_buffer[2] + low % ALIGNMENT

    def new_array(self, shape, dtype):
        """A result or workspace of the running call: poison between guards."""
        shape = tuple(int(n) for n in shape)
        size = int(np.prod(shape)) * dtype[1] // 8
        room = -(-size // ALIGNMENT) * ALIGNMENT + 2 * GUARD
        if self.fresh_used + room > self.fresh_capacity:
            if self.fresh_address is not None:
                self.old.append(self.fresh_address)  # arrays of this call may be in it
            self.fresh_capacity, self.fresh_used = max(2**24, 2 * room), 0
            self.fresh_address = self.memory.allocate(self.fresh_capacity)
        address = self.fresh_address + self.fresh_used + GUARD
        self.fresh_used += room
        self.memory.fill(address - GUARD, room)
        strides = np.cumprod((1, *shape[:0:-1]), dtype=np.int64)[::-1]
        self.fresh.append((address, size, room))
        return OnDevice(address, shape, tuple(int(s) for s in strides[: len(shape)]), dtype)

    def check_new_arrays(self):
        """Nothing is written before or behind a result or workspace."""
        for address, size, room in self.fresh:
            for start, stop in ((address - GUARD, address), (address + size, address - GUARD + room)):
                guard = np.empty(stop - start, np.uint8)
                self.memory.read(guard.ctypes.data, start, len(guard))
                assert (guard == FILL).all(), "written outside of a new result or workspace"

    def to_numpy(self, array):
        result = np.empty(array.shape, array.dtype[2])
        self.memory.read(result.ctypes.data, array.address, result.nbytes)
        return result

    def run(self, function, args, kwargs):
        call = Call(self)
        for x in (*args, *kwargs.values()):
            call.collect(x)
        if not call.views:
            return function(*args, **kwargs)
        self.fresh_used = 0
        self.fresh.clear()
        call.upload()
        args, kwargs = call.on_device(args), {name: call.on_device(x) for name, x in kwargs.items()}
        try:
            result = function(*args, **kwargs)
        finally:
            call.download()
        self.check_new_arrays()
        result = call.result(result)
        while self.old:
            self.memory.free(self.old.pop())
        return result


def is_foreign(x):
    """An array of another framework than NumPy and the tests' own, or a sequence that has one."""
    if isinstance(x, (list, tuple)):
        return any(is_foreign(item) for item in x)
    has_protocol = hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__")
    return has_protocol and not isinstance(x, (np.ndarray, np.generic, DeviceArray))


def wrap(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if any(is_foreign(x) for x in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        return _device.run(function, args, kwargs)

    return wrapper


_device = None
NAME = "cpu"  # where the operations run: "cpu", "cuda" or "copy"


def install(name):
    """From now on dlattn's operations run on "cuda", or with "copy" in another part of the host's memory."""
    global _device, NAME
    _device, NAME = Device(CudaMemory() if name == "cuda" else HostMemory()), name
    for operation in OPERATIONS:
        setattr(dlattn, operation, wrap(getattr(dlattn, operation)))


def on_cuda():
    return NAME == "cuda"
