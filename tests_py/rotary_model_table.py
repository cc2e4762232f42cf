"""The models of rotary_models.py and the settings of their configs."""

from rotary_models import (
    LONG_POSITIONS,
    PATCHES,
    SHORT_POSITIONS,
    Model,
    batch_first,
    by_complex,
    by_complex_tokens_first,
    one_by_one,
    sin_first,
    sinusoidal,
    without_batch,
)


def decoder(heads, kv_heads, dim, longest, **rope):
    return {
        "hidden_size": heads * dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": longest,
        "num_hidden_layers": 2,
        "rope_parameters": rope,
    }


def default(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def plain(hidden, heads, rope=None, **more):
    extra = {} if rope is None else {"rope_parameters": rope}
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": 2, **extra, **more}


def llama3(factor, low=1.0, high=4.0):
    return {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }


def longrope(columns, short, long, **more):
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 4096,
        "short_factor": [1 + short * i for i in range(columns)],
        "long_factor": [1 + long * i for i in range(columns)],
        **more,
    }


def deepseek(mscale):
    return plain(
        512,
        4,
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": mscale,
            "mscale_all_dim": mscale,
            "original_max_position_embeddings": 4096,
        },
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        max_position_embeddings=163840,
    )


GEMMA3 = {
    **decoder(2, 1, 256, 131072),
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": default(1e4),
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
}
GEMMA4 = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
MODERNBERT = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4}
PHI3 = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "pad_token_id": 0}


def family(prefix, name=None, **options):
    """Classes of a module named after it: LlamaConfig, LlamaRotaryEmbedding."""
    return {
        "module": name or prefix.lower(),
        "config": f"{prefix}Config",
        "rotary": f"{prefix}RotaryEmbedding",
        **options,
    }


LLAMA = family("Llama")
VISION_ROPE = {"rope_type": "axial", "rope_theta": 1e4}
MODELS = [
    # pairs (i, i + R / 2), the whole head
    Model("llama 2", **LLAMA, settings=decoder(4, 4, 128, 4096, **default(1e4)), kv_heads=4),
    Model("llama 3.1", **LLAMA, settings=decoder(4, 1, 128, 131072, **llama3(8.0)), kv_heads=1),
    Model("llama 3.2, dim 64", **LLAMA, settings=decoder(4, 1, 64, 131072, **llama3(32.0)), kv_heads=1, dim=64),
    Model("llama, linear", **LLAMA, settings=decoder(4, 2, 128, 16384, rope_type="linear", rope_theta=1e4, factor=4.0)),
    Model(
        "llama, dynamic", **LLAMA, settings=decoder(4, 2, 128, 2048, rope_type="dynamic", rope_theta=1e4, factor=2.0)
    ),
    Model(
        "llama, far positions",
        **LLAMA,
        settings=decoder(2, 1, 128, 131072, **default(5e5)),
        heads=2,
        kv_heads=1,
        positions=LONG_POSITIONS,
    ),
    Model("mistral", **family("Mistral"), settings=decoder(8, 2, 128, 32768, **default(1e4)), heads=8),
    Model("qwen3", **family("Qwen3"), settings=decoder(4, 2, 128, 40960, **default(1e6))),
    Model(
        "qwen2.5, yarn",
        **family("Qwen2"),
        settings=decoder(
            4, 2, 128, 131072, rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768
        ),
    ),
    Model(
        "gpt-oss",
        **family("GptOss", "gpt_oss"),
        settings=decoder(
            8,
            1,
            64,
            131072,
            rope_type="yarn",
            rope_theta=150000.0,
            factor=32.0,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=False,
            original_max_position_embeddings=4096,
        ),
        heads=8,
        kv_heads=1,
        dim=64,
        table="once",
    ),
    Model("gemma", **family("Gemma"), settings=decoder(2, 1, 256, 8192, **default(1e4)), heads=2, kv_heads=1, dim=256),
    Model(
        "gemma 2", **family("Gemma2"), settings=decoder(2, 1, 256, 8192, **default(1e4)), heads=2, kv_heads=1, dim=256
    ),
    Model(
        "gemma 3, sliding",
        "gemma3",
        "Gemma3TextConfig",
        "Gemma3RotaryEmbedding",
        GEMMA3,
        2,
        1,
        256,
        layer="sliding_attention",
    ),
    Model(
        "gemma 3, full",
        "gemma3",
        "Gemma3TextConfig",
        "Gemma3RotaryEmbedding",
        GEMMA3,
        2,
        1,
        256,
        layer="full_attention",
    ),
    Model(
        "gemma 4, sliding",
        "gemma4",
        "Gemma4TextConfig",
        "Gemma4TextRotaryEmbedding",
        GEMMA4,
        4,
        4,
        256,
        apply=one_by_one,
        layer="sliding_attention",
    ),
    Model(
        "gemma 4, full",
        "gemma4",
        "Gemma4TextConfig",
        "Gemma4TextRotaryEmbedding",
        GEMMA4,
        4,
        4,
        512,
        apply=one_by_one,
        layer="full_attention",
    ),
    Model("falcon", **family("Falcon"), settings=plain(256, 4, default(1e4)), kv_heads=4, dim=64),
    Model("olmo 2", **family("Olmo2"), settings=plain(512, 4, default(5e5), num_key_value_heads=4), kv_heads=4),
    Model("granite", **family("Granite"), settings=plain(320, 4, default(1e4), num_key_value_heads=2), dim=80),
    Model(
        "modernbert, global", **family("ModernBert"), settings=MODERNBERT, kv_heads=4, dim=64, layer="full_attention"
    ),
    Model(
        "modernbert, local", **family("ModernBert"), settings=MODERNBERT, kv_heads=4, dim=64, layer="sliding_attention"
    ),
    # pairs (i, i + R / 2), a part of the head
    Model(
        "gpt-neox, 64 -> 16",
        **family("GPTNeoX", "gpt_neox"),
        settings=plain(256, 4, default(1e4, partial_rotary_factor=0.25)),
        kv_heads=4,
        dim=64,
    ),
    Model(
        "gpt-neox, 96 -> 24",
        **family("GPTNeoX", "gpt_neox"),
        settings=plain(384, 4, default(1e4, partial_rotary_factor=0.25)),
        kv_heads=4,
        dim=96,
    ),
    Model(
        "phi 2, 80 -> 32",
        **family("Phi"),
        settings=plain(320, 4, default(1e4, partial_rotary_factor=0.4)),
        kv_heads=4,
        dim=80,
        narrow=True,
    ),
    Model(
        "phi 1.5, 64 -> 32",
        **family("Phi"),
        settings=plain(256, 4, default(1e4, partial_rotary_factor=0.5)),
        kv_heads=4,
        dim=64,
        narrow=True,
    ),
    Model(
        "stablelm, 80 -> 20",
        **family("StableLm"),
        kv_heads=4,
        dim=80,
        narrow=True,
        settings=plain(320, 4, default(1e4, partial_rotary_factor=0.25), num_key_value_heads=4),
    ),
    Model(
        "persimmon, 64 -> 32",
        **family("Persimmon"),
        settings=plain(256, 4, default(25000.0, partial_rotary_factor=0.5)),
        kv_heads=4,
        dim=64,
        narrow=True,
    ),
    Model(
        "nemotron, 128 -> 64",
        **family("Nemotron"),
        settings=decoder(4, 2, 128, 4096, **default(1e4, partial_rotary_factor=0.5)),
    ),
    Model(
        "phi 3, short factors",
        **family("Phi3"),
        settings=plain(384, 4, longrope(48, 0.03, 0.9), num_key_value_heads=4, **PHI3),
        kv_heads=4,
        dim=96,
        positions=SHORT_POSITIONS,
    ),
    Model(
        "phi 3, long factors",
        **family("Phi3"),
        settings=plain(384, 4, longrope(48, 0.03, 0.9), num_key_value_heads=4, **PHI3),
        kv_heads=4,
        dim=96,
    ),
    Model(
        "phi 4, 128 -> 96",
        **family("Phi3"),
        settings=plain(512, 4, longrope(48, 0.0, 0.5, partial_rotary_factor=0.75), num_key_value_heads=2, **PHI3),
    ),
    # pairs (2i, 2i + 1)
    Model(
        "gpt-j",
        **family("GPTJ"),
        settings={"n_embd": 512, "n_head": 2, "n_layer": 2, "rotary_dim": 64, "n_positions": 8192},
        heads=2,
        kv_heads=2,
        dim=256,
        interleaved=True,
        table="once",
        apply=sin_first,
    ),
    Model(
        "codegen",
        **family("CodeGen"),
        settings={"n_embd": 256, "n_head": 4, "n_layer": 2, "rotary_dim": 32, "n_positions": 8192},
        kv_heads=4,
        dim=64,
        interleaved=True,
        table="once",
        apply=sin_first,
    ),
    Model(
        "cohere",
        **family("Cohere"),
        settings=plain(512, 4, default(8e6), num_key_value_heads=1),
        kv_heads=1,
        interleaved=True,
        table="twice",
    ),
    Model(
        "cohere 2",
        **family("Cohere2"),
        settings=plain(512, 4, default(5e4), num_key_value_heads=1),
        kv_heads=1,
        interleaved=True,
        table="twice",
    ),
    Model(
        "glm, 128 -> 64",
        **family("Glm"),
        interleaved=True,
        settings=decoder(4, 2, 128, 8192, **default(1e4, partial_rotary_factor=0.5)) | {"pad_token_id": 0},
    ),
    Model(
        "glm 4, 128 -> 64",
        **family("Glm4"),
        interleaved=True,
        settings=decoder(4, 2, 128, 8192, **default(1e4, partial_rotary_factor=0.5)) | {"pad_token_id": 0},
    ),
    Model(
        "helium", **family("Helium"), settings=decoder(4, 4, 128, 4096, **default(1e5)), kv_heads=4, interleaved=True
    ),
    Model(
        "ernie 4.5",
        **family("Ernie4_5", "ernie4_5"),
        settings=decoder(4, 2, 128, 131072, **default(5e5)),
        interleaved=True,
    ),
    Model(
        "roformer",
        "roformer",
        "RoFormerConfig",
        "",
        {"hidden_size": 256, "num_attention_heads": 4},
        4,
        4,
        64,
        interleaved=True,
        table="once",
        apply=sinusoidal,
    ),
    Model(
        "deepseek v2, last 64 of 192",
        **family("DeepseekV2", "deepseek_v2"),
        settings=deepseek(0.707),
        kv_heads=4,
        dim=192,
        interleaved=True,
        table="once",
        offset=128,
        apply=by_complex,
    ),
    Model(
        "deepseek v3, last 64 of 192",
        **family("DeepseekV3", "deepseek_v3"),
        settings=deepseek(1.0),
        kv_heads=4,
        dim=192,
        interleaved=True,
        offset=128,
        splits_pairs=True,
        function="apply_rotary_pos_emb_interleave",
    ),
    Model(
        "llama 4",
        "llama4",
        "Llama4TextConfig",
        "Llama4TextRotaryEmbedding",
        plain(512, 4, llama3(16.0, 1.0, 1.0), num_key_value_heads=1, head_dim=128, max_position_embeddings=131072),
        kv_heads=1,
        interleaved=True,
        table="once",
        apply=by_complex_tokens_first,
    ),
    # several position axes, and pictures
    Model(
        "qwen2-vl",
        "qwen2_vl",
        "Qwen2VLTextConfig",
        "Qwen2VLRotaryEmbedding",
        plain(512, 4, default(1e6, mrope_section=[16, 24, 24]), num_key_value_heads=2),
        axes=3,
    ),
    Model(
        "qwen3-vl",
        "qwen3_vl",
        "Qwen3VLTextConfig",
        "Qwen3VLTextRotaryEmbedding",
        plain(512, 4, default(5e6, mrope_section=[24, 20, 20]), num_key_value_heads=2, head_dim=128),
        axes=3,
    ),
    Model(
        "qwen3.5, 256 -> 64",
        "qwen3_5",
        "Qwen3_5TextConfig",
        "Qwen3_5TextRotaryEmbedding",
        plain(
            512,
            2,
            default(1e7, mrope_section=[11, 11, 10], partial_rotary_factor=0.25),
            num_key_value_heads=1,
            head_dim=256,
        ),
        2,
        1,
        256,
        axes=3,
    ),
    Model(
        "glm 4v, 128 -> 64",
        "glm4v",
        "Glm4vTextConfig",
        "Glm4vTextRotaryEmbedding",
        plain(512, 4, default(1e4, mrope_section=[8, 12, 12], partial_rotary_factor=0.5), num_key_value_heads=2),
        interleaved=True,
        table="twice",
        axes=3,
    ),
    Model(
        "ernie 4.5 vl",
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoeTextConfig",
        "Ernie4_5_VLMoeTextRotaryEmbedding",
        plain(512, 4, default(5e5, mrope_section=[22, 22, 20]), num_key_value_heads=2),
        interleaved=True,
        table="twice",
        axes=3,
    ),
    Model(
        "qwen2-vl pictures",
        "qwen2_vl",
        "Qwen2VLVisionConfig",
        "Qwen2VLVisionRotaryEmbedding",
        {"embed_dim": 320, "num_heads": 4, "rope_parameters": VISION_ROPE},
        4,
        4,
        80,
        apply=without_batch,
        positions=PATCHES,
    ),
    Model(
        "pixtral pictures",
        "pixtral",
        "PixtralVisionConfig",
        "PixtralVisionRotaryEmbedding",
        {"hidden_size": 256, "num_attention_heads": 4, "rope_parameters": VISION_ROPE},
        4,
        4,
        64,
        apply=batch_first,
        positions=PATCHES,
    ),
]

# What dlattn.rotary_embedding cannot say.
INEXPRESSIBLE = {"gemma 4, full": "head_dim 512, and at most 256 is supported"}
