"""ONNX's own node tests of Attention and RotaryEmbedding: inputs and expected outputs that nobody here wrote."""

import numpy as np
import pytest

import dlattn

onnx = pytest.importorskip("onnx")
pytest.importorskip("ml_dtypes")  # for the bfloat16 cases

if onnx.__version__ != "1.23.2":  # expected outputs of the same names changed between releases
    pytest.skip(f"onnx {onnx.__version__} is installed, the cases are those of 1.23.2", allow_module_level=True)

import onnx_cases  # noqa: E402

ATTENTION, ROTARY = onnx_cases.load()
# A few roundings of the dtype: ONNX rounds the scale (as a square root on q and on k), scores, weights and sums.
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def test_all_cases_are_there():
    kinds = [case.kind for case in ATTENTION]
    assert (len(ATTENTION), len(ROTARY)) == (93, 8)
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"direct": 37, "converted": 14, "bias": 42}
    assert {str(case.q.dtype) for case in ATTENTION} == {"float32", "float16", "bfloat16"}


def close(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    return np.abs(got - want).max(initial=0.0)


@pytest.mark.parametrize("case", ATTENTION, ids=lambda c: c.name.removeprefix("test_attention_"))
@pytest.mark.parametrize(
    "function", [dlattn.attention, dlattn.attn_prefill, dlattn.attn_decode], ids=lambda f: f.__name__
)
def test_attention(case, function):
    out, lse = function(case.q, case.k, case.v, return_lse=True, **case.options)
    assert close(out, case.out) <= TOLERANCE[str(case.q.dtype)]
    assert np.array_equal(np.isneginf(lse), (out == 0).all(axis=-1))
    swapped = {**case.options, "layout": "blhd"}
    again = function(*(x.transpose(0, 2, 1, 3) for x in (case.q, case.k, case.v)), **swapped)
    assert np.array_equal(again.transpose(0, 2, 1, 3), out)


@pytest.mark.parametrize("case", ROTARY, ids=lambda c: c.name.removeprefix("test_rotary_embedding"))
def test_rotary_embedding(case):
    got, none = dlattn.rotary_embedding(
        case.x, None, case.cos, case.sin, positions=case.positions, interleaved=case.interleaved, layout="bhld"
    )
    assert none is None
    assert close(got, case.out) <= TOLERANCE[str(case.x.dtype)]
