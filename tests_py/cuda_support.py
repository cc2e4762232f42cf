"""Arrays of each framework in GPU memory, and the CPU backend's results to compare with."""

import importlib
import warnings

import numpy as np
import pytest

import dlattn
from harness import BF16, F16, F32

DEVICE = "cuda"
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16}


def quietly(name):
    """A module whose import may warn about things that are not ours; skips the test without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name} cannot be imported: {error}", allow_module_level=True)


def function(name):
    """The operation itself, whatever on_device.install() has put in its place."""
    operation = getattr(dlattn, name)
    return getattr(operation, "__wrapped__", operation)


class Torch:
    name = "torch"
    writable = True

    def __init__(self):
        self.torch = quietly("torch")
        self.type = self.torch.Tensor

    def make(self, x, dtype=None):
        """A NumPy array on the GPU; a floating one in the dtype of that name."""
        tensor = self.torch.from_numpy(np.array(x)).to(DEVICE)
        return tensor if dtype is None else tensor.to(getattr(self.torch, dtype))

    def numpy(self, x):
        return x.float().cpu().numpy()

    def dtype(self, x):
        return str(x.dtype).removeprefix("torch.")

    def is_with(self, x, like):
        return x.device == like.device


class CuPy:
    name = "cupy"
    writable = True

    def __init__(self):
        self.cupy = quietly("cupy")
        self.type = self.cupy.ndarray

    def make(self, x, dtype=None):
        array = self.cupy.asarray(x)
        if dtype != "bfloat16":
            return array if dtype is None else array.astype(dtype)
        try:
            array = self.cupy.asarray(np.asarray(x).astype(quietly("ml_dtypes").bfloat16))
            array.__dlpack__(stream=-1)
            return array
        except (TypeError, ValueError, BufferError, NotImplementedError, RuntimeError) as error:
            pytest.skip(f"this CuPy has no bfloat16: {error}")

    def numpy(self, x):
        return self.cupy.asnumpy(x).astype(np.float32)

    def dtype(self, x):
        return x.dtype.name

    def is_with(self, x, like):
        return x.device == like.device


class Jax:
    name = "jax"
    writable = False

    def __init__(self):
        self.jax = quietly("jax")
        self.type = self.jax.Array
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.device = self.jax.devices("gpu" if DEVICE == "cuda" else "cpu")[0]
            except RuntimeError as error:
                pytest.skip(f"JAX has no GPU: {error}")

    def make(self, x, dtype=None):
        array = self.jax.device_put(np.asarray(x), self.device)
        return array if dtype is None else array.astype(dtype)

    def numpy(self, x):
        return np.asarray(x).astype(np.float32)

    def dtype(self, x):
        return x.dtype.name

    def is_with(self, x, like):
        return x.devices() == like.devices()


class Numba:
    name = "numba"
    writable = True

    def __init__(self):
        quietly("numba")
        self.cuda = quietly("numba.cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.type = type(self.cuda.to_device(np.zeros(1, np.float32)))
            except Exception as error:  # of its driver bindings, whose classes differ between versions
                pytest.skip(f"Numba has no GPU: {error}")

    def make(self, x, dtype=None):
        if dtype == "bfloat16":
            pytest.skip("Numba's arrays have no bfloat16")
        return self.cuda.to_device(np.ascontiguousarray(x if dtype is None else np.asarray(x).astype(dtype)))

    def numpy(self, x):
        return x.copy_to_host().astype(np.float32)

    def dtype(self, x):
        return x.dtype.name

    def is_with(self, x, like):
        return True


FRAMEWORKS = {kind.name: kind for kind in (Torch, CuPy, Jax, Numba)}


def close(got, want, dtype):
    """got and want: float32; NaN and infinities in the same places."""
    np.testing.assert_allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
