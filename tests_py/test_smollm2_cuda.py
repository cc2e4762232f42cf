"""examples/smollm2 with the arrays of CuPy and PyTorch on a GPU: the tokens and logits that NumPy gives on the CPU.

Mostly with random weights of the model's architecture, which need no download. PyTorch on the CPU goes along, so that
its code runs everywhere.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import dlattn

EXAMPLE = Path(__file__).parents[1] / "examples" / "smollm2"
sys.path.insert(0, str(EXAMPLE))
try:
    from arrays import NumPyArrays, TorchArrays
    from model import Config, Llama
finally:
    sys.path.remove(str(EXAMPLE))

pytestmark = pytest.mark.filterwarnings("ignore:CUDA path could not be detected")  # CuPy's

CONFIG = Config(
    num_layers=3,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_length=250,
    rope_base=100000.0,
    norm_eps=1e-5,
)
VOCABULARY = 1000
PROMPT = np.random.default_rng(1).integers(VOCABULARY, size=100).tolist()
DECODE_STEPS = 32


@pytest.fixture(
    params=[pytest.param("cupy", marks=pytest.mark.gpu), pytest.param("torch", marks=pytest.mark.gpu), "torch-cpu"]
)
def arrays(request):
    module = pytest.importorskip(request.param.partition("-")[0])
    if request.param == "torch-cpu":
        return TorchArrays("cpu")
    if not has_gpu(module):
        pytest.skip(f"{request.param} finds no CUDA device")
    return NumPyArrays(module) if request.param == "cupy" else TorchArrays("cuda")


def has_gpu(module):
    if module.__name__ == "torch":
        return module.cuda.is_available()
    try:
        return module.cuda.runtime.getDeviceCount() > 0
    except module.cuda.runtime.CUDARuntimeError:
        return False


@pytest.fixture(scope="module")
def weights():
    """Random, and scaled so that logits and scores are of size 1 to 3."""
    rng = np.random.default_rng(0)

    def matrix(rows, columns, scale=1.0):
        return rng.standard_normal((rows, columns), np.float32) * np.float32(scale * columns**-0.5)

    hidden, kv, inner = CONFIG.hidden_size, CONFIG.num_kv_heads * CONFIG.head_dim, 1536
    weights = {
        "token_embd.weight": matrix(VOCABULARY, hidden, 24),
        "output.weight": matrix(VOCABULARY, hidden),
        "output_norm.weight": np.ones(hidden, np.float32),
    }
    for i in range(CONFIG.num_layers):
        layer = {
            "attn_norm": rng.uniform(0.5, 1.5, hidden).astype(np.float32),
            "attn_q": matrix(hidden, hidden, 3),
            "attn_k": matrix(kv, hidden),
            "attn_v": matrix(kv, hidden),
            "attn_output": matrix(hidden, hidden),
            "ffn_norm": rng.uniform(0.5, 1.5, hidden).astype(np.float32),
            "ffn_gate": matrix(inner, hidden),
            "ffn_up": matrix(inner, hidden),
            "ffn_down": matrix(hidden, inner),
        }
        weights |= {f"blk.{i}.{name}.weight": weight for name, weight in layer.items()}
    return weights


@pytest.fixture(scope="module")
def expected(weights):
    return greedy(Llama(CONFIG, weights), PROMPT)


def greedy(model, prompt):
    """Prefill, then 32 greedy decode steps: the tokens fed to them, and the logits after each token [132, vocab]."""
    logits, tokens = [model.forward(prompt, all_logits=True)], []
    for _ in range(DECODE_STEPS):
        tokens.append(int(logits[-1][-1].argmax()))
        logits.append(model.forward(tokens[-1:], all_logits=True))
    return tokens, np.concatenate(logits)


def assert_same_text(got, expected):
    tokens, logits = got
    assert tokens == expected[0]
    np.testing.assert_allclose(logits, expected[1], rtol=0, atol=2e-3)
    assert len(set(tokens)) > 8  # a real continuation, not one token over and over


def test_tokens_and_logits_equal_those_of_numpy(arrays, weights, expected):
    assert_same_text(greedy(Llama(CONFIG, weights, arrays=arrays), PROMPT), expected)


def test_the_real_model_says_the_same(arrays):
    for module in ("gguf", "jinja2", "tokenizers"):
        pytest.importorskip(module)
    import test_smollm2 as real  # skips where the weights are missing

    gguf_file = real.GGUFFile(real.WEIGHTS_PATH)
    config, weights = gguf_file.config(), gguf_file.weights()
    prompt = real.ChatTokenizer(gguf_file).encode(real.TEXT)[:100]
    got = greedy(Llama(config, weights, arrays=arrays), prompt)
    assert_same_text(got, greedy(Llama(config, weights), prompt))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_16_bit_attention_stays_close(arrays, weights, expected, dtype, tolerance):
    pytest.importorskip("ml_dtypes")
    logits = Llama(CONFIG, weights, dtype, arrays).forward(PROMPT, all_logits=True)
    error = np.linalg.norm(logits - expected[1][:100]) / np.linalg.norm(expected[1][:100])
    assert 1e-6 < error < tolerance


def test_chunks_and_a_second_text(arrays, weights, expected):
    """Later chunks attend to a cache that is filled already; reset() forgets what is in it."""
    model = Llama(CONFIG, weights, arrays=arrays)
    model.forward(PROMPT[::-1])
    model.reset()
    chunks = [(0, 1), (1, 16), (16, 17), (17, 50), (50, 100)]
    logits = np.concatenate([model.forward(PROMPT[start:end], all_logits=True) for start, end in chunks])
    np.testing.assert_allclose(logits, expected[1][:100], rtol=0, atol=1e-3)


def run_example(*arguments):
    for module in ("gguf", "jinja2", "tokenizers"):
        pytest.importorskip(module)
    import test_smollm2 as real

    return real.run_example(*arguments)


@pytest.mark.gpu
def test_command_line_on_the_gpu():
    if not dlattn.info()["cuda_devices"]:
        pytest.skip("dlattn is built without CUDA, or finds no CUDA device")
    result = run_example("--device", "cuda", "--prompt", "The capital of France is", "--max-tokens", "8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("The capital of France is Paris")


def test_no_gpu_is_an_error():
    if dlattn.info()["cuda_devices"]:
        pytest.skip("there is a GPU")
    result = run_example("--device", "cuda", "--prompt", "a")
    assert result.returncode != 0
    assert result.stderr.startswith("error: --device cuda: ")
    assert "Traceback" not in result.stderr
