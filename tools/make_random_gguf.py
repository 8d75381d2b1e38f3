"""Write a random-weight GGUF of a given shape: for tests and benches of the engine, where only counts and times matter.

The file is a model of attention (llama), of recurrent layers (mamba), of both (jamba), or of attention of which every
other layer sees a window only (gemma2), with a byte-level BPE tokenizer and a ChatML template; the same seed makes the
same file. The rows of the special tokens are zero, so that greedy decoding practically never ends by itself. With
`plain` the model says nothing but `PLAIN`, characters that join no neighbour: each token can be shown at once, and a
reply that is cut into tokens again gives the tokens that the model chose. With `pooling` the file says how the model
makes embeddings. A model of the shape `encoder` (bert) makes nothing else; its tokenizer knows characters only.

    python tools/make_random_gguf.py --shape 0.5b --type q8_0 half.gguf
"""

import argparse
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from string import ascii_letters, digits

import gguf
import numpy as np

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "!#$%&()*+,-./:;=?@^_|~"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENCODER_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
POOLINGS = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS, "last": gguf.PoolingType.LAST}
STATE, KERNEL, RANK = 8, 4, 4
"""Sizes inside of a recurrent layer."""
WINDOW = 64
"""Tokens that a layer with a sliding window sees."""
BLOCK = 32
"""Values in one Q8_0 block: a scale in half precision and 32 signed bytes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; one of recurrent layers alone has no heads."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int
    tied: bool
    architecture: str = "llama"

    def recurrent(self, layer: int) -> bool:
        """Whether a layer is a recurrent one: all of mamba's, every other of jamba's."""
        return self.architecture == "mamba" or (self.architecture == "jamba" and layer % 2 == 0)


SHAPES = {
    "tiny": Shape(2, 64, 4, 2, 128, 512, 2048, tied=False),
    "recurrent": Shape(2, 64, 0, 0, 0, 512, 2048, tied=True, architecture="mamba"),
    "hybrid": Shape(2, 64, 4, 2, 128, 512, 2048, tied=True, architecture="jamba"),
    "encoder": Shape(2, 64, 4, 4, 128, 512, 512, tied=True, architecture="bert"),
    "windowed": Shape(2, 64, 4, 2, 128, 512, 2048, tied=True, architecture="gemma2"),
    "small": Shape(6, 256, 8, 4, 768, 4096, 4096, tied=False),
    "mid": Shape(12, 512, 8, 4, 1536, 32_000, 32_768, tied=True),
    "0.5b": Shape(24, 896, 14, 2, 4864, 151_936, 32_768, tied=True),
}


def byte_letters() -> list[str]:
    """Return the printable stand-ins of the 256 bytes that byte-level BPE uses (as in GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    missing = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + place) for place, byte in enumerate(missing)}
    return [letters[byte] for byte in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Make `size` tokens and the merges that form them: bytes, pairs, triples of letters, special tokens."""
    tokens, merges = byte_letters(), []
    wanted = size - len(SPECIALS)
    letters = ascii_letters + digits
    pairs = list(product(letters, letters))
    triples = ((a + b, c) for (a, b), c in product(pairs, letters))
    for left, right in [*pairs, *(triples if wanted > len(tokens) + len(pairs) else ())]:
        if len(tokens) >= wanted:
            break
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    if len(tokens) != wanted:
        raise SystemExit(f"a vocabulary of {size} tokens is too small or too large for this tool")
    return [*tokens, *SPECIALS], merges


class RandomModel:
    """Writes one model; tensors are made one after the other from one generator."""

    def __init__(
        self, path: Path, shape: Shape, kind: str, seed: int, *, plain: bool, template: str, pooling: str
    ) -> None:
        self.shape, self.kind, self.pooling = shape, kind, pooling
        self.plain, self.template = plain, template
        self.random = np.random.default_rng(seed)
        self.writer = gguf.GGUFWriter(path, shape.architecture)

    def write(self) -> None:
        """Write metadata, tokenizer and tensors, and close the file."""
        self._describe()
        self._tokenizer()
        self._tensors()
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def _describe(self) -> None:
        shape, writer = self.shape, self.writer
        writer.add_name("random")
        writer.add_context_length(shape.context)
        writer.add_embedding_length(shape.width)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.feed_forward)
        writer.add_head_count(shape.heads)
        per_layer = [0 if shape.recurrent(layer) else shape.kv_heads for layer in range(shape.layers)]
        writer.add_head_count_kv(per_layer if shape.architecture == "jamba" else shape.kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        if shape.heads:
            writer.add_rope_dimension_count(shape.width // shape.heads)
        if shape.architecture == "gemma2":
            writer.add_sliding_window(WINDOW)
            writer.add_key_length(shape.width // shape.heads)
            writer.add_value_length(shape.width // shape.heads)
        if shape.recurrent(0):
            writer.add_ssm_conv_kernel(KERNEL)
            writer.add_ssm_inner_size(2 * shape.width)
            writer.add_ssm_state_size(STATE)
            writer.add_ssm_time_step_rank(RANK)
        if self.pooling:
            writer.add_pooling_type(POOLINGS[self.pooling])
        writer.add_vocab_size(shape.vocabulary)
        q8 = self.kind == "q8_0"
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if q8 else gguf.LlamaFileType.MOSTLY_F16)

    def _tokenizer(self) -> None:
        writer, size = self.writer, self.shape.vocabulary
        tokens, merges = vocabulary(size)
        kinds = [gguf.TokenType.NORMAL] * (size - len(SPECIALS)) + [gguf.TokenType.CONTROL] * len(SPECIALS)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(size - 3)
        writer.add_eos_token_id(size - 1)
        writer.add_add_bos_token(False)
        writer.add_chat_template(self.template)

    def _tensors(self) -> None:
        shape = self.shape
        self._matrix("token_embd", shape.vocabulary, shape.width, special_rows=True)
        for layer in range(shape.layers):
            block = f"blk.{layer}"
            self._ones(f"{block}.attn_norm")
            if shape.recurrent(layer):
                self._recurrence(block)
            else:
                self._attention(block)
            if shape.feed_forward:
                self._feed_forward(block)
        self._ones("output_norm")
        if not shape.tied:
            self._matrix("output", shape.vocabulary, shape.width, special_rows=True, only=PLAIN if self.plain else "")

    def _attention(self, block: str) -> None:
        shape = self.shape
        kv_width = shape.width // shape.heads * shape.kv_heads
        self._matrix(f"{block}.attn_q", shape.width, shape.width)
        self._matrix(f"{block}.attn_k", kv_width, shape.width)
        self._matrix(f"{block}.attn_v", kv_width, shape.width)
        self._matrix(f"{block}.attn_output", shape.width, shape.width)

    def _feed_forward(self, block: str) -> None:
        shape = self.shape
        self._ones(f"{block}.ffn_norm")
        if shape.architecture == "gemma2":
            self._ones(f"{block}.post_attention_norm")
            self._ones(f"{block}.post_ffw_norm")
        self._matrix(f"{block}.ffn_gate", shape.feed_forward, shape.width)
        self._matrix(f"{block}.ffn_up", shape.feed_forward, shape.width)
        self._matrix(f"{block}.ffn_down", shape.width, shape.feed_forward)

    def _recurrence(self, block: str) -> None:
        width, inner = self.shape.width, 2 * self.shape.width
        self._matrix(f"{block}.ssm_in", 2 * inner, width)
        self._floats(f"{block}.ssm_conv1d.weight", inner, KERNEL)
        self._floats(f"{block}.ssm_conv1d.bias", inner)
        self._matrix(f"{block}.ssm_x", RANK + 2 * STATE, inner)
        self._matrix(f"{block}.ssm_dt", inner, RANK)
        self._floats(f"{block}.ssm_dt.bias", inner)
        decay = -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (inner, 1))
        self.writer.add_tensor(f"{block}.ssm_a", decay)
        self._floats(f"{block}.ssm_d", inner)
        if self.shape.architecture == "jamba":
            for name, size in (("dt", RANK), ("b", STATE), ("c", STATE)):
                self.writer.add_tensor(f"{block}.ssm_{name}_norm.weight", np.ones(size, dtype=np.float32))
        self._matrix(f"{block}.ssm_out", width, inner)

    def _floats(self, name: str, *shape: int) -> None:
        self.writer.add_tensor(name, self.random.standard_normal(shape, dtype=np.float32) * np.float32(0.5))

    def _ones(self, name: str) -> None:
        self.writer.add_tensor(f"{name}.weight", np.ones(self.shape.width, dtype=np.float32))

    def _matrix(self, name: str, rows: int, columns: int, *, special_rows: bool = False, only: str = "") -> None:
        if self.kind == "q8_0":
            data = self._q8_0(rows, columns)
            quantised = gguf.GGMLQuantizationType.Q8_0
        else:
            data = self.random.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)
            data = data.astype(np.float16)
            quantised = None
        if special_rows:
            data[-len(SPECIALS) :] = 0
        if only:
            data[[token for token in range(rows) if chr(token) not in only]] = 0  # a byte is its own token
        self.writer.add_tensor(f"{name}.weight", data, raw_dtype=quantised)

    def _q8_0(self, rows: int, columns: int) -> np.ndarray:
        blocks = rows * columns // BLOCK
        data = np.empty((blocks, 2 + BLOCK), dtype=np.uint8)
        data[:, 2:] = np.frombuffer(self.random.bytes(blocks * BLOCK), dtype=np.uint8).reshape(blocks, BLOCK)
        scale = np.float16(columns**-0.5 / 74)  # a uniform signed byte has a standard deviation of 74
        data[:, :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
        return data.reshape(rows, columns // BLOCK * (2 + BLOCK))


class RandomEncoder(RandomModel):
    """Writes a model that attends in both directions and makes embeddings only."""

    def _describe(self) -> None:
        super()._describe()
        self.writer.add_causal_attention(value=False)
        self.writer.add_layer_norm_eps(1e-12)

    def _tokenizer(self) -> None:
        writer, size = self.writer, self.shape.vocabulary
        letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
        tokens = [*ENCODER_SPECIALS, *(f"\u2581{letter}" for letter in letters), *letters]
        tokens += [f"[unused{number}]" for number in range(size - len(tokens))]
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
        writer.add_token_types([control if token in ENCODER_SPECIALS else normal for token in tokens])
        writer.add_token_type_count(2)
        for name, add in (
            ("[PAD]", writer.add_pad_token_id),
            ("[UNK]", writer.add_unk_token_id),
            ("[CLS]", writer.add_bos_token_id),
            ("[SEP]", writer.add_sep_token_id),
            ("[SEP]", writer.add_eos_token_id),
            ("[MASK]", writer.add_mask_token_id),
        ):
            add(ENCODER_SPECIALS.index(name))

    def _tensors(self) -> None:
        shape = self.shape
        self._matrix("token_embd", shape.vocabulary, shape.width)
        self._floats("token_types.weight", 2, shape.width)
        self._floats("position_embd.weight", shape.context, shape.width)
        self._norm("token_embd_norm", shape.width)
        for layer in range(shape.layers):
            block = f"blk.{layer}"
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                self._biased(f"{block}.{name}", shape.width, shape.width)
            self._norm(f"{block}.attn_output_norm", shape.width)
            self._biased(f"{block}.ffn_up", shape.feed_forward, shape.width)
            self._biased(f"{block}.ffn_down", shape.width, shape.feed_forward)
            self._norm(f"{block}.layer_output_norm", shape.width)

    def _biased(self, name: str, rows: int, columns: int) -> None:
        self._matrix(name, rows, columns)
        self._floats(f"{name}.bias", rows)

    def _norm(self, name: str, size: int) -> None:
        self._ones(name)
        self._floats(f"{name}.bias", size)


def make(
    path: Path,
    shape: str = "tiny",
    kind: str = "f16",
    seed: int = 1,
    context: int | None = None,
    *,
    plain: bool = False,
    template: str = "",
    pooling: str = "",
) -> Path:
    """Write a model to `path` and return the path; a plain one has an output matrix of its own, which costs no time."""
    sizes = SHAPES[shape]
    sizes = replace(sizes, context=context or sizes.context, tied=sizes.tied and not plain)
    writer = RandomEncoder if sizes.architecture == "bert" else RandomModel
    writer(path, sizes, kind, seed, plain=plain, template=template or CHAT_TEMPLATE, pooling=pooling).write()
    return path


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--type", choices=["f16", "q8_0"], default="f16", dest="kind")
    parser.add_argument("--context", type=int, help="trained context written into the file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="replies that are cut into the same tokens again")
    parser.add_argument("--pooling", choices=POOLINGS, default="", help="the model makes embeddings in this way")
    path = make(**vars(parser.parse_args()))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
