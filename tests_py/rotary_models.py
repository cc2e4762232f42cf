"""Rotary embeddings as transformers' models compute them: the model's own table, applied by the model's own function.

Only config objects are made, no weights and no downloads. A Model says which classes to use and how dlattn says the same:
`interleaved`, `offset` (the rotated part of a head starts there), how the model's table repeats the R / 2 columns that
dlattn wants (`table`), and whether the model writes its pairs in another order than it reads them (`splits_pairs`).
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


def decoder(heads, kv_heads, dim, longest, **rope):
    return {"hidden_size": heads * dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
            "max_position_embeddings": longest, "num_hidden_layers": 2, "rope_parameters": rope}  # fmt: skip


def default(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def plain(hidden, heads, rope=None, **more):
    extra = {} if rope is None else {"rope_parameters": rope}
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": 2, **extra, **more}


def llama3(factor, low=1.0, high=4.0):
    return {"rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": 8192}  # fmt: skip


def longrope(columns, short, long, **more):
    return {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096,
            "short_factor": [1 + short * i for i in range(columns)], "long_factor": [1 + long * i for i in range(columns)],
            **more}  # fmt: skip


def deepseek(mscale):
    return plain(512, 4, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
                          "mscale": mscale, "mscale_all_dim": mscale, "original_max_position_embeddings": 4096},
                 qk_rope_head_dim=64, qk_nope_head_dim=128, max_position_embeddings=163840)  # fmt: skip


GEMMA3 = {**decoder(2, 1, 256, 131072), "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
    "sliding_attention": default(1e4), "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}}  # fmt: skip
GEMMA4 = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
MODERNBERT = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4}
PHI3 = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "pad_token_id": 0}


def family(prefix, name=None, **options):
    """Classes of a module named after it: LlamaConfig, LlamaRotaryEmbedding."""
    return {"module": name or prefix.lower(), "config": f"{prefix}Config", "rotary": f"{prefix}RotaryEmbedding", **options}


LLAMA = family("Llama")
VISION_ROPE = {"rope_type": "axial", "rope_theta": 1e4}
MODELS = [
    # pairs (i, i + R / 2), the whole head
    Model("llama 2", **LLAMA, settings=decoder(4, 4, 128, 4096, **default(1e4)), kv_heads=4),
    Model("llama 3.1", **LLAMA, settings=decoder(4, 1, 128, 131072, **llama3(8.0)), kv_heads=1),
    Model("llama 3.2, dim 64", **LLAMA, settings=decoder(4, 1, 64, 131072, **llama3(32.0)), kv_heads=1, dim=64),
    Model("llama, linear", **LLAMA, settings=decoder(4, 2, 128, 16384, rope_type="linear", rope_theta=1e4, factor=4.0)),
    Model("llama, dynamic", **LLAMA, settings=decoder(4, 2, 128, 2048, rope_type="dynamic", rope_theta=1e4, factor=2.0)),
    Model("llama, far positions", **LLAMA, settings=decoder(2, 1, 128, 131072, **default(5e5)), heads=2, kv_heads=1,
          positions=LONG_POSITIONS),
    Model("mistral", **family("Mistral"), settings=decoder(8, 2, 128, 32768, **default(1e4)), heads=8),
    Model("qwen3", **family("Qwen3"), settings=decoder(4, 2, 128, 40960, **default(1e6))),
    Model("qwen2.5, yarn", **family("Qwen2"), settings=decoder(4, 2, 128, 131072, rope_type="yarn", rope_theta=1e6, factor=4.0,
                                                              original_max_position_embeddings=32768)),
    Model("gpt-oss", **family("GptOss", "gpt_oss"), settings=decoder(
        8, 1, 64, 131072, rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
        original_max_position_embeddings=4096), heads=8, kv_heads=1, dim=64, table="once"),
    Model("gemma", **family("Gemma"), settings=decoder(2, 1, 256, 8192, **default(1e4)), heads=2, kv_heads=1, dim=256),
    Model("gemma 2", **family("Gemma2"), settings=decoder(2, 1, 256, 8192, **default(1e4)), heads=2, kv_heads=1, dim=256),
    Model("gemma 3, sliding", "gemma3", "Gemma3TextConfig", "Gemma3RotaryEmbedding", GEMMA3, 2, 1, 256, layer="sliding_attention"),
    Model("gemma 3, full", "gemma3", "Gemma3TextConfig", "Gemma3RotaryEmbedding", GEMMA3, 2, 1, 256, layer="full_attention"),
    Model("gemma 4, sliding", "gemma4", "Gemma4TextConfig", "Gemma4TextRotaryEmbedding", GEMMA4, 4, 4, 256, apply=one_by_one,
          layer="sliding_attention"),
    Model("gemma 4, full", "gemma4", "Gemma4TextConfig", "Gemma4TextRotaryEmbedding", GEMMA4, 4, 4, 512, apply=one_by_one,
          layer="full_attention"),
    Model("falcon", **family("Falcon"), settings=plain(256, 4, default(1e4)), kv_heads=4, dim=64),
    Model("olmo 2", **family("Olmo2"), settings=plain(512, 4, default(5e5), num_key_value_heads=4), kv_heads=4),
    Model("granite", **family("Granite"), settings=plain(320, 4, default(1e4), num_key_value_heads=2), dim=80),
    Model("modernbert, global", **family("ModernBert"), settings=MODERNBERT, kv_heads=4, dim=64, layer="full_attention"),
    Model("modernbert, local", **family("ModernBert"), settings=MODERNBERT, kv_heads=4, dim=64, layer="sliding_attention"),
    # pairs (i, i + R / 2), a part of the head
    Model("gpt-neox, 64 -> 16", **family("GPTNeoX", "gpt_neox"), settings=plain(256, 4, default(1e4, partial_rotary_factor=0.25)),
          kv_heads=4, dim=64),
    Model("gpt-neox, 96 -> 24", **family("GPTNeoX", "gpt_neox"), settings=plain(384, 4, default(1e4, partial_rotary_factor=0.25)),
          kv_heads=4, dim=96),
    Model("phi 2, 80 -> 32", **family("Phi"), settings=plain(320, 4, default(1e4, partial_rotary_factor=0.4)), kv_heads=4, dim=80,
          narrow=True),
    Model("phi 1.5, 64 -> 32", **family("Phi"), settings=plain(256, 4, default(1e4, partial_rotary_factor=0.5)), kv_heads=4, dim=64,
          narrow=True),
    Model("stablelm, 80 -> 20", **family("StableLm"), kv_heads=4, dim=80, narrow=True,
          settings=plain(320, 4, default(1e4, partial_rotary_factor=0.25), num_key_value_heads=4)),
    Model("persimmon, 64 -> 32", **family("Persimmon"), settings=plain(256, 4, default(25000.0, partial_rotary_factor=0.5)),
          kv_heads=4, dim=64, narrow=True),
    Model("nemotron, 128 -> 64", **family("Nemotron"), settings=decoder(4, 2, 128, 4096, **default(1e4, partial_rotary_factor=0.5))),
    Model("phi 3, short factors", **family("Phi3"), settings=plain(384, 4, longrope(48, 0.03, 0.9), num_key_value_heads=4, **PHI3),
          kv_heads=4, dim=96, positions=SHORT_POSITIONS),
    Model("phi 3, long factors", **family("Phi3"), settings=plain(384, 4, longrope(48, 0.03, 0.9), num_key_value_heads=4, **PHI3),
          kv_heads=4, dim=96),
    Model("phi 4, 128 -> 96", **family("Phi3"), settings=plain(
        512, 4, longrope(48, 0.0, 0.5, partial_rotary_factor=0.75), num_key_value_heads=2, **PHI3)),
    # pairs (2i, 2i + 1)
    Model("gpt-j", **family("GPTJ"), settings={"n_embd": 512, "n_head": 2, "n_layer": 2, "rotary_dim": 64, "n_positions": 8192},
          heads=2, kv_heads=2, dim=256, interleaved=True, table="once", apply=sin_first),
    Model("codegen", **family("CodeGen"), settings={"n_embd": 256, "n_head": 4, "n_layer": 2, "rotary_dim": 32, "n_positions": 8192},
          kv_heads=4, dim=64, interleaved=True, table="once", apply=sin_first),
    Model("cohere", **family("Cohere"), settings=plain(512, 4, default(8e6), num_key_value_heads=1), kv_heads=1, interleaved=True,
          table="twice"),
    Model("cohere 2", **family("Cohere2"), settings=plain(512, 4, default(5e4), num_key_value_heads=1), kv_heads=1,
          interleaved=True, table="twice"),
    Model("glm, 128 -> 64", **family("Glm"), interleaved=True,
          settings=decoder(4, 2, 128, 8192, **default(1e4, partial_rotary_factor=0.5)) | {"pad_token_id": 0}),
    Model("glm 4, 128 -> 64", **family("Glm4"), interleaved=True,
          settings=decoder(4, 2, 128, 8192, **default(1e4, partial_rotary_factor=0.5)) | {"pad_token_id": 0}),
    Model("helium", **family("Helium"), settings=decoder(4, 4, 128, 4096, **default(1e5)), kv_heads=4, interleaved=True),
    Model("ernie 4.5", **family("Ernie4_5", "ernie4_5"), settings=decoder(4, 2, 128, 131072, **default(5e5)), interleaved=True),
    Model("roformer", "roformer", "RoFormerConfig", "", {"hidden_size": 256, "num_attention_heads": 4}, 4, 4, 64,
          interleaved=True, table="once", apply=sinusoidal),
    Model("deepseek v2, last 64 of 192", **family("DeepseekV2", "deepseek_v2"), settings=deepseek(0.707), kv_heads=4, dim=192,
          interleaved=True, table="once", offset=128, apply=by_complex),
    Model("deepseek v3, last 64 of 192", **family("DeepseekV3", "deepseek_v3"), settings=deepseek(1.0), kv_heads=4, dim=192,
          interleaved=True, offset=128, splits_pairs=True, function="apply_rotary_pos_emb_interleave"),
    Model("llama 4", "llama4", "Llama4TextConfig", "Llama4TextRotaryEmbedding", plain(
        512, 4, llama3(16.0, 1.0, 1.0), num_key_value_heads=1, head_dim=128, max_position_embeddings=131072), kv_heads=1,
        interleaved=True, table="once", apply=by_complex_tokens_first),
    # several position axes, and pictures
    Model("qwen2-vl", "qwen2_vl", "Qwen2VLTextConfig", "Qwen2VLRotaryEmbedding", plain(
        512, 4, default(1e6, mrope_section=[16, 24, 24]), num_key_value_heads=2), axes=3),
    Model("qwen3-vl", "qwen3_vl", "Qwen3VLTextConfig", "Qwen3VLTextRotaryEmbedding", plain(
        512, 4, default(5e6, mrope_section=[24, 20, 20]), num_key_value_heads=2, head_dim=128), axes=3),
    Model("qwen3.5, 256 -> 64", "qwen3_5", "Qwen3_5TextConfig", "Qwen3_5TextRotaryEmbedding", plain(
        512, 2, default(1e7, mrope_section=[11, 11, 10], partial_rotary_factor=0.25), num_key_value_heads=1, head_dim=256),
        2, 1, 256, axes=3),
    Model("glm 4v, 128 -> 64", "glm4v", "Glm4vTextConfig", "Glm4vTextRotaryEmbedding", plain(
        512, 4, default(1e4, mrope_section=[8, 12, 12], partial_rotary_factor=0.5), num_key_value_heads=2), interleaved=True,
        table="twice", axes=3),
    Model("ernie 4.5 vl", "ernie4_5_vl_moe", "Ernie4_5_VLMoeTextConfig", "Ernie4_5_VLMoeTextRotaryEmbedding", plain(
        512, 4, default(5e5, mrope_section=[22, 22, 20]), num_key_value_heads=2), interleaved=True, table="twice", axes=3),
    Model("qwen2-vl pictures", "qwen2_vl", "Qwen2VLVisionConfig", "Qwen2VLVisionRotaryEmbedding", {
        "embed_dim": 320, "num_heads": 4, "rope_parameters": VISION_ROPE}, 4, 4, 80, apply=without_batch, positions=PATCHES),
    Model("pixtral pictures", "pixtral", "PixtralVisionConfig", "PixtralVisionRotaryEmbedding", {
        "hidden_size": 256, "num_attention_heads": 4, "rope_parameters": VISION_ROPE}, 4, 4, 64, apply=batch_first,
        positions=PATCHES),
]  # fmt: skip

# What dlattn.rotary_embedding cannot say.
INEXPRESSIBLE = {"gemma 4, full": "head_dim 512, and at most 256 is supported"}


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
