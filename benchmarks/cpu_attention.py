"""dlattn against PyTorch's scaled_dot_product_attention on the CPU: speeds and ratios of one run.

    python benchmarks/cpu_attention.py [--quick] [--check] [--json FILE] [--threads 2]

PyTorch gets its best layout: stored [batch, len, heads, dim] or [batch, heads, len, dim], its own grouped heads or keys
and values repeated beforehand, whichever is fastest. Both make their outputs anew, as PyTorch always does. Turns
alternate, so that a change of clock or a busy neighbour meets all; still, only ratios of one run on an idle machine
mean something (the last line says whether it was idle).
"""

import argparse
import hashlib
import itertools
import json
import platform
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

import dlattn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ERROR_FLOOR = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}  # relative L2 that is certainly rounding


HEADINGS = "  dtype       dlattn    torch          torch's best    ratio    bar          error   torch's  k, v"


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    heads: int
    kv_heads: int
    len_q: int
    len_k: int
    dim: int
    bars: dict = field(hash=False)  # dtype: the ratio that it should reach

    @property
    def causal(self):
        return self.len_q > 1

    def kv_bytes(self, dtype):
        return 2 * self.batch * self.len_k * self.kv_heads * self.dim * DTYPES[dtype].itemsize

    def rate(self, dtype, seconds):
        """GFLOP/s of a prefill (4 B H L L D, half of it if causal), GB/s of keys and values of a decode."""
        if self.len_q == 1:
            return self.kv_bytes(dtype) / seconds / 1e9
        operations = 4 * self.batch * self.heads * self.len_q * self.len_k * self.dim / (2 if self.causal else 1)
        return operations / seconds / 1e9


CASES = [
    Case("prefill B1 32/8 heads, 2048 tokens, dim 128, causal", 1, 32, 8, 2048, 2048, 128,
         {"float32": 0.8, "bfloat16": 0.3, "float16": 1.0}),
    Case("decode B8 32/8 heads, 2048 keys, dim 128", 8, 32, 8, 1, 2048, 128,
         {"float32": 1.2, "bfloat16": 1.2, "float16": 3.0}),
]  # fmt: skip


def make_inputs(case, dtype, sets):
    """Random q, k, v stored [batch, len, heads, dim]; several sets, so that a decode reads memory and not a cache."""
    random = torch.Generator().manual_seed(0)

    def normal(length, heads):
        return torch.randn(case.batch, length, heads, case.dim, generator=random).to(DTYPES[dtype])

    return [
        (normal(case.len_q, case.heads), normal(case.len_k, case.kv_heads), normal(case.len_k, case.kv_heads))
        for _ in range(sets)
    ]


def contenders(case, inputs):
    """name -> (function, its argument sets). One call of each computes the same, as [batch, len, heads, dim]."""
    run = dlattn.attn_prefill if case.len_q > 1 else dlattn.attn_decode

    def ours(q, k, v):
        return run(q, k, v, is_causal=case.causal)

    def theirs(q, k, v):
        result = scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=k.shape[1] != q.shape[1])
        return result.transpose(1, 2)

    def bhld(tensors):
        return tuple(x.transpose(1, 2) for x in tensors)

    def contiguous(tensors):
        return tuple(x.contiguous() for x in tensors)

    def repeated(tensors):
        q, k, v = tensors
        group = case.heads // case.kv_heads
        return q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)

    grouped_blhd = [bhld(x) for x in inputs]
    repeated_blhd = [bhld(repeated(inputs[0]))]  # one set is enough: it is `group` times as large
    return {
        "dlattn": (ours, inputs),
        "blhd": (theirs, grouped_blhd),
        "bhld": (theirs, [contiguous(x) for x in grouped_blhd]),
        "blhd, repeated": (theirs, repeated_blhd),
        "bhld, repeated": (theirs, [contiguous(x) for x in repeated_blhd]),
    }


def relative_errors(case, inputs, runs):
    """Relative L2 error of each contender on the first and last sequence, two heads, against float64."""
    q, k, v = (x[[0, -1]].double().transpose(1, 2) for x in inputs[0])
    heads = [0, case.heads - 1]
    kv_heads = [h // (case.heads // case.kv_heads) for h in heads]
    scores = q[:, heads] @ k[:, kv_heads].transpose(2, 3) / case.dim**0.5
    if case.causal:
        visible = torch.ones(case.len_q, case.len_k, dtype=torch.bool).tril(case.len_k - case.len_q)
        scores = scores.masked_fill(~visible, float("-inf"))
    exact = scores.softmax(-1) @ v[:, kv_heads]
    errors = {}
    for name, (function, sets) in runs.items():
        result = function(*sets[0])[[0, -1]].double().transpose(1, 2)[:, heads]
        errors[name] = float((result - exact).norm() / exact.norm())
    return errors


def measure(runs, rounds, seconds):
    """Median seconds of a call, for each contender, from `rounds` turns of about `seconds` each."""
    calls = {}
    for name, (function, sets) in runs.items():
        start = time.perf_counter()
        function(*sets[0])
        calls[name] = max(1, round(seconds / (time.perf_counter() - start)))
    turn_of_set = {name: itertools.cycle(sets) for name, (_, sets) in runs.items()}
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (function, _) in runs.items():
            time.sleep(0.02)  # the other's threads stop spinning
            function(*next(turn_of_set[name]))  # wakes this one's
            arguments = list(itertools.islice(turn_of_set[name], calls[name]))
            start = time.perf_counter()
            for q, k, v in arguments:
                function(q, k, v)
            times[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(values) for name, values in times.items()}


def thread_scaling(threads):
    """How much more arithmetic `threads` threads do than one; `threads` on an idle machine. (Hashing needs no GIL.)"""
    block = bytes(1 << 20)

    def work():
        for _ in range(60):
            hashlib.sha256(block).digest()

    def best(count):
        durations = []
        for _ in range(3):
            workers = [threading.Thread(target=work) for _ in range(count)]
            start = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            durations.append(time.perf_counter() - start)
        return min(durations)

    return threads * best(1) / best(threads)


def run_case(case, dtype, options):
    enough = 512 << 20  # bytes of keys and values, for a decode
    sets = 1 if case.len_q > 1 or options.quick else -(-enough // case.kv_bytes(dtype))
    inputs = make_inputs(case, dtype, sets)
    runs = contenders(case, inputs)
    errors = relative_errors(case, inputs, runs)
    seconds = measure(runs, *((3, 0.1) if options.quick else (9, 0.3)))
    best = min((name for name in runs if name != "dlattn"), key=seconds.get)
    return {
        "case": case.name,
        "dtype": dtype,
        "unit": "GFLOP/s" if case.len_q > 1 else "GB/s",
        "kv_bytes_rotated": sets * case.kv_bytes(dtype),
        "seconds": seconds,
        "dlattn": case.rate(dtype, seconds["dlattn"]),
        "torch": case.rate(dtype, seconds[best]),
        "torch_best": best,
        "ratio": seconds[best] / seconds["dlattn"],
        "bar": case.bars[dtype],
        "errors": errors,
        "correct": errors["dlattn"] <= max(2 * errors[best], ERROR_FLOOR[dtype]),
    }


def print_row(row):
    verdict = "ok" if row["ratio"] >= row["bar"] else "MISS"
    if not row["correct"]:
        verdict = "WRONG"
    print(
        f"  {row['dtype']:9} {row['dlattn']:8.1f} {row['torch']:8.1f} {row['unit']:8} {row['torch_best']:15}"
        f"{row['ratio']:6.2f} {row['bar']:6.2f}  {verdict:5} {row['errors']['dlattn']:9.1e}"
        f" {row['errors'][row['torch_best']]:9.1e}  {row['kv_bytes_rotated'] / 1e6:.0f} MB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns; decode data may stay in a cache")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a bar is missed")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dlattn.set_num_threads(options.threads)

    about = {
        "dlattn": dlattn.__version__,
        "cpu_isa": dlattn.info()["cpu_isa"],
        "torch": torch.__version__,
        "torch_isa": torch.backends.cpu.get_cpu_capability(),
        "threads": options.threads,
        "machine": platform.machine(),
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    scalings, rows = [thread_scaling(options.threads)], []
    with torch.inference_mode():
        for case in CASES:
            print(f"\n{case.name}\n{HEADINGS}")
            for dtype in case.bars:
                rows.append(run_case(case, dtype, options))
                print_row(rows[-1])
                scalings.append(thread_scaling(options.threads))

    idle = min(scalings) >= 0.95 * options.threads
    print(
        f"\narithmetic of {options.threads} threads against one: x{min(scalings):.2f} to x{max(scalings):.2f}", end=""
    )
    print("" if idle else "  WARNING: the machine was not idle, discard this run")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**about, "thread_scaling": scalings, "idle": idle, "rows": rows}, file, indent=1)
    wrong = not all(row["correct"] for row in rows)
    missed = options.check and any(row["ratio"] < row["bar"] for row in rows)
    sys.exit(1 if wrong or missed else 0)


if __name__ == "__main__":
    main()
