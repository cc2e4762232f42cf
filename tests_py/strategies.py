"""Hypothesis strategies for attention calls."""

import numpy as np
from hypothesis import strategies as st

from attention_case import INF, NAN, Case
from harness import DTYPES, PLACEMENTS

EDGES = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65]
MASKS = ["", "", "2b", "3b", "4b", "2f", "3f", "4f", "2b1", "3b1", "4b1", "3f1", "4f1"]
placements = st.sampled_from(list(PLACEMENTS))
lengths = st.one_of(st.sampled_from(EDGES), st.integers(0, 80))
dims = st.one_of(st.sampled_from([1, 2, 3, 4, 8, 12, 16, 31, 32, 33, 64, 80]), st.integers(1, 100))


@st.composite
def options(draw):
    chosen = {}
    if draw(st.booleans()):
        chosen["is_causal"] = True
    if draw(st.booleans()):
        chosen["window"] = (draw(st.integers(-1, 40)), draw(st.integers(-1, 40)))
    if draw(st.booleans()):
        chosen["scale"] = draw(st.sampled_from([0.0, 0.125, 0.3, 1.0, -0.5]))
    if draw(st.booleans()):
        chosen["softcap"] = draw(st.sampled_from([0.5, 5.0, 50.0]))
    return chosen


@st.composite
def dense_cases(draw):
    batch, len_q, len_k = draw(st.integers(0, 3)), draw(lengths), draw(lengths)
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 4, 7, 8]))
    has_lengths = draw(st.booleans())
    return Case(
        dt=draw(st.sampled_from(DTYPES)),
        batch=batch,
        len_q=len_q,
        len_k=len_k,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dim=draw(dims),
        dim_v=draw(dims),
        layout=draw(st.sampled_from(["blhd", "bhld"])),
        place_q=draw(placements),
        place_k=draw(placements),
        place_v=draw(placements),
        place_out=draw(placements),
        options=draw(options()),
        mask=draw(st.sampled_from(MASKS)),
        sinks=draw(st.booleans()),
        alibi=draw(st.sampled_from([0, 0, 1, 2])),
        lengths=tuple(draw(st.integers(0, len_k)) for _ in range(batch)) if has_lengths else None,
        index=draw(st.sampled_from([np.int32, np.int64])),
        poison=draw(st.sampled_from([NAN, INF, -INF])),
        spread=draw(st.sampled_from([0.0, 1.0, 6.0])),
    )


@st.composite
def ragged_cases(draw, paged, decode=False):
    from paged_case import Ragged

    batch = draw(st.integers(0, 4))
    len_q = draw(st.integers(0, 6))
    lens_k = tuple(draw(lengths) for _ in range(batch))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 4, 7, 8]))
    chosen = draw(st.sampled_from(MASKS))
    return Ragged(
        dt=draw(st.sampled_from(DTYPES)),
        lens_q=tuple(len_q if decode else draw(lengths) for _ in range(batch)),
        lens_k=lens_k,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dim=draw(dims),
        dim_v=draw(dims),
        page_size=draw(st.sampled_from([1, 2, 3, 8, 13, 16, 32, 64])) if paged else 0,
        decode=decode,
        layout=draw(st.sampled_from(["blhd", "bhld"])) if paged else "blhd",
        place_q=draw(placements),
        place_k=draw(placements),
        place_v=draw(placements),
        place_out=draw(placements),
        options=draw(options()),
        mask=chosen,
        sinks=draw(st.booleans()),
        alibi=draw(st.sampled_from([0, 0, 1, 2])),
        index=draw(st.sampled_from([np.int32, np.int64])),
        head_rows=0 if decode else draw(st.integers(0, 2)),
        poison=draw(st.sampled_from([NAN, INF, -INF])),
        spread=draw(st.sampled_from([0.0, 1.0, 6.0])),
        more_pages=draw(st.integers(0, 3)),
    )
