"""Rotary embeddings as transformers' models compute them: the model's own table, applied by the model's own function.

Only config objects are made, no weights and no downloads. A Model says which classes to use and how dlattn says the
same: `interleaved`, `offset` (the rotated part of a head starts there), how the model's table repeats the R / 2 columns
that dlattn wants (`table`), and whether the model writes pairs in another order than it reads them (`splits_pairs`).
"""

import importlib
import zlib
from dataclasses import dataclass, field

import numpy as np
import torch

POSITIONS = np.array([list(range(9)), [3, 200, 4095, 2, 0, 8000, 33, 33, 1023]])
SHORT_POSITIONS = np.minimum(POSITIONS, 4000)
LONG_POSITIONS = np.array([[131071, 131000, 100007, 65536, 65535, 70001, 2, 1, 0]])
PATCHES = np.array([[y, x] for y in range(3) for x in range(4)] + [[63, 2], [9, 41]])  # (row, column) of a picture


# How the model rotates q and k, [batch, heads, len, dim] each.
def by_pair(mod, q, k, cos, sin, model):
    part = slice(model.offset, model.offset + (cos.shape[-1] if model.narrow else q.shape[-1]))
    rotated = getattr(mod, model.function)(q[..., part], k[..., part], cos, sin)
    return [join(x, y, part) for x, y in zip((q, k), rotated, strict=True)]


def one_by_one(mod, q, k, cos, sin, model):
    return [mod.apply_rotary_pos_emb(x, cos, sin) for x in (q, k)]


def sin_first(mod, q, k, cos, sin, model):
    """GPT-J and CodeGen: tokens before heads, only the first rotary_dim elements, (sin, cos)."""
    part = slice(0, 2 * cos.shape[-1])
    rotated = [mod.apply_rotary_pos_emb(x[..., part].transpose(1, 2), sin, cos).transpose(1, 2) for x in (q, k)]
    return [join(x, y, part) for x, y in zip((q, k), rotated, strict=True)]


def by_complex(mod, q, k, cos, sin, model):
    part = slice(model.offset, None)
    rotated = mod.apply_rotary_emb(q[..., part], k[..., part], torch.complex(cos.float(), sin.float()))
    return [join(x, y, part) for x, y in zip((q, k), rotated, strict=True)]


def by_complex_tokens_first(mod, q, k, cos, sin, model):
    rotated = mod.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), torch.complex(cos.float(), sin.float()))
    return [x.transpose(1, 2) for x in rotated]


def without_batch(mod, q, k, cos, sin, model):
    """Qwen2-VL's pictures: [patches, heads, dim]."""
    rotated = mod.apply_rotary_pos_emb_vision(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
    return [x.transpose(0, 1)[None] for x in rotated]


def batch_first(mod, q, k, cos, sin, model):
    return mod.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)


def sinusoidal(mod, q, k, cos, sin, model):
    both = torch.cat([sin, cos], -1)[:, None]
    return mod.RoFormerSelfAttention.apply_rotary_position_embeddings(both, q, k)


def join(x, rotated, part):
    y = x.clone()
    y[..., part] = rotated
    return y


@dataclass(frozen=True)
class Model:
    name: str
    module: str
    config: str
    rotary: str
    settings: dict
    heads: int = 4
    kv_heads: int = 2
    dim: int = 128
    interleaved: bool = False
    table: str = "halves"  # the columns come twice, one half after the other; "twice": each twice in a row; "once"
    offset: int = 0
    narrow: bool = False  # the model's function takes only the rotated part
    splits_pairs: bool = False
    function: str = "apply_rotary_pos_emb"
    apply: object = by_pair
    positions: np.ndarray = field(default_factory=lambda: POSITIONS)
    layer: str = ""
    axes: int = 0  # 3: positions in time, height and width


@dataclass
class Sample:
    q: torch.Tensor  # [batch, heads, len, dim] float32
    k: torch.Tensor
    cos: torch.Tensor  # [batch, len, R / 2], as dlattn wants it
    sin: torch.Tensor
    out: list  # the model's rotated q and k, computed in float64 from the float32 table where its function allows that
    low: list  # the same all in bfloat16


def columns(table, how):
    """The R / 2 different columns of a model's table."""
    half = table.shape[-1] // 2
    if how == "halves":
        assert torch.equal(table[..., :half], table[..., half:])
        return table[..., :half]
    if how == "twice":
        assert torch.equal(table[..., 0::2], table[..., 1::2])
        return table[..., 0::2]
    return table


def make_table(model, mod, config, dtype):
    """(cos, sin) as the model hands them to its function."""
    positions = torch.from_numpy(model.positions)
    if model.axes:
        positions = torch.stack([positions, positions.flip(1) // 2, positions * 5 % 900])
    if model.apply is sinusoidal:
        embedding = mod.RoFormerSinusoidalPositionalEmbedding(8192, model.dim)
        weight = embedding.create_weight() if hasattr(embedding, "create_weight") else embedding.weight
        sin, cos = weight[positions].chunk(2, -1)
        return cos.to(dtype), sin.to(dtype)
    module = getattr(mod, model.rotary)(config)
    table = module(torch.zeros(1, dtype=dtype), positions, *([model.layer] if model.layer else []))
    if model.apply is sin_first:
        table = table[::-1]
    return (table.real, table.imag) if isinstance(table, torch.Tensor) else table


@torch.no_grad()
def sample(model):
    package = f"transformers.models.{model.module}."
    mod = importlib.import_module(f"{package}modeling_{model.module}")
    config = getattr(importlib.import_module(f"{package}configuration_{model.module}"), model.config)(**model.settings)
    pictures = model.positions is PATCHES
    batch, length = (1, len(PATCHES)) if pictures else model.positions.shape
    generator = torch.Generator().manual_seed(zlib.crc32(model.name.encode()))
    q, k = (torch.randn(batch, n, length, model.dim, generator=generator) for n in (model.heads, model.kv_heads))
    cos, sin = make_table(model, mod, config, torch.float32)
    wide = [x.double() for x in (q, k, cos, sin)]
    out = [x.double() for x in model.apply(mod, *wide, model)]
    low_table = make_table(model, mod, config, torch.bfloat16)
    low = [x.double() for x in model.apply(mod, q.bfloat16(), k.bfloat16(), *low_table, model)]
    cos, sin = (columns(t, model.table) for t in (cos, sin))
    if pictures:
        cos, sin = cos[None], sin[None]
    return Sample(q, k, cos.contiguous(), sin.contiguous(), out, low)
