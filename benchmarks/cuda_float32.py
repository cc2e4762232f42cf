"""float32 prefill on a GPU: dlattn against PyTorch's memory-efficient attention, in one run.

    python benchmarks/cuda_float32.py [--out benchmarks/results/float32_h200.json] [--source-hash HASH]

TF32 is off (PyTorch's kernel makes one float32 product of three TF32 ones). Times by CUDA events, in turns, median of
the rounds' medians; ratio > 1: dlattn is faster. Results are compared first, with float64 on a part of the rows.
"""

import argparse
import json
import statistics

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import dlattn

SHAPES = [  # batch, tokens, heads, head_dim, causal
    (1, 4096, 16, 128, False),
    (1, 4096, 16, 128, True),
    (1, 4096, 32, 64, False),
    (1, 4096, 8, 256, False),
]


def exact(q, k, v, causal, rows):
    """The last `rows` queries, in float64."""
    q, k, v = (x.double().transpose(1, 2) for x in (q[:, -rows:], k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        keys = k.shape[2]
        limit = torch.arange(keys - rows, keys, device=q.device)[:, None]
        scores.masked_fill_(torch.arange(keys, device=q.device) > limit, float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2)


def time_once(function):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def measure(batch, tokens, heads, dim, causal):
    q, k, v = (torch.randn(batch, tokens, heads, dim, device="cuda") for _ in range(3))
    out = torch.full_like(q, float("nan"))

    def ours():
        return dlattn.attn_prefill(q, k, v, is_causal=causal, out=out)

    def theirs():
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            x = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=causal)
        return x.transpose(1, 2)

    want = exact(q, k, v, causal, 64)
    errors = {}
    for name, function in (("dlattn", ours), ("torch", theirs)):
        errors[name] = ((function()[:, -64:].double() - want).norm() / want.norm()).item()
        if not errors[name] < 1e-5:
            raise SystemExit(f"{name} is wrong: relative error {errors[name]:.2e}")
    medians = {"dlattn": [], "torch": []}
    for _ in range(3):
        for name, function in (("dlattn", ours), ("torch", theirs)):
            function()
            medians[name].append(statistics.median(time_once(function) for _ in range(7)))
    us = {name: statistics.median(times) for name, times in medians.items()}
    flop = 4 * batch * heads * tokens * tokens * dim * (0.5 if causal else 1)
    return {
        "b": batch,
        "s": tokens,
        "h": heads,
        "d": dim,
        "causal": causal,
        **{f"{name}_us": round(t, 1) for name, t in us.items()},
        **{f"{name}_tflops": round(flop / t / 1e6, 1) for name, t in us.items()},
        **{f"{name}_rel_err": float(f"{e:.2e}") for name, e in errors.items()},
        "ratio": round(us["torch"] / us["dlattn"], 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--source-hash")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    head = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "dlattn": dlattn.__version__}
    head["source_hash"] = arguments.source_hash
    rows = []
    for shape in SHAPES:
        rows.append(measure(*shape))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"head": head, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
