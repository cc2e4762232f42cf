"""The tests' own way to a device (on_device.py), with the host's memory in the device's role."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import device_array
import on_device
from harness import PLACEMENTS, rng


@pytest.fixture
def device(monkeypatch):
    device = on_device.Device(on_device.HostMemory())
    monkeypatch.setattr(on_device, "_device", device)
    return device


def there(array):
    """The memory behind a device array of float32, as a NumPy array of its shape."""
    first = (ctypes.c_float * 1).from_address(array.address)
    return np.lib.stride_tricks.as_strided(
        np.frombuffer(first, np.float32), array.shape, [4 * s for s in array.strides]
    )


@pytest.mark.parametrize("placement", list(PLACEMENTS))
@pytest.mark.parametrize("large", [False, True])
def test_views_arrive_and_come_back(device, monkeypatch, placement, large):
    monkeypatch.setattr(on_device, "LARGE", 16 if large else 2**26)
    shape, view = PLACEMENTS[placement]((2, 3, 4, 5))
    buffer = rng("on device").normal(size=shape).astype(np.float32)
    x, before = view(buffer), buffer.copy()

    def function(a, pair, *, number, out):
        assert number == 3
        assert a.address != x.ctypes.data
        assert a.address % 256 == x.ctypes.data % 256
        assert np.array_equal(there(a), view(before))
        assert np.array_equal(there(pair[1]), there(a))  # the same array, or another view of the same memory
        there(out)[...] = there(a) + 1
        return out, on_device.Namespace.empty((2, 3), dtype=("float", 32, np.dtype(np.float32)), device=None)

    out, new = device.run(function, (x, [None, x[:]]), {"number": 3, "out": x})
    assert out is x
    assert np.array_equal(x, view(before) + 1)
    view(buffer)[...] = view(before)
    assert np.array_equal(buffer, before), "written outside of the view"
    assert new.shape == (2, 3)
    assert np.isnan(new).all(), "new arrays hold poison"


def test_bfloat16_arrives_by_its_bits(device):
    x = np.arange(6, dtype=np.uint16).reshape(2, 3)

    def function(a):
        assert a.dtype[:2] == ("bfloat", 16)
        assert a.strides == (-3, 1)

    device.run(function, (device_array.bfloat16(x[::-1]),), {})


@pytest.mark.parametrize("where", [-1, 24])
@pytest.mark.parametrize("what", ["argument", "new array"])
def test_a_write_outside_of_all_arrays_is_found(device, where, what):
    def function(a):
        new = on_device.Namespace.empty((24,), dtype=("float", 32, np.dtype(np.float32)), device=None)
        address = (a if what == "argument" else new).address + 4 * where
        np.frombuffer((ctypes.c_float * 1).from_address(address), np.float32)[0] = 1

    with pytest.raises(AssertionError, match="written outside"):
        device.run(function, (np.zeros(24, np.float32),), {})


def test_what_an_error_leaves_comes_back_too(device):
    x = np.zeros(3, np.float32)

    def function(a):
        there(a)[1] = 7
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        device.run(function, (x,), {})
    assert x.tolist() == [0, 7, 0]


def test_the_tests_of_an_operation_on_a_device():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device=copy"]
    files = [Path(__file__).parent / name for name in ("test_merge.py", "test_importer.py")]
    done = subprocess.run([*command, "-k", "test_counts", *files], capture_output=True, text=True, cwd=files[0].parent)
    assert done.returncode == 0, done.stdout
    assert "24 passed" in done.stdout
