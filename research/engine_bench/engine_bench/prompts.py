"""Prompts of a given number of tokens, of words that no other prompt has."""

import ctypes
import random
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.wire import Message, Settings
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.kvcache.radix_tree import PrefixTree
from cfs_server.engine.llama.ffi import NativeLog, Tokens
from cfs_server.engine.llama.tokenizer import Vocabulary


def user(content: str) -> Message:
    """Make a user's message."""
    return Message(role="user", content=content)


def system(content: str) -> Message:
    """Make a system message."""
    return Message(role="system", content=content)


def assistant(content: str) -> Message:
    """Make a reply."""
    return Message(role="assistant", content=content)


class Prompts:
    """Writes and counts prompts as the model's template and tokenizer have them."""

    def __init__(self, model: Path) -> None:
        NativeLog(lambda _level, _text: None)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.vocab_only = True
        self._raw = lib.llama_model_load_from_file(str(model).encode(), params)
        if not self._raw:
            raise SystemExit(f"{model}: cannot be loaded")
        self._vocabulary = Vocabulary(self._raw)
        template = lib.llama_model_chat_template(self._raw, None)
        text = template.decode() if template else None
        self._builder = PromptBuilder(text, special=self._vocabulary.special_text)

    @property
    def state_bytes(self) -> int:
        """Bytes of the attention state of one token, at half precision."""
        heads, width = self._number("attention.head_count"), self._number("embedding_length")
        return 2 * 2 * width // heads * self._number("attention.head_count_kv") * self._number("block_count")

    def _number(self, key: str) -> int:
        """Read a number from the file's metadata: of a model without its weights the library itself tells less."""
        return int(self._text(f"{self._text('general.architecture')}.{key}"))

    def _text(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(64)
        if lib.llama_model_meta_val_str(self._raw, key.encode(), buffer, len(buffer)) < 0:
            raise SystemExit(f"the model file does not say {key}")
        return buffer.value.decode()

    def tokens(self, history: Sequence[Message]) -> Tokens:
        """Cut a history into the tokens of its prompt."""
        pieces = self._builder.build(history, Settings(prompt_style="chat")).pieces
        return np.concatenate([self._vocabulary.tokenize(piece.text, special=piece.trusted) for piece in pieces])

    def text_tokens(self, text: str) -> Tokens:
        """Cut plain text into tokens."""
        return self._vocabulary.tokenize(text, special=False)

    def message(self, seed: str, tokens: int, before: Sequence[Message] = (), role: str = "user") -> Message:
        """Write a message so that the prompt that ends with it has `tokens` tokens more than the one before it."""
        known = len(self.tokens(before)) if before else 0

        def made(content: str) -> Message:
            return Message.model_validate({"role": role, "content": content})

        def size(content: str) -> int:
            return len(self.tokens([*before, made(content)])) - known

        words = random.Random(seed)
        content = _word(words)
        while size(content) < tokens - 40:
            content += "".join(" " + _word(words) for _ in range(1 + (tokens - size(content)) // 8))
        while size(content) > tokens:
            content = content.rpartition(" ")[0]
        content += "." * (tokens - size(content))  # a full stop never joins its neighbour in these vocabularies
        return made(content)


def words(seed: str, count: int) -> str:
    """Write words that no other seed gives, where it does not matter how many tokens they are."""
    source = random.Random(seed)
    return " ".join(_word(source) for _ in range(count))


def _word(words: random.Random) -> str:
    return "".join(words.choices(string.ascii_lowercase, k=words.randint(3, 8)))


class Ideal:
    """Counts each distinct token once: prompts and replies in a tree of their own."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._tree = PrefixTree()

    def add(self, history: Sequence[Message]) -> int:
        """Add a prompt; returns how many of its tokens are new."""
        tokens = self._prompts.tokens(history)
        known = self._tree.match("", tokens).length
        self._tree.insert("", tokens)
        return len(tokens) - known

    def answer(self, history: Sequence[Message], reply: str) -> None:
        """Add a reply, but for its last token: that was chosen, and nothing was computed from it."""
        said = self._prompts.text_tokens(reply)[:-1]
        self._tree.insert("", np.concatenate([self._prompts.tokens(history), said]))
