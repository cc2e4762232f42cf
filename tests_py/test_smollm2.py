"""examples/smollm2 against transformers with the same dequantised weights; its tokenizer; its command line."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

EXAMPLE = Path(__file__).parents[1] / "examples" / "smollm2"
sys.path.insert(0, str(EXAMPLE))
try:
    from generate import Sampler, Statistics, generate
    from gguf_weights import GGUFFile, default_path
    from model import ContextFull, Llama
    from tokenizer import ChatTokenizer
finally:
    sys.path.remove(str(EXAMPLE))

try:
    WEIGHTS_PATH = default_path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

PROMPT_TOKENS = 100
DECODE_STEPS = 32
TEXT = """The library at the end of the street had been closed for nineteen years when the roof began to leak.
Nobody noticed at first. Rain fell on the shelves of the reading room, on the atlases and the bound newspapers, and on
a long oak table where someone had once left a pair of spectacles. In the spring of 2007 a surveyor came with a torch,
wrote three pages of notes, and recommended that the building be pulled down. The town council met to discuss it on a
Tuesday, and the mayor, who had learned to read at that table, asked"""


@pytest.fixture(scope="module")
def gguf_file():
    return GGUFFile(WEIGHTS_PATH)


@pytest.fixture(scope="module")
def tokenizer(gguf_file):
    return ChatTokenizer(gguf_file)


@pytest.fixture(scope="module")
def weights(gguf_file):
    return gguf_file.weights()


@pytest.fixture(scope="module")
def llama(gguf_file, weights):
    return Llama(gguf_file.config(), weights)


@pytest.fixture(scope="module")
def prompt_ids(tokenizer):
    ids = tokenizer.encode(TEXT)[:PROMPT_TOKENS]
    assert len(ids) == PROMPT_TOKENS
    return ids


@pytest.fixture(scope="module")
def reference(gguf_file):
    """transformers' Llama with weights dequantised here, by gguf alone."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from gguf.quants import dequantize

    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    state = {}
    for tensor in gguf_file.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
        if heads:  # rows of a head from interleaved pairs (2i, 2i + 1) back to halves (i, i + 32)
            weight = weight.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(heads * 64, 576)
        state[transformers_name(tensor.name)] = torch.from_numpy(np.array(weight))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def transformers_name(name):
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, part, _ = name.split(".")
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    return f"model.layers.{layer}.{parts[part]}.weight"


@pytest.fixture(scope="module")
def greedy_run(llama, prompt_ids):
    """Prefill, then 32 greedy decode steps: the tokens fed to them, and the logits after each token [132, vocab]."""
    llama.reset()
    logits, tokens = [llama.forward(prompt_ids, all_logits=True)], []
    for _ in range(DECODE_STEPS):
        tokens.append(int(logits[-1][-1].argmax()))
        logits.append(llama.forward(tokens[-1:], all_logits=True))
    return tokens, np.concatenate(logits)


@pytest.fixture(scope="module")
def reference_logits(reference, prompt_ids, greedy_run):
    """transformers' logits after each token of the same text [132, vocab], from one call without a cache."""
    import torch

    with torch.no_grad():
        return reference(torch.tensor([prompt_ids + greedy_run[0]]), use_cache=False).logits[0].numpy()


def test_weights_are_those_that_gguf_dequantises(weights, reference):
    state = reference.state_dict()
    for name in ("token_embd.weight", "blk.0.attn_v.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        assert np.array_equal(weights[name], state[transformers_name(name)].numpy())


def test_logits_and_greedy_tokens_equal_transformers(greedy_run, reference_logits):
    tokens, logits = greedy_run
    np.testing.assert_allclose(logits, reference_logits, rtol=0, atol=2e-3)
    # Its best token after each prefix is the one that follows here, so its own greedy text is this one.
    assert reference_logits[PROMPT_TOKENS - 1 : -1].argmax(1).tolist() == tokens
    assert len(set(tokens)) > 8  # a real continuation, not one token over and over


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_attention_stays_close(gguf_file, weights, prompt_ids, reference_logits, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    model = Llama(gguf_file.config(), weights, dtype)
    expected = reference_logits[:PROMPT_TOKENS]
    logits = model.forward(prompt_ids, all_logits=True)
    error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert error < (2e-3 if dtype == "float16" else 2e-2)
    assert np.mean(logits.argmax(1) == expected.argmax(1)) > 0.9


def test_chunks_give_the_logits_of_one_prefill(llama, prompt_ids):
    """Chunked prefill: later chunks attend to a cache that is filled already, across page borders and growth."""
    llama.reset()
    whole = llama.forward(prompt_ids, all_logits=True)
    llama.reset()
    chunks = [(0, 1), (1, 16), (16, 17), (17, 50), (50, 100)]
    parts = [llama.forward(prompt_ids[start:end], all_logits=True) for start, end in chunks]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-3)


def test_full_context_is_an_error_and_ends_generation(gguf_file, weights, prompt_ids):
    from dataclasses import replace

    model = Llama(replace(gguf_file.config(), context_length=20), weights)
    with pytest.raises(ContextFull, match="100 tokens do not fit the model's context of 20"):
        model.forward(prompt_ids)
    statistics = Statistics()
    new_ids = list(generate(model, prompt_ids[:18], 50, set(), Sampler(), statistics))
    assert len(new_ids) == 3  # the last one needs no place in the cache
    assert statistics.stopped_by.startswith("a full context")


def test_generation_stops_at_a_stop_token_and_at_the_limit(llama, prompt_ids):
    statistics = Statistics()
    ids = list(generate(llama, prompt_ids[:10], 6, set(), Sampler(), statistics))
    assert len(ids) == 6
    assert (statistics.prompt_tokens, statistics.decoded_tokens, statistics.stopped_by) == (10, 5, "max-tokens")
    again = list(generate(llama, prompt_ids[:10], 6, {ids[3]}, Sampler(), statistics))
    assert again == ids[: ids.index(ids[3])]
    assert statistics.stopped_by == "end of text"


def test_sampler():
    logits = np.array([0.0, 3.0, 1.0, 2.0], np.float32)
    assert Sampler()(logits) == 1
    draws = Sampler(temperature=1.0, top_k=2, seed=0)
    counts = np.bincount([draws(logits) for _ in range(2000)], minlength=4)
    assert counts[0] == counts[2] == 0
    assert abs(counts[1] / 2000 - 1 / (1 + np.exp(-1))) < 0.04
    one, other = Sampler(0.8, seed=5), Sampler(0.8, seed=5)
    assert [one(logits) for _ in range(20)] == [other(logits) for _ in range(20)]


TEXTS = [
    "Hello, world!",
    "  two  spaces, a tab\t, lines\r\n\r\n and an end ",
    "In 2024 it cost 1234567.89 and x2 more; don't, we'll, I'VE",
    "naïve Straße, русский, 日本語のテキスト, العربية, हिन्दी",
    "🙂👩‍👩‍👧 e\u0301 \u200b \ufeff \x00 \x7f",
    "def f(x):\n    return {'a': x**2}  # 100%\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_equals_transformers(tokenizer):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    theirs = transformers.AutoTokenizer.from_pretrained(
        WEIGHTS_PATH.parent, gguf_file=WEIGHTS_PATH.name, local_files_only=True
    )
    for text in [*TEXTS, TEXT]:
        assert tokenizer.encode(text) == theirs.encode(text), text
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye\n"},
    ]
    for chat in (messages, messages[1:], messages[1:2]):
        assert tokenizer.render_chat(chat) == theirs.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )


def test_chat_template(tokenizer):
    assert tokenizer.render_chat([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [tokenizer.tokens[i] for i in tokenizer.encode("<|im_start|>user")] == ["<|im_start|>", "user"]


def test_stream_never_breaks_a_character(tokenizer):
    text = "a 日本語 🙂👩‍👧 z"
    ids = tokenizer.encode(text)
    assert any(tokenizer.decode([i]) == "\ufffd" for i in ids)  # some character is spread over tokens
    pieces = list(tokenizer.stream(ids))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    eos = tokenizer.encode("<|im_end|>")
    assert "".join(tokenizer.stream([*ids, *eos])) == text  # specials are not shown


def run_example(*arguments):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}  # what a bare C locale may give
    return subprocess.run(
        [sys.executable, EXAMPLE, *arguments], capture_output=True, encoding="utf-8", timeout=300, env=environment
    )


def test_command_line_continues_a_prompt():
    result = run_example("--prompt", "The capital of France is", "--max-tokens", "8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("The capital of France is Paris")
    assert "prefill 5 tokens" in result.stderr
    assert result.stderr.count("tokens/s") == 2


def test_command_line_chats():
    result = run_example("--chat", "What is the capital of France?", "--max-tokens", "30", "--dtype", "float16")
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "<|im" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--prompt --chat is required"),
        (["--prompt", ""], "the text is empty"),
        (["--prompt", "a", "--chat", "b"], "not allowed with"),
        (["--prompt", "a", "--max-tokens", "-1"], "-1 is negative"),
        (["--prompt", "a", "--dtype", "float64"], "invalid choice"),
        (["--prompt", "a", "--model", "no such file"], "No such file"),
    ],
)
def test_command_line_errors(arguments, message):
    result = run_example(*arguments)
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr
