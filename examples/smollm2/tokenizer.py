"""Byte-level BPE, chat template and streaming text from a GGUF file's tables."""

import codecs

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL = 3  # token_type of the specials


def _byte_of_char():
    """GPT-2's printable stand-in for every byte (Radford et al., 2019): itself if printable, else 256, 257, ..."""
    table, unprintable = {}, 0
    for byte in range(256):
        char = chr(byte)
        if not ("!" <= char <= "~" or "\xa1" <= char <= "\xac" or "\xae" <= char <= "\xff"):
            char = chr(256 + unprintable)
            unprintable += 1
        table[char] = byte
    return table


class ChatTokenizer:
    def __init__(self, gguf_file):
        kind = (gguf_file.field("tokenizer.ggml.model"), gguf_file.field("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise ValueError(f"its tokenizer is {kind}, expected ('gpt2', 'smollm')")
        self.tokens = gguf_file.field("tokenizer.ggml.tokens")
        token_types = gguf_file.field("tokenizer.ggml.token_type")
        merges = [tuple(pair.split(" ")) for pair in gguf_file.field("tokenizer.ggml.merges")]
        self._specials = {i for i, kind in enumerate(token_types) if kind == _CONTROL}
        self.eos_id = gguf_file.field("tokenizer.ggml.eos_token_id")
        # A chat turn ends with eos; a plain text that the model considers finished ends with <|endoftext|>.
        self.stop_ids = {self.eos_id} | {i for i in self._specials if self.tokens[i] == "<|endoftext|>"}

        self._bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(self.tokens)}, merges))
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self._bpe.decoder = decoders.ByteLevel()
        self._bpe.add_special_tokens([AddedToken(self.tokens[i], special=True) for i in sorted(self._specials)])

        self._template = gguf_file.field("tokenizer.chat_template")
        self._byte_of_char = _byte_of_char()

    def encode(self, text):
        """Token ids. Special tokens written out in `text` ("<|im_end|>") count as such."""
        return self._bpe.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self._bpe.decode(ids, skip_special_tokens=False)

    def render_chat(self, messages):
        """The file's chat template applied to [{"role": ..., "content": ...}, ...], ready for the assistant's turn."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(self._template).render(messages=messages, add_generation_prompt=True)

    def token_bytes(self, token_id):
        """The bytes that a token stands for; a special token stands for none."""
        if token_id in self._specials:
            return b""
        return bytes(self._byte_of_char[char] for char in self.tokens[token_id])

    def stream(self, ids):
        """Text piece by piece. A character whose bytes are spread over several tokens appears when it is whole."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in ids:
            yield decoder.decode(self.token_bytes(token_id))
        yield decoder.decode(b"", final=True)
