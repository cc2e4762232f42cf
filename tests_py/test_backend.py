"""Where calls run: attn_backend, explain, info, threads, vector units, fork, and what a call costs."""

import asyncio
import os
import subprocess
import sys
import threading
import timeit
from pathlib import Path

import numpy as np
import pytest

import device_array
import dlattn
from dlattn import ATTN_BACKEND, attn_backend, explain
from harness import rng


def arrays(len_q=3, len_k=9):
    r = rng("backend")
    return [r.normal(size=s).astype(np.float32) for s in [(2, len_q, 4, 16), (2, len_k, 2, 16), (2, len_k, 2, 16)]]


def current():
    """The backend that a call would go to, seen from outside: TORCH refuses NumPy arrays, CUDA those on the host."""
    try:
        dlattn.attention(*arrays())
    except (ValueError, RuntimeError) as error:
        return "CUDA" if "CUDA" in str(error) else "TORCH"
    return "AUTO or CPU"


def test_members():
    assert [m.name for m in ATTN_BACKEND] == ["AUTO", "CPU", "CUDA", "TORCH"]


def test_nesting_and_exceptions():
    assert current() == "AUTO or CPU"
    with attn_backend(ATTN_BACKEND.CUDA):
        assert current() == "CUDA"
        with attn_backend(ATTN_BACKEND.CPU):
            assert current() == "AUTO or CPU"
        assert current() == "CUDA"
        with pytest.raises(KeyError), attn_backend(ATTN_BACKEND.CPU):
            raise KeyError
        assert current() == "CUDA"
    assert current() == "AUTO or CPU"


def test_threads_have_their_own():
    seen = []
    with attn_backend(ATTN_BACKEND.CUDA):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current() == "CUDA"
    assert seen == ["AUTO or CPU"]


def test_asynchronous_tasks_have_their_own():
    async def task(backend, seen):
        with attn_backend(backend):
            await asyncio.sleep(0)
            seen.append(current())

    async def both():
        a, b = [], []
        await asyncio.gather(task(ATTN_BACKEND.CUDA, a), task(ATTN_BACKEND.CPU, b))
        return a + b

    assert asyncio.run(both()) == ["CUDA", "AUTO or CPU"]


@pytest.mark.parametrize("backend", ["CPU", 1, None, "auto"])
def test_only_members_are_backends(backend):
    with pytest.raises((ValueError, TypeError), match="attn_backend"), attn_backend(backend):
        pass


def test_cuda_with_host_arrays():
    q, k, v = arrays()
    out = np.full_like(q, 7)
    with attn_backend(ATTN_BACKEND.CUDA), pytest.raises((ValueError, RuntimeError), match=r"attention: .*CUDA"):
        dlattn.attention(q, k, v, out=out)
    assert (out == 7).all()


def test_cpu_with_cuda_arrays():
    if dlattn.info()["cuda_compiled"]:
        pytest.skip("built with CUDA: a made-up device may not be touched")
    q, k, v = (device_array.DeviceArray(x, device=(device_array.CUDA, 0)) for x in arrays())
    with (
        attn_backend(ATTN_BACKEND.CPU),
        pytest.raises((ValueError, RuntimeError), match=r"(?i)attention: .*(cpu|cuda)"),
    ):
        dlattn.attention(q, k, v, out=q)


# ---- explain and info


def test_info():
    info = dlattn.info()
    assert set(info) == {
        "version",
        "cuda_compiled",
        "cuda_families",
        "cuda_devices",
        "cuda_architectures",
        "cuda_kernels",
        "cuda_runtime",
        "cuda_driver",
        "cpu_isas",
        "cpu_isa",
        "num_threads",
    }
    assert info["version"] == dlattn.__version__
    assert info["cpu_isas"][0] == "baseline"
    assert info["cpu_isa"] in info["cpu_isas"]
    assert info["num_threads"] == dlattn.get_num_threads() >= 1
    of_cuda = [name for name in info if name.startswith("cuda_")]
    if not info["cuda_compiled"]:
        assert not any(info[name] for name in of_cuda)
    else:
        assert {"simt"} <= set(info["cuda_families"]) <= {"simt", "mma", "wgmma"}
        assert info["cuda_architectures"]
        assert info["cuda_runtime"].count(".") == 1
        kernels = info["cuda_kernels"]
        assert all(any(f"_{family}" in kernel for kernel in kernels) for family in info["cuda_families"])


def test_info_on_the_command_line():
    run = subprocess.run([sys.executable, "-m", "dlattn", "info"], capture_output=True, text=True, check=True)
    info = dlattn.info()
    assert f"dlattn              {dlattn.__version__}\n" in run.stdout
    assert info["cpu_isa"] in run.stdout
    assert ("not built" in run.stdout) == (not info["cuda_compiled"])
    for name in (*info["cuda_devices"], *info["cuda_kernels"], *info["cuda_architectures"]):
        assert name in run.stdout
    wrong = subprocess.run([sys.executable, "-m", "dlattn"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "usage: python -m dlattn" in wrong.stderr


def test_explain_names_a_kernel_and_runs_nothing():
    q, k, v = arrays()
    out = np.full_like(q, 7)
    for op in ("attention", "attn_prefill", "attn_decode", dlattn.attention):
        e = explain(op, q, k, v, out=out, is_causal=True)
        assert e.supported
        assert e.backend == "cpu"
        assert e.kernel
        assert e.reason
    assert (out == 7).all()
    assert dlattn.info()["cpu_isa"] in e.kernel


def test_explain_of_every_operation():
    q, k, v = arrays()
    cache, table, lens = (
        np.full((5, 4, 2, 16), 7, np.float32),
        np.array([[0, 1, 2]] * 2, np.int32),
        np.array([9, 9], np.int32),
    )
    cu_q, cu_k = np.array([0, 3, 6], np.int32), np.array([0, 9, 18], np.int32)
    cos, slots = np.ones((9, 8), np.float32), np.arange(18, dtype=np.int32).reshape(2, 9)
    packed_q, packed_k = q.reshape(6, 4, 16), k.reshape(18, 2, 16)
    calls = {
        "attn_varlen": ((packed_q, packed_k, packed_k, cu_q, cu_k), {}),
        "attn_paged_decode": ((q, cache, cache, table, lens), {}),
        "attn_paged_prefill": ((packed_q, cache, cache, table, lens, cu_q), {}),
        "rotary_embedding": ((q, k[:, :3], cos, cos), {"interleaved": True}),
        "apply_rotary_emb": ((q, (cos[:3], cos[:3])), {}),
        "append_kv": ((k, v, cache, cache.copy(), slots), {}),
        "rotary_append_kv": ((k, k, v, cos, cos, None, cache, cache.copy(), slots), {"interleaved": False}),
        "merge_attention_states": (([q, q], [np.zeros((2, 4, 3), np.float32)] * 2), {}),
    }
    for name, (args, keywords) in calls.items():
        e = explain(name, *args, **keywords)
        assert e.supported, name
        assert e.backend == "cpu", name
        assert e.kernel, name
        assert explain(getattr(dlattn, name), *args, **keywords) == e
    assert (cache == 7).all()


def test_explain_tells_mistakes_like_the_call():
    q, k, v = arrays()
    with pytest.raises(ValueError, match=r"attention: k\.head_dim"):
        explain("attention", q, k[..., :8], v)
    for op in ("softmax", print, None):
        with pytest.raises((ValueError, TypeError), match="explain: op"):
            explain(op, q, k, v)


def test_explain_of_cuda_arrays_without_cuda():
    if dlattn.info()["cuda_compiled"]:
        pytest.skip("built with CUDA")
    q, k, v = (device_array.DeviceArray(x, device=(device_array.CUDA, 0)) for x in arrays())
    e = explain("attention", q, k, v, out=q)
    assert not e.supported
    assert e.backend == "cuda"
    assert e.kernel == ""
    assert "CUDA" in e.reason


def test_explain_says_why_the_backend_in_force_refuses():
    q, k, v = arrays()
    with attn_backend(ATTN_BACKEND.CUDA):
        e = explain("attention", q, k, v)
        assert (e.supported, e.backend, e.kernel) == (False, "cuda", "")
        assert "ATTN_BACKEND.CUDA" in e.reason
        for name, args in {"append_kv": (k, v, k[None, 0], v[None, 0], np.zeros((2, 9), int))}.items():
            assert not explain(name, *args).supported
        with pytest.raises(ValueError, match=r"attention: k\.head_dim"):
            explain("attention", q, k[..., :8], v)
    if not dlattn.info()["cuda_compiled"]:
        with attn_backend(ATTN_BACKEND.CPU):
            e = explain("attention", *(device_array.DeviceArray(x, device=(device_array.CUDA, 1)) for x in (q, k, v)))
        assert (e.supported, e.backend, e.kernel) == (False, "cpu", "")
        assert "cuda:1" in e.reason


def test_explain_looks_at_no_values_and_no_memory():
    q, k, v = arrays()
    e = explain("attention", q, k, v, out=q)
    assert e.supported
    assert e == explain("attention", q, k, v, seqlens_k=np.array([99, 99]))


# ---- threads, vector units, processes


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


SELF_CHECK = """
import sys; sys.path.insert(0, ".")
import dlattn
from attention_case import Case, run
from harness import DTYPES
from paged_case import Ragged, run as run_ragged
from rotary_case import Rotary, run as run_rotary
for dt in DTYPES:
    for len_q, len_k, dim in ((1, 300, 64), (33, 70, 40), (5, 33, 7), (64, 64, 256)):
        run(Case(dt=dt, len_q=len_q, len_k=len_k, dim=dim, dim_v=dim, mask="4f", sinks=True, options={"softcap": 20.0}))
        run(Case(dt=dt, len_q=len_q, len_k=len_k, dim=dim, dim_v=dim, options={"is_causal": True}))
    run_ragged(Ragged(dt=dt, page_size=16, options={"is_causal": True}))
    for interleaved in (False, True):
        run_rotary(Rotary(dt=dt, interleaved=interleaved, dim=72, rotary_dim=52))
print(dlattn.info()["cpu_isa"], dlattn.get_num_threads())
"""


@pytest.mark.parametrize("isa", dlattn.info()["cpu_isas"])
def test_every_level_of_vector_units(isa):
    result = python(SELF_CHECK, DLATTN_CPU_ISA=isa)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == isa


def test_unknown_vector_units_are_refused():
    result = python(
        "import numpy as np, dlattn; q = np.ones((1, 1, 1, 8), np.float32); dlattn.attention(q, q, q)",
        DLATTN_CPU_ISA="mmx",
    )
    assert result.returncode != 0
    assert "DLATTN_CPU_ISA" in result.stderr
    assert "mmx" in result.stderr


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_number_of_threads_from_the_environment(threads):
    result = python(SELF_CHECK, DLATTN_NUM_THREADS=threads)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[1] == threads


FORK = """
import os, signal, numpy as np, dlattn
dlattn.set_num_threads(3)
r = np.random.default_rng(0)
q, k, v = (r.normal(size=(2, 300, 4, 32)).astype(np.float32) for _ in "qkv")
want = dlattn.attention(q, k, v)
pid = os.fork()
if pid == 0:
    signal.alarm(30)  # a lost thread would wait for ever
    same = all(np.array_equal(dlattn.attention(q, k, v), want) for _ in range(3)) and dlattn.get_num_threads() == 3
    os._exit(0 if same else 1)
assert np.array_equal(dlattn.attention(q, k, v), want)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_a_forked_child_computes_the_same():
    result = python(FORK)
    assert result.returncode == 0, result.stderr


def test_calls_from_many_threads_at_once():
    q, k, v = arrays(150, 200)
    want = dlattn.attention(q, k, v)
    results = [None] * 6

    def work(i):
        for _ in range(5):
            results[i] = dlattn.attention(q, k, v)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(r, want) for r in results)


def cost(call):
    """Microseconds of a call: the least of many, so that other work on the machine does not count."""
    return min(timeit.repeat(call, number=200, repeat=25)) / 200 * 1e6


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_tiny_call_costs_little(framework):
    """The aim is 2 us; the bound leaves room for slow machines."""
    q = k = v = np.ones((1, 1, 1, 8), np.float32)
    out = np.empty_like(q)
    if framework == "torch":
        torch = pytest.importorskip("torch")
        q = k = v = torch.from_numpy(q)
        out = torch.from_numpy(out)
    assert cost(lambda: dlattn.attention(q, k, v, out=out)) <= 10


EXIT = """
import sys, threading, time, numpy as np, dlattn
x = np.ones((1, 300, 8, 64), np.float32)

class Slow:
    def __del__(self):
        time.sleep(0.3)  # lets go of the GIL while the interpreter shuts down

def loop():
    while True:
        dlattn.attention(x, x, x)

threading.Thread(target=loop, daemon=True).start()
time.sleep(0.1)
sys.keep = Slow()
"""


def test_exit_while_a_daemon_thread_computes():
    result = python(EXIT)
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert result.stderr == ""
