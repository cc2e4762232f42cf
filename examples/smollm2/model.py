"""A Llama-type decoder in NumPy. Rotary embedding, paged cache and attention are dlattn's."""

import numpy as np

import dlattn


class ContextFull(RuntimeError):
    """The sequence would grow past the model's context length."""


class PagedCache:
    """Keys and values of one sequence in pages of 16 tokens; grows as tokens come.

    Row t of the sequence is in page page_table[0, t // 16]. With one sequence the pages are simply in order; a server
    would hand out the free pages of many.
    """

    page_size = 16

    def __init__(self, num_layers, num_kv_heads, head_dim, dtype):
        self._page_shape = (self.page_size, num_kv_heads, head_dim)
        self._dtype = dtype
        self.keys = [self._new_pages(0) for _ in range(num_layers)]  # per layer [pages, page_size, kv_heads, head_dim]
        self.values = [self._new_pages(0) for _ in range(num_layers)]
        self.page_table = np.zeros((1, 0), np.int32)
        self.length = 0  # tokens

    def extend(self, num_tokens):
        """Room for more tokens: their positions, which with pages in order are their slots too."""
        start, self.length = self.length, self.length + num_tokens
        pages = -(-self.length // self.page_size)
        have = self.page_table.shape[1]
        if pages > have:
            more = max(pages - have, have // 2)  # by half, so that copying stays a constant cost per token
            self.keys = [np.concatenate([old, self._new_pages(more)]) for old in self.keys]
            self.values = [np.concatenate([old, self._new_pages(more)]) for old in self.values]
            self.page_table = np.arange(have + more, dtype=np.int32)[None]
        return np.arange(start, self.length, dtype=np.int32)

    def _new_pages(self, count):
        return np.empty((count, *self._page_shape), self._dtype)


class Llama:
    """One sequence at a time: forward() takes the next tokens and remembers them in the cache."""

    def __init__(self, config, weights, dtype=np.float32):
        self.config = config
        self.dtype = np.dtype(dtype)  # of q, k, v, the cache and the attention result; all else is float32
        self._embedding = weights["token_embd.weight"]
        self._output = weights.get("output.weight", self._embedding)  # absent: tied
        self._output_norm = weights["output_norm.weight"]
        self._layers = [_layer(weights, f"blk.{i}.") for i in range(config.num_layers)]
        self._cos, self._sin = rotary_table(config.context_length, config.head_dim, config.rope_base)
        self.reset()

    def reset(self):
        c = self.config
        self._cache = PagedCache(c.num_layers, c.num_kv_heads, c.head_dim, self.dtype)

    @property
    def length(self):
        """Tokens seen since the last reset."""
        return self._cache.length

    def forward(self, token_ids, all_logits=False):
        """Logits [vocab] after the last of `token_ids`, or [len(token_ids), vocab] after each of them."""
        limit = self.config.context_length
        if self.length + len(token_ids) > limit:
            raise ContextFull(f"{self.length + len(token_ids)} tokens do not fit the model's context of {limit}")
        positions = self._cache.extend(len(token_ids))

        x = self._embedding[token_ids]  # [tokens, hidden]
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, self._norm(x, layer["attn_norm"]), positions)
            x = x + _feed_forward(layer, self._norm(x, layer["ffn_norm"]))
        x = self._norm(x if all_logits else x[-1:], self._output_norm)
        logits = _linear(x, self._output)
        return logits if all_logits else logits[0]

    def _attention(self, index, layer, x, positions):
        c, cache = self.config, self._cache
        tokens, heads, kv_heads = len(x), c.num_heads, c.num_kv_heads
        qkv = _linear(x, layer["qkv"]).astype(self.dtype, copy=False).reshape(tokens, heads + 2 * kv_heads, c.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]  # views

        keys, values = cache.keys[index], cache.values[index]
        q = dlattn.rotary_append_kv(
            q, k, v, self._cos, self._sin, positions, keys, values, slot_mapping=positions, interleaved=True
        )
        seqlens_k = np.array([cache.length], np.int32)
        if tokens == 1:
            out = dlattn.attn_paged_decode(q[None], keys, values, cache.page_table, seqlens_k)
        else:
            cu_seqlens_q = np.array([0, tokens], np.int32)
            out = dlattn.attn_paged_prefill(q, keys, values, cache.page_table, seqlens_k, cu_seqlens_q, is_causal=True)
        return _linear(out.astype(np.float32, copy=False).reshape(tokens, -1), layer["attn_output"])

    def _norm(self, x, weight):
        """RMSNorm (Zhang and Sennrich, arXiv:1910.07467)."""
        mean_square = np.einsum("td,td->t", x, x)[:, None] / np.float32(x.shape[1])
        return x / np.sqrt(mean_square + np.float32(self.config.norm_eps)) * weight


def rotary_table(length, head_dim, base):
    """cos and sin, float32 [length, head_dim / 2], of position / base^(2i / head_dim)."""
    frequencies = base ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.outer(np.arange(length), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _layer(weights, prefix):
    """A layer's weights. Matrices that read the same input are stacked: one product instead of three or two."""
    pick = lambda *names: [weights[f"{prefix}{name}.weight"] for name in names]  # noqa: E731
    return {
        "attn_norm": pick("attn_norm")[0],
        "qkv": np.concatenate(pick("attn_q", "attn_k", "attn_v")),
        "attn_output": pick("attn_output")[0],
        "ffn_norm": pick("ffn_norm")[0],
        "gate_up": np.concatenate(pick("ffn_gate", "ffn_up")),
        "ffn_down": pick("ffn_down")[0],
    }


def _linear(x, matrix):
    """x [tokens, in] times matrix [out, in]; one token is a matrix-vector product that reads the rows in order."""
    return (matrix @ x[0])[None] if len(x) == 1 else x @ matrix.T


def _feed_forward(layer, x):
    """SwiGLU (Shazeer, arXiv:2002.05202)."""
    gate, up = np.split(_linear(x, layer["gate_up"]), 2, axis=1)
    silu = 0.5 * gate * (1 + np.tanh(0.5 * gate))  # gate * sigmoid(gate), without an exponential that overflows
    return _linear(silu * up, layer["ffn_down"])
