"""A Llama-type decoder in NumPy, CuPy or PyTorch. Rotary embedding, paged cache and attention are dlattn's."""

from dataclasses import dataclass

import numpy as np
from arrays import NumPyArrays

import dlattn


@dataclass(frozen=True)
class Config:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rope_base: float
    norm_eps: float


class ContextFull(RuntimeError):
    """The sequence would grow past the model's context length."""


class PagedCache:
    """Keys and values of one sequence in pages of 16 tokens, with room for the model's whole context.

    Row t of the sequence is in page page_table[0, t // 16]. With one sequence the pages are simply in order; a server
    would hand out the free pages of many.
    """

    page_size = 16

    def __init__(self, config, arrays, dtype):
        pages = -(-config.context_length // self.page_size)
        shape = (pages, self.page_size, config.num_kv_heads, config.head_dim)
        self.keys = [arrays.empty(shape, dtype=dtype) for _ in range(config.num_layers)]
        self.values = [arrays.empty(shape, dtype=dtype) for _ in range(config.num_layers)]
        self.length = 0  # tokens
        # Numbers that the calls need, made once: a slice of an array on the GPU is free, a copy from the host is not.
        self._page_numbers = arrays.array(np.arange(pages, dtype=np.int32)[None])
        self._counts = arrays.array(np.arange(config.context_length + 1, dtype=np.int32))

    def extend(self, num_tokens):
        """Appends tokens: their positions, which with pages in order are their slots too."""
        start, self.length = self.length, self.length + num_tokens
        return self._counts[start : self.length]

    @property
    def page_table(self):
        """The pages in use, [1, pages]."""
        return self._page_numbers[:, : -(-self.length // self.page_size)]

    @property
    def seqlens(self):
        return self._counts[self.length : self.length + 1]


class Llama:
    """One sequence at a time: forward() takes the next tokens and remembers them in the cache."""

    def __init__(self, config, weights, dtype="float32", arrays=None):
        self.config = config
        self._arrays = xp = arrays or NumPyArrays()
        self._float32 = xp.dtype("float32")
        self._dtype = xp.dtype(dtype)  # of q, k, v, the cache and the attention result; all else is float32
        self._embedding = xp.array(weights["token_embd.weight"])
        output = weights.get("output.weight")  # absent: tied
        self._output = self._embedding if output is None else xp.array(output)
        self._output_norm = xp.array(weights["output_norm.weight"])
        self._layers = [_layer(weights, f"blk.{i}.", xp) for i in range(config.num_layers)]
        self._cos, self._sin = map(xp.array, rotary_table(config.context_length, config.head_dim, config.rope_base))
        self._cache = PagedCache(config, xp, self._dtype)

    def reset(self):
        self._cache.length = 0

    @property
    def length(self):
        """Tokens seen since the last reset."""
        return self._cache.length

    def forward(self, token_ids, all_logits=False):
        """Logits [vocab] after the last of `token_ids`, or [len(token_ids), vocab] after each of them, in NumPy.

        On a GPU this only queues work, up to the last line: that waits for the logits.
        """
        xp, limit = self._arrays, self.config.context_length
        if self.length + len(token_ids) > limit:
            raise ContextFull(f"{self.length + len(token_ids)} tokens do not fit the model's context of {limit}")
        positions = self._cache.extend(len(token_ids))
        cu_seqlens_q = xp.array(np.array([0, len(token_ids)], np.int32))

        x = self._embedding[xp.array(token_ids)]  # [tokens, hidden]
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, self._norm(x, layer["attn_norm"]), positions, cu_seqlens_q)
            x = x + self._feed_forward(layer, self._norm(x, layer["ffn_norm"]))
        x = self._norm(x if all_logits else x[-1:], self._output_norm)
        logits = _linear(x, self._output)
        return xp.to_numpy(logits if all_logits else logits[0])

    def _attention(self, index, layer, x, positions, cu_seqlens_q):
        c, xp, cache = self.config, self._arrays, self._cache
        tokens, heads, kv_heads = len(x), c.num_heads, c.num_kv_heads
        qkv = xp.cast(_linear(x, layer["qkv"]), self._dtype).reshape(tokens, heads + 2 * kv_heads, c.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]  # views

        keys, values = cache.keys[index], cache.values[index]
        q = dlattn.rotary_append_kv(
            q, k, v, self._cos, self._sin, positions, keys, values, slot_mapping=positions, interleaved=True
        )
        paged = (keys, values, cache.page_table, cache.seqlens)
        if tokens == 1:
            out = dlattn.attn_paged_decode(q[None], *paged)
        else:
            out = dlattn.attn_paged_prefill(q, *paged, cu_seqlens_q, is_causal=True)
        return _linear(xp.cast(out, self._float32).reshape(tokens, -1), layer["attn_output"])

    def _norm(self, x, weight):
        """RMSNorm (Zhang and Sennrich, arXiv:1910.07467)."""
        mean_square = (x * x).mean(axis=-1, keepdims=True)
        return x / self._arrays.sqrt(mean_square + self.config.norm_eps) * weight

    def _feed_forward(self, layer, x):
        """SwiGLU (Shazeer, arXiv:2002.05202)."""
        gate_up = _linear(x, layer["gate_up"])
        half = gate_up.shape[1] // 2
        gate, up = gate_up[:, :half], gate_up[:, half:]
        silu = 0.5 * gate * (1 + self._arrays.tanh(0.5 * gate))  # gate * sigmoid(gate), no exponential that overflows
        return _linear(silu * up, layer["ffn_down"])


def rotary_table(length, head_dim, base):
    """cos and sin, float32 [length, head_dim / 2], of position / base^(2i / head_dim)."""
    frequencies = base ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.outer(np.arange(length), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _layer(weights, prefix, xp):
    """A layer's weights. Matrices that read the same input are stacked: one product instead of three or two."""

    def pick(*names):
        parts = [weights[f"{prefix}{name}.weight"] for name in names]
        return xp.array(np.concatenate(parts) if len(parts) > 1 else parts[0])

    return {
        "attn_norm": pick("attn_norm"),
        "qkv": pick("attn_q", "attn_k", "attn_v"),
        "attn_output": pick("attn_output"),
        "ffn_norm": pick("ffn_norm"),
        "gate_up": pick("ffn_gate", "ffn_up"),
        "ffn_down": pick("ffn_down"),
    }


def _linear(x, matrix):
    """x [tokens, in] times matrix [out, in]; one token is a matrix-vector product that reads the rows in order."""
    return (matrix @ x[0])[None] if len(x) == 1 else x @ matrix.T
