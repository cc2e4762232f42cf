"""Token by token: sampling and the generation loop."""

import time
from dataclasses import dataclass

import numpy as np
from model import ContextFull


class Sampler:
    """Greedy at temperature 0, else a draw from the softmax of logits / temperature over the top_k best (0: all)."""

    def __init__(self, temperature=0.0, top_k=0, seed=None):
        self._temperature = temperature
        self._top_k = top_k
        self._random = np.random.default_rng(seed)

    def __call__(self, logits):
        if self._temperature == 0:
            return int(np.argmax(logits))
        scores = logits.astype(np.float64) / self._temperature
        if 0 < self._top_k < len(scores):
            kth_best = np.partition(scores, -self._top_k)[-self._top_k]
            scores[scores < kth_best] = -np.inf
        weights = np.exp(scores - scores.max())
        return int(self._random.choice(len(weights), p=weights / weights.sum()))


@dataclass
class Statistics:
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decoded_tokens: int = 0  # by single steps: the first new token comes out of the prefill
    decode_seconds: float = 0.0
    stopped_by: str = "max-tokens"

    def __str__(self):
        def rate(tokens, seconds):
            return f"{tokens} tokens in {seconds:.2f} s" + (f" = {tokens / seconds:.1f} tokens/s" if tokens else "")

        return (
            f"prefill {rate(self.prompt_tokens, self.prefill_seconds)}; "
            f"decode {rate(self.decoded_tokens, self.decode_seconds)}; stopped by {self.stopped_by}"
        )


def generate(model, prompt_ids, max_tokens, stop_ids, sampler, statistics):
    """Yields new token ids until one of `stop_ids` (not yielded), `max_tokens`, or the end of the context."""
    model.reset()
    start = time.perf_counter()
    logits = model.forward(prompt_ids)
    statistics.prompt_tokens = len(prompt_ids)
    statistics.prefill_seconds = time.perf_counter() - start
    for count in range(1, max_tokens + 1):
        token = sampler(logits)
        if token in stop_ids:
            statistics.stopped_by = "end of text"
            return
        yield token
        if count == max_tokens:
            return
        start = time.perf_counter()
        try:
            logits = model.forward([token])
        except ContextFull as error:
            statistics.stopped_by = f"a full context ({error})"
            return
        statistics.decode_seconds += time.perf_counter() - start
        statistics.decoded_tokens += 1
