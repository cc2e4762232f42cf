"""Host cost of one Python call: importing the arrays, checking them, choosing a kernel, returning `out`.

    python benchmarks/call_cost.py [--check]

attn_decode with out= on a tiny problem (1 sequence, 1 head, 1 key, head_dim 8), and on the same arrays with a batch of
0: every step of the call but the arithmetic, so the bar is on that one. The figure is the minimum over many turns: what
the call costs when nothing else disturbs it.
"""

import argparse
import importlib.util
import sys
import timeit

import numpy as np

import dlattn

BAR = 2.0  # microseconds, NumPy and torch, without the arithmetic


def microseconds(call, turns=200, calls=500):
    call()
    return min(timeit.repeat(call, repeat=turns, number=calls)) / calls * 1e6


def cases():
    """name, q, k, v, out for every framework at hand."""
    for batch in (1, 0):
        arrays = [np.ones((batch, 1, 1, 8), np.float32) for _ in range(4)]
        yield "numpy", batch, arrays
        if importlib.util.find_spec("torch"):
            import torch

            yield "torch", batch, [torch.from_numpy(x) for x in arrays]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"exit status 1 if a cost is above {BAR} us")
    options = parser.parse_args()
    slow = False
    print(f"empty Python call: {microseconds(lambda: None):.3f} us, not subtracted")
    for framework, batch, (q, k, v, out) in cases():

        def call(q=q, k=k, v=v, out=out, attn_decode=dlattn.attn_decode):
            return attn_decode(q, k, v, out=out)

        cost = microseconds(call)
        what = "one key" if batch else "no work"
        verdict = ""
        if not batch:
            slow |= cost > BAR
            verdict = f"  bar {BAR:.1f} us: {'MISS' if cost > BAR else 'ok'}"
        print(f"{framework}, {what}: {cost:.2f} us{verdict}")
    sys.exit(1 if slow and options.check else 0)


if __name__ == "__main__":
    main()
