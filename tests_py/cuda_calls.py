"""One small call of every operation, as NumPy arrays, for tests that put them on a GPU."""

from dataclasses import dataclass, field

import numpy as np

from cuda_support import DTYPES, function
from harness import rng


@dataclass
class Sample:
    """`floats` are rounded to the dtype of the call; `others` (tables, lengths, masks) stay as they are."""

    op: str
    floats: dict
    others: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    writes: tuple = ()  # arguments that are written in place
    results: int = 1

    def rounded(self, dtype):
        return {
            name: [DTYPES[dtype].round(x).astype(np.float32) for x in value]
            if isinstance(value, list)
            else DTYPES[dtype].round(value).astype(np.float32)
            for name, value in self.floats.items()
        }

    def on_cpu(self, dtype):
        """(results, written arguments) of the CPU backend in float32."""
        given = {
            name: [np.array(x) for x in v] if isinstance(v, list) else np.array(v)
            for name, v in self.rounded(dtype).items()
        }
        result = self.call({**given, **{name: np.array(x) for name, x in self.others.items()}})
        return result, [given[name] for name in self.writes]

    def make(self, framework, dtype):
        """The arguments by name, made by a framework of cuda_support."""
        arguments = {
            name: [framework.make(x, dtype) for x in value] if isinstance(value, list) else framework.make(value, dtype)
            for name, value in self.rounded(dtype).items()
        }
        if self.op == "merge_attention_states":
            arguments["lses"] = [framework.make(x) for x in self.rounded(dtype)["lses"]]
        return {**arguments, **{name: framework.make(x) for name, x in self.others.items()}}

    def call(self, arguments, **more):
        """The results as a tuple."""
        result = function(self.op)(**arguments, **self.options, **more)
        return () if result is None else result if isinstance(result, tuple) else (result,)


def samples(heads=4, kv_heads=2, dim=16, keys=40):
    r = rng("cuda calls")
    n = lambda *shape: r.normal(size=shape).astype(np.float32)  # noqa: E731
    i32 = lambda x: np.array(x, np.int32)  # noqa: E731
    dense = {"q": n(2, 3, heads, dim), "k": n(2, keys, kv_heads, dim), "v": n(2, keys, kv_heads, dim)}
    packed = {"q": n(7, heads, dim), "k": n(50, kv_heads, dim), "v": n(50, kv_heads, dim)}
    caches = {"k_cache": n(9, 8, kv_heads, dim), "v_cache": n(9, 8, kv_heads, dim)}
    pages = {"page_table": i32([[7, 1, 4, 0], [2, 8, 3, 5]]), "seqlens_k": i32([19, 32])}
    tables = {"cos": n(20, dim // 2), "sin": n(20, dim // 2)}
    tokens = {"k": n(6, kv_heads, dim), "v": n(6, kv_heads, dim)}
    lse = {"return_lse": True}
    slots = {"slot_mapping": np.array([3, 70, -1, 11, 40, 0], np.int32)}
    positions = {"positions": i32([[3, 0, 19], [7, 7, 1]])}
    found = [
        Sample("attention", dense, {"seqlens_k": i32([keys, 17])}, {"is_causal": True, **lse}, results=2),
        Sample("attn_prefill", dense, {"mask": r.random((2, 3, keys)) < 0.7}, {"softcap": 5.0, **lse}, results=2),
        Sample("attn_decode", {**dense, "q": n(2, 1, heads, dim)}, {"seqlens_k": i32([0, keys])}, lse, results=2),
        Sample(
            "attn_varlen",
            packed,
            {"cu_seqlens_q": i32([0, 5, 7]), "cu_seqlens_k": i32([0, 20, 50])},
            {"is_causal": True, **lse},
            results=2,
        ),
        Sample("attn_paged_decode", {"q": n(2, 1, heads, dim), **caches}, pages, lse, results=2),
        Sample(
            "attn_paged_prefill",
            {"q": n(7, heads, dim), **caches},
            {**pages, "cu_seqlens_q": i32([0, 5, 7])},
            {"is_causal": True, **lse},
            results=2,
        ),
        Sample(
            "rotary_embedding",
            {"q": n(2, 3, heads, dim), "k": n(2, 3, kv_heads, dim), **tables},
            positions,
            {"interleaved": False},
            results=2,
        ),
        Sample("append_kv", {**tokens, **caches}, slots, writes=("k_cache", "v_cache"), results=0),
        Sample(
            "rotary_append_kv",
            {"q": n(6, heads, dim), **tokens, **tables, **caches},
            {"positions": i32([3, 0, 19, 7, 7, 1]), **slots},
            {"interleaved": True},
            writes=("k_cache", "v_cache"),
        ),
        Sample(
            "merge_attention_states",
            {"outs": [n(2, 3, heads, dim) for _ in range(3)], "lses": [n(2, heads, 3) for _ in range(3)]},
            results=2,
        ),
    ]
    return {sample.op: sample for sample in found}


SAMPLES = samples()
