"""Rotary embeddings of transformers' own models through dlattn.rotary_embedding."""

import os
import warnings

import pytest

import dlattn

torch = pytest.importorskip("torch")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    import rotary_models
from rotary_model_table import INEXPRESSIBLE, MODELS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
EXPRESSIBLE = [m for m in MODELS if m.name not in INEXPRESSIBLE]
ONE_POSITION = [m for m in EXPRESSIBLE if not m.axes and m.positions is not rotary_models.PATCHES]
models = pytest.mark.parametrize("model", EXPRESSIBLE, ids=lambda m: m.name)


@pytest.fixture(scope="module")
def samples():
    return {}


def sample_of(model, samples):
    if model.name not in samples:
        samples[model.name] = rotary_models.sample(model)
    return samples[model.name]


def rotate(model, s, dtype=torch.float32, interleaved=None, **table):
    """The model's q and k through dlattn, in the model's order of elements."""
    part = slice(model.offset, None)
    q, k = s.q.to(dtype, copy=True), s.k.to(dtype, copy=True)
    dlattn.rotary_embedding(
        q[..., part],
        k[..., part],
        table.get("cos", s.cos),
        table.get("sin", s.sin),
        positions=table.get("positions"),
        interleaved=model.interleaved if interleaved is None else interleaved,
        layout="bhld",
        inplace=True,
    )
    if model.splits_pairs:  # the model reads pairs and writes halves
        for x in (q, k):
            x[..., part] = torch.cat([x[..., part][..., 0::2], x[..., part][..., 1::2]], -1)
    return [x.double() for x in (q, k)]


def error(got, want):
    return max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))


def test_how_many_models():
    assert len(MODELS) == len({m.name for m in MODELS}) == 50
    assert set(INEXPRESSIBLE) <= {m.name for m in MODELS}
    assert (len(EXPRESSIBLE), len(ONE_POSITION)) == (49, 42)


@models
def test_float32(model, samples):
    s = sample_of(model, samples)
    assert error(rotate(model, s), s.out) < 3e-6
    assert error(rotate(model, s, interleaved=not model.interleaved), s.out) > 0.1, (
        "the other kind of pairs fits as well"
    )
    assert error([s.q.double(), s.k.double()], s.out) > 0.1, "nothing is rotated"


@models
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit(model, samples, dtype):
    """Rotation in float32, rounded once: one rounding of the inputs and one of the result."""
    s = sample_of(model, samples)
    got = rotate(model, s, dtype)
    eps = torch.finfo(dtype).eps
    largest = max(float(x.abs().max()) for x in (s.q, s.k)) * float(s.cos.square().add(s.sin.square()).sqrt().max())
    assert error(got, s.out) < 1.5 * eps * largest
    if dtype == torch.bfloat16:
        assert error(got, s.out) < error(s.low, s.out) * 1.5, "farther from the truth than the model in bfloat16"


@pytest.mark.parametrize("model", ONE_POSITION, ids=lambda m: m.name)
def test_table_with_positions(model, samples):
    """The same rows in a table that positions point into; a token with several positions has no such table."""
    s = sample_of(model, samples)
    positions = torch.from_numpy(model.positions)
    cos, sin = (torch.full((int(positions.max()) + 1, t.shape[-1]), torch.nan) for t in (s.cos, s.sin))
    cos[positions], sin[positions] = s.cos, s.sin
    got = rotate(model, s, cos=cos, sin=sin, positions=positions)
    assert error(got, rotate(model, s)) == 0


def test_what_cannot_be_said_is_refused():
    for model in MODELS:
        if model.name in INEXPRESSIBLE:
            s = rotary_models.sample(model)
            with pytest.raises((ValueError, NotImplementedError), match="head_dim"):
                rotate(model, s)
