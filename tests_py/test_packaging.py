"""What is installed: metadata, types, docstrings, an import without any framework, and the C++ files in the wheel."""

import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlattn

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dlattn.__file__).parent


def test_version_has_one_source():
    declared = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)
    assert dlattn.__version__ == declared == dlattn.info()["version"] == importlib.metadata.version("dlattn")


def test_only_the_backend_of_the_binding_is_required():
    required = [r for r in importlib.metadata.requires("dlattn") or [] if "extra ==" not in r]
    assert [re.split(r"[ <>=!~\[;]", r)[0] for r in required] == ["nanobind-backend"]
    assert all("<" not in r for r in required), "its ABI is versioned: no upper bound"


def test_typed():
    assert (PACKAGE / "py.typed").exists()
    assert list(PACKAGE.glob("_core*.pyi"))


def test_every_public_name_is_listed_and_documented():
    public = {n for n in vars(dlattn) if not n.startswith("_") and not inspect.ismodule(getattr(dlattn, n))}
    assert public | {"__version__"} == set(dlattn.__all__)
    expected = {
        "attention",
        "attn_prefill",
        "attn_decode",
        "attn_paged_decode",
        "attn_paged_prefill",
        "attn_varlen",
        "rotary_embedding",
        "apply_rotary_emb",
        "append_kv",
        "rotary_append_kv",
        "merge_attention_states",
        "explain",
        "info",
        "attn_backend",
        "ATTN_BACKEND",
        "set_num_threads",
        "get_num_threads",
        "__version__",
    }
    assert expected <= set(dlattn.__all__)
    for name in public:
        assert len(getattr(dlattn, name).__doc__ or "") > 20, f"{name} has no docstring"
    assert len(dlattn.__doc__) > 30


@pytest.mark.parametrize(
    "name", [n for n in dlattn.__all__ if n.startswith(("att", "rot", "app", "mer")) and n != "attn_backend"]
)
def test_docstrings_say_shapes_dtypes_and_errors(name):
    text = getattr(dlattn, name).__doc__
    first = {"merge_attention_states": "outs", "apply_rotary_emb": "x", "append_kv": "k"}.get(name, "q")
    for word in (rf"\b{first}\b", r"\[.*heads.*dim", "float16|dtype", "ValueError"):
        assert re.search(word, text), f"{name}: {word}"


def test_stub_names_every_function_and_keyword():
    stub = "\n".join(p.read_text() for p in PACKAGE.glob("*.pyi"))
    for name in dlattn.__all__:
        if name.startswith(("att", "rot", "app", "mer")) and name != "attn_backend":
            assert re.search(rf"def {name}\(", stub), name
    for keyword in (
        "is_causal",
        "mask",
        "scale",
        "window",
        "softcap",
        "sinks",
        "alibi_slopes",
        "layout",
        "out",
        "return_lse",
        "stream",
    ):
        assert f"{keyword}:" in stub, keyword


@pytest.mark.parametrize("frameworks", ["numpy, torch, jax, ml_dtypes, cupy"])
def test_import_needs_no_framework(frameworks):
    code = f"""
import sys
for name in {[f.strip() for f in frameworks.split(",")]}:
    sys.modules[name] = None  # an import of it raises ImportError
import dlattn
dlattn.info()
dlattn.set_num_threads(1)
"""
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_import_does_not_load_frameworks():
    code = """
import sys, dlattn
dlattn.info()
print([m for m in ("numpy", "torch", "jax", "ml_dtypes") if m in sys.modules])
"""
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


CONSUMER = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(dlattn %s REQUIRED)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE dlattn::dlattn)
""",
    "main.cpp": """
#include <dlattn/dlattn.h>
#include <cstdio>
#include <vector>
int main() {
  std::vector<float> q(8, 1.0f), k(16, 1.0f), v(16, 2.0f), out(8, 0.0f);
  dlattn::AttentionParams p;
  p.batch_size = p.seqlen_q = 1;
  p.num_heads = p.num_kv_heads = 1;
  p.seqlen_k = 2;
  p.head_dim = p.head_dim_v = 8;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.out = out.data();
  p.k_stride_seq = p.v_stride_seq = 8;
  dlattn::attention(p);
  std::printf("%s %g", dlattn::version(), out[7]);
}
""",
}


def nvcc():
    """Where the CUDA toolkit is looked for, as CMake does it; None without one."""
    folders = [os.path.join(root, "bin") for root in (os.environ.get("CUDA_PATH"), "/usr/local/cuda") if root]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(folders))


def test_the_installed_package_is_found_by_cmake(tmp_path):
    """A C++ program against the headers and the library that pip installed."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    if dlattn.info()["cuda_compiled"] and nvcc() is None:
        pytest.skip("the library needs the CUDA runtime to link: no nvcc in PATH, CUDA_PATH or /usr/local/cuda")
    if not list(PACKAGE.rglob("dlattn-config.cmake")) and not list(PACKAGE.rglob("dlattnConfig.cmake")):
        pytest.fail("the wheel holds no CMake package")
    for name, text in CONSUMER.items():
        (tmp_path / name).write_text(text % dlattn.__version__ if name == "CMakeLists.txt" else text)
    configure = [
        "cmake",
        "-S",
        tmp_path,
        "-B",
        tmp_path / "build",
        f"-DCMAKE_PREFIX_PATH={PACKAGE}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    for command in (configure, ["cmake", "--build", tmp_path / "build"]):
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    result = subprocess.run([tmp_path / "build" / "consumer"], capture_output=True, text=True, check=True)
    assert result.stdout == f"{dlattn.__version__} 2"


def test_the_module_loads_without_libraries_of_cuda():
    """It holds the runtime, which looks for the driver when it is called."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    (module,) = PACKAGE.glob("_core*.so")
    listing = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", listing)
    assert any(name.startswith("libc.") for name in needed), listing
    assert [name for name in needed if name.startswith(("libcuda", "libcudart"))] == []


def test_the_entry_point_for_scikit_build_core():
    points = importlib.metadata.entry_points(group="cmake.root")
    assert [p.value for p in points if p.name == "dlattn"] == ["dlattn"]
