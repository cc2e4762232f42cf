"""Devices, and hypothesis profiles.

--device=cuda runs the tests of the operations on arrays in GPU memory (see on_device.py), and with them those of
CUDA itself. The latter run without the option too where there is a GPU.

Hypothesis derives examples from the test: two runs do the same. HYPOTHESIS_PROFILE=search goes on.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # The oracle's matrix products are small: threads of NumPy's BLAS cost more than they give. Read as NumPy is loaded.
    os.environ.setdefault(name, "1")

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of a GPU's memory

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

import dlattn  # noqa: E402
import on_device  # noqa: E402

_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", derandomize=True, database=None, max_examples=200, **_common)
settings.register_profile("search", max_examples=1000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ON_ANY_DEVICE = (  # files of tests that hold on every device
    "test_append",
    "test_attention",
    "test_bug_reports_layout",
    "test_bug_reports_masks",
    "test_bug_reports_numerics",
    "test_extremes",
    "test_large_offsets",
    "test_merge",
    "test_onnx",
    "test_paged_attention",
    "test_rotary",
    "test_varlen",
)


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=["cpu", "cuda", "copy"],
        default="cpu",
        help="where the operations run; copy: in other memory of the host, to test the tests",
    )


def pytest_configure(config):
    device = config.getoption("--device")
    if device != "cpu":
        on_device.install(device)


def pytest_ignore_collect(collection_path, config):
    name = collection_path.stem
    if config.getoption("--device") != "cpu" and name.startswith("test_"):
        return None if name in ON_ANY_DEVICE or "_cuda" in name else True
    return None


def no_gpu():
    """Why tests of CUDA cannot run here; empty: they can."""
    info = dlattn.info()
    if not info["cuda_compiled"]:
        return "dlattn is built without CUDA"
    return "" if info["cuda_devices"] else "there is no CUDA device"


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") != "cpu":
        about_cpu = [item for item in items if item.get_closest_marker("cpu")]
        config.hook.pytest_deselected(items=about_cpu)
        items[:] = [item for item in items if item not in about_cpu]
    reason = no_gpu()
    if reason:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
