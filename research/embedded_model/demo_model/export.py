"""The trained network as a GGUF file for llama.cpp."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from demo_model.chat_format import CHAT_TEMPLATE, END_OF_TEXT, IM_END
from demo_model.tokenizer import CONTROL, MARKS, Vocabulary

Weights = Mapping[str, npt.NDArray[np.float32]]
LAYER_NAMES = {
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "attn_norm": "attn_norm",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "ffn_norm": "ffn_norm",
}  # fmt: skip


def _token_type(token: str) -> gguf.TokenType:
    if token in CONTROL:
        return gguf.TokenType.CONTROL
    return gguf.TokenType.USER_DEFINED if token in MARKS else gguf.TokenType.NORMAL


def _tensor_name(name: str) -> str:
    if name == "embedding":
        return "token_embd.weight"
    if name == "norm":
        return "output_norm.weight"
    _, index, part = name.split(".")
    return f"blk.{index}.{LAYER_NAMES[part]}.weight"


def _describe(writer: gguf.GGUFWriter, vocabulary: Vocabulary, shape: Mapping[str, int | float]) -> None:
    writer.add_name("cfs-demo")
    writer.add_description("Demonstration and test model of CFS: not an assistant.")
    writer.add_license("apache-2.0")
    writer.add_languages(["en", "zh"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(int(shape["context"]))
    writer.add_embedding_length(int(shape["width"]))
    writer.add_block_count(int(shape["layers"]))
    writer.add_feed_forward_length(int(shape["hidden"]))
    writer.add_head_count(int(shape["heads"]))
    writer.add_head_count_kv(int(shape["heads"]))
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(float(shape["rope_base"]))
    writer.add_rope_dimension_count(int(shape["width"]) // int(shape["heads"]))
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([_token_type(token) for token in vocabulary.tokens])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(vocabulary.tokens.index(END_OF_TEXT))
    writer.add_eot_token_id(vocabulary.tokens.index(IM_END))
    writer.add_pad_token_id(vocabulary.tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def export(path: Path, vocabulary: Vocabulary, shape: Mapping[str, int | float], weights: Weights) -> None:
    """Write the model; a reader of `path` sees the old file or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    _describe(writer, vocabulary, shape)
    for name, weight in weights.items():
        # Norms stay in full precision, as llama.cpp's own converter keeps them.
        writer.add_tensor(_tensor_name(name), weight.astype(np.float32 if weight.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)
