"""The arrays that the model computes with: NumPy on the CPU, CuPy or PyTorch on the GPU. dlattn takes them all."""

import numpy as np

import dlattn


class NumPyArrays:
    """NumPy, or CuPy, which has the same names. CuPy's float32 products are exact float32 unless CUPY_TF32=1."""

    def __init__(self, module=np):
        self.array, self.empty, self.sqrt, self.tanh = module.asarray, module.empty, module.sqrt, module.tanh
        self.to_numpy = getattr(module, "asnumpy", np.asarray)

    def dtype(self, name):
        return np.dtype(name)

    def cast(self, x, dtype):
        return x.astype(dtype, copy=False)


class TorchArrays:
    def __init__(self, device):
        import torch

        torch.set_float32_matmul_precision("highest")  # no TF32
        self._torch, self._device = torch, device
        self.sqrt, self.tanh = torch.sqrt, torch.tanh

    def array(self, values):
        return self._torch.tensor(values, device=self._device)

    def empty(self, shape, dtype):
        return self._torch.empty(shape, dtype=dtype, device=self._device)

    def to_numpy(self, x):
        return x.cpu().numpy()

    def dtype(self, name):
        return getattr(self._torch, name)

    def cast(self, x, dtype):
        return x.to(dtype)


def gpu_arrays():
    """CuPy's, or PyTorch's where there is no CuPy."""
    info = dlattn.info()
    if not info["cuda_devices"]:
        raise RuntimeError("no GPU was found" if info["cuda_compiled"] else "this dlattn is built without CUDA")
    try:
        import cupy

        return NumPyArrays(cupy)
    except ImportError:
        pass
    try:
        import torch
    except ImportError:
        raise RuntimeError("install CuPy or PyTorch") from None
    if not torch.cuda.is_available():
        raise RuntimeError("CuPy is not installed, and this PyTorch finds no GPU")
    return TorchArrays("cuda")
