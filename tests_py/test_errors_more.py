"""Errors that are not about one argument alone: heads, head_dim, rotary tables, merges; and what the text says."""

import numpy as np
import pytest

import dlattn
from test_errors import CANARY, canary, dense, int32, merge, ones, paged, refuse, rotary, rotary_append


def test_the_text_says_what_was_got_what_was_expected_and_why():
    base = dense()
    base["k"] = ones(2, 5, 2, 7)
    assert refuse("attn_prefill", base, "k") == "attn_prefill: k.head_dim is 7, expected 8 (= q.head_dim)"
    base = dense()
    base["v"] = ones(2, 6, 2, 6)
    assert refuse("attn_decode", base, "v") == "attn_decode: v.seqlen_k is 6, expected 5 (= k.seqlen_k)"


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 3), (3, 4), (5, 2), (4, 0)])
def test_heads_that_do_not_divide(heads, kv_heads):
    base = dense() | {
        "q": ones(2, 3, heads, 8),
        "k": ones(2, 5, kv_heads, 8),
        "v": ones(2, 5, kv_heads, 6),
        "sinks": ones(heads),
        "alibi_slopes": ones(heads),
        "out": canary(2, 3, heads, 6),
        "lse": canary(2, heads, 3),
    }
    refuse("attention", base, "num_heads|num_kv_heads|q|k")


@pytest.mark.parametrize(("dim", "dim_v"), [(257, 8), (512, 8), (8, 257), (0, 8), (8, 0)])
def test_head_dim_outside_1_to_256(dim, dim_v):
    base = dense() | {
        "q": ones(2, 3, 4, dim),
        "k": ones(2, 5, 2, dim),
        "v": ones(2, 5, 2, dim_v),
        "out": canary(2, 3, 4, dim_v),
    }
    refuse("attention", base, "head_dim|head_dim_v", error=(ValueError, NotImplementedError), contains="256")


def test_page_size_of_zero():
    base = paged(True) | {"k_cache": ones(5, 0, 2, 8), "v_cache": ones(5, 0, 2, 6), "seqlens_k": int32(0, 0)}
    refuse("attn_paged_decode", base, "page_size|k_cache")


def test_too_few_pages_for_the_lengths():
    base = paged(True) | {"page_table": np.array([[0, 3], [1, 2]], np.int32)}
    refuse("attn_paged_decode", base, "seqlens_k|page_table")


@pytest.mark.parametrize("which", ["cos", "sin", "both"])
def test_rotary_table_shapes(which):
    base = rotary()
    for name in ("cos", "sin"):
        if which in (name, "both"):
            base[name] = ones(9, 5)  # rotary_dim 10 > head_dim 8
    refuse("rotary_embedding", base, "cos|sin")


def test_rotary_tables_of_two_dtypes():
    refuse("rotary_embedding", rotary() | {"sin": ones(9, 3).astype(np.float16)}, "sin")


def test_rotary_table_shorter_than_the_sequence():
    """Without positions, token i takes row i."""
    base = rotary() | {"cos": ones(2, 3), "sin": ones(2, 3), "positions": None}
    refuse("rotary_embedding", base, "cos", contains="max_position")


def test_gathered_rows_take_no_positions():
    base = rotary() | {"cos": ones(2, 3, 3), "sin": ones(2, 3, 3)}
    refuse("rotary_embedding", base, "positions")


def test_rotary_inplace_takes_no_out():
    base = rotary() | {"inplace": True}
    refuse("rotary_embedding", base, "out|inplace")


@pytest.mark.parametrize("which", ["q", "k"])
def test_rotary_inplace_on_a_read_only_array(which):
    base = rotary()
    base.pop("q_out"), base.pop("k_out")
    base[which].flags.writeable = False
    before = base["q"].copy(), base["k"].copy()
    with pytest.raises(ValueError, match=rf"rotary_embedding: {which} is read-only"):
        dlattn.rotary_embedding(**base, inplace=True)
    assert np.array_equal(base["q"], before[0])
    assert np.array_equal(base["k"], before[1])


def test_rotary_out_shifted_against_its_input():
    """In place is fine, half in place is not."""
    buffer = ones(1, 4, 2, 8)
    cos = ones(3, 4)
    before = buffer.copy()
    with pytest.raises(ValueError, match="q"):
        dlattn.rotary_embedding(buffer[:, :3], None, cos, cos, interleaved=True, out=(buffer[:, 1:], None))
    assert np.array_equal(buffer, before)


def test_rotary_without_k_refuses_an_output_for_it():
    base = rotary() | {"k": None}
    refuse("rotary_embedding", base, "k|k_out|out", error=(ValueError, TypeError))


def test_apply_rotary_emb():
    x, cos = ones(2, 3, 4, 8), ones(3, 4)
    with pytest.raises((TypeError, ValueError)):
        dlattn.apply_rotary_emb(x, cos)
    with pytest.raises((TypeError, ValueError)):
        dlattn.apply_rotary_emb(x, (cos, cos, cos))
    with pytest.raises(ValueError, match=r"apply_rotary_emb: x\b"):
        dlattn.apply_rotary_emb(x.astype(np.float64), (cos, cos))
    with pytest.raises(ValueError, match=r"apply_rotary_emb: x\b"):
        dlattn.apply_rotary_emb(x[0, 0], (cos, cos))
    with pytest.raises(ValueError, match=r"apply_rotary_emb: .*\b(cos|sin|freqs)\b"):
        dlattn.apply_rotary_emb(x, (cos, ones(3, 3)))


def test_append_caches_of_other_shapes():
    for change in (
        {"k_cache": canary(5, 4, 3, 8)},
        {"v_cache": canary(5, 4, 2, 7)},
        {"v_cache": canary(6, 4, 2, 6)},
        {"k_cache": canary(5, 4, 2, 9)},
    ):
        refuse("rotary_append_kv", rotary_append() | change, "k_cache|v_cache|k|v")


MERGES = {
    "no states": ({"outs": [], "lses": []}, "outs"),
    "other counts": ({"lses": [ones(2, 4, 3)]}, "lses|outs"),
    "shape of one out": ({"outs": [ones(2, 3, 4, 6), ones(2, 3, 4, 5)]}, "outs"),
    "rank of one out": ({"outs": [ones(2, 3, 4, 6), ones(3, 4, 6)]}, "outs"),
    "dtype of one out": ({"outs": [ones(2, 3, 4, 6), ones(2, 3, 4, 6).astype(np.float16)]}, "outs"),
    "float64": ({"outs": [np.ones((2, 3, 4, 6))] * 2}, "outs"),
    "shape of one lse": ({"lses": [ones(2, 4, 3), ones(2, 3, 4)]}, "lses"),
    "rank of one lse": ({"lses": [ones(2, 4, 3), ones(4, 3)]}, "lses"),
    "dtype of one lse": ({"lses": [ones(2, 4, 3), np.ones((2, 4, 3))]}, "lses"),
    "no arrays": ({"outs": [1, 2]}, "outs"),
    "shape of out": ({"out": canary(2, 3, 4, 5)}, "out"),
    "dtype of out": ({"out": canary(2, 3, 4, 6).astype(np.float16)}, "out"),
    "shape of the new lse": ({"lse": canary(2, 3, 4)}, "lse"),
    "dtype of the new lse": ({"lse": canary(2, 4, 3).astype(np.float16)}, "lse"),
    "layout": ({"layout": "x"}, "layout"),
}


@pytest.mark.parametrize("what", MERGES)
def test_merge(what):
    change, named = MERGES[what]
    refuse("merge_attention_states", merge() | change, named + r"|outs\[\d\]|lses\[\d\]", error=(ValueError, TypeError))


def test_merge_read_only_output():
    base = merge()
    base["out"].flags.writeable = False
    refuse("merge_attention_states", base, "out", contains="read-only")


def test_merge_output_that_overlaps_a_state_without_being_it():
    buffer = ones(2, 4, 4, 6)
    base = merge() | {"outs": [buffer[:, 1:], ones(2, 3, 4, 6)], "out": buffer[:, :3]}
    before = buffer.copy()
    refuse("merge_attention_states", base, "out|outs")
    assert np.array_equal(buffer, before)


@pytest.mark.parametrize(
    "out", [(1, 2), (canary(2, 3, 4, 6),), (canary(2, 3, 4, 6), canary(2, 4, 3), canary(2, 4, 3)), "out", []]
)
def test_out_of_a_wrong_form(out):
    q, k = ones(2, 3, 4, 8), ones(2, 5, 2, 8)
    with pytest.raises((TypeError, ValueError), match="attention: out"):
        dlattn.attention(q, k, ones(2, 5, 2, 6), out=out, return_lse=True)


def test_a_pair_of_outputs_needs_return_lse():
    out = (canary(2, 3, 4, 8), canary(2, 4, 3))
    with pytest.raises((TypeError, ValueError), match="attention: out"):
        dlattn.attention(ones(2, 3, 4, 8), ones(2, 5, 2, 8), ones(2, 5, 2, 8), out=out)
    assert (out[0] == CANARY).all()


@pytest.mark.parametrize("n", [0, -1, 2.5, "two"])
def test_number_of_threads(n):
    before = dlattn.get_num_threads()
    with pytest.raises((TypeError, ValueError)):
        dlattn.set_num_threads(n)
    assert dlattn.get_num_threads() == before
