"""A DLPack producer of our own: any dtype code, any device claim, any strides, with a record of what it was asked for.

NumPy has no bfloat16 and no GPU, and neither may stop the core tests: a DeviceArray shows the memory of a NumPy array
under another dtype (uint16 bits as bfloat16), claims a device that is not there, or lies about its strides.
"""

import ctypes

import numpy as np

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
CODES = {
    "int": 0,
    "uint": 1,
    "float": 2,
    "bfloat": 4,
    "complex": 5,
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
    "float4_e2m1fn": 17,
}
READ_ONLY_FLAG = 1


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]

_alive = {}  # address of a managed tensor -> everything it points to, until its deleter runs


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address):
    _alive.pop(address, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _capsule_gone(capsule):
    name = _name(capsule)
    if name in (b"dltensor", b"dltensor_versioned"):  # nobody consumed it
        _delete(_pointer(capsule, name))


def exports_alive():
    """How many exported tensors nobody has released yet."""
    return len(_alive)


class DeviceArray:
    """`bits` (a NumPy array) as a DLPack tensor of dtype (code, bits_per_element, lanes)."""

    def __init__(
        self,
        bits,
        dtype=None,
        device=(CPU, 0),
        *,
        strides=None,
        shape=None,
        byte_offset=0,
        read_only=False,
        versioned=True,
        null=False,
        lanes=1,
    ):
        self.bits = bits
        kind = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}
        self.dtype = dtype or (kind[bits.dtype.kind], bits.dtype.itemsize * 8)
        self.lanes = lanes
        self.device = device
        self.shape = tuple(bits.shape if shape is None else shape)
        self.strides = tuple(s // bits.itemsize for s in bits.strides) if strides is None else strides
        self.byte_offset = byte_offset
        self.read_only = read_only
        self.versioned = versioned
        self.null = null
        self.calls = []  # the keywords of every __dlpack__ call

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def address(self):
        return self.bits.ctypes.data

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        if not self.versioned and "max_version" in keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        wants = keywords.get("max_version")
        if wants is not None and wants[0] >= 1:
            managed = DLManagedTensorVersioned(major=1, minor=1)
            managed.flags = READ_ONLY_FLAG if self.read_only else 0
            name = b"dltensor_versioned"
        else:
            if self.read_only:
                raise BufferError("a read-only array cannot be exported without a version")
            managed, name = DLManagedTensor(), b"dltensor"
        n = len(self.shape)
        shape = (ctypes.c_int64 * n)(*self.shape)
        strides = (
            None if self.strides == "null" else (ctypes.c_int64 * n)(*self.strides)
        )  # null: contiguous, before 1.2
        tensor = managed.dl_tensor
        tensor.data = None if self.null else self.address - self.byte_offset
        tensor.device = DLDevice(*self.device)
        tensor.ndim = n
        tensor.dtype = DLDataType(CODES[self.dtype[0]], self.dtype[1], self.lanes)
        tensor.shape, tensor.strides = shape, strides
        tensor.byte_offset = self.byte_offset
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        address = ctypes.addressof(managed)
        _alive[address] = (managed, shape, strides, self.bits)
        return _new(address, name, ctypes.cast(_capsule_gone, ctypes.c_void_p))


def bfloat16(bits, **options):
    """uint16 bit patterns as a bfloat16 array."""
    assert bits.dtype == np.uint16
    return DeviceArray(bits, ("bfloat", 16), **options)
