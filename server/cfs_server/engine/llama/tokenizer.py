"""Converts text to tokens and tokens to bytes, by the model's own vocabulary. It is thread-safe."""

import ctypes
import re
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs_server.engine.chat.reply_parser import MARKS
from cfs_server.engine.llama.ffi import Tokens

_CONTROL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_STRIPS = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP


class Vocabulary:
    """The tokenizer of a loaded model."""

    def __init__(self, model: Any) -> None:
        self.raw = lib.llama_model_get_vocab(model)
        self.size = int(lib.llama_vocab_n_tokens(self.raw))
        self.begin = int(lib.llama_vocab_bos(self.raw)) if lib.llama_vocab_get_add_bos(self.raw) else None
        self._pieces: dict[int, bytes] = {}
        self._ends = frozenset(token for token in range(self.size) if lib.llama_vocab_is_eog(self.raw, token))
        controls = self._controls()
        self._shown = {token for token in controls if self.text_of(token) in MARKS}
        self.special_text = self._pattern(controls)
        self.cuts = self._pattern(self._controls(without=_STRIPS))
        self.longest = max(len(lib.llama_vocab_get_text(self.raw, token).decode()) for token in range(self.size))
        """Characters of the longest token, or its bytes where a vocabulary writes each byte as a character."""

    def text_of(self, token: int) -> str:
        """Return how a token, special ones too, is written in a template; empty for "none"."""
        return self._piece(token, special=True).decode(errors="replace") if token >= 0 else ""

    @property
    def begin_text(self) -> str:
        """The `bos_token` of templates."""
        return self.text_of(int(lib.llama_vocab_bos(self.raw)))

    @property
    def end_text(self) -> str:
        """The `eos_token` of templates."""
        return self.text_of(int(lib.llama_vocab_eos(self.raw)))

    @property
    def ends_of_turns(self) -> frozenset[int]:
        """The tokens that mean that the turn is over."""
        return self._ends

    def ends(self, token: int) -> bool:
        """Whether a token means that the turn is over."""
        return token in self._ends

    def piece(self, token: int) -> bytes:
        """The bytes of a generated token; of special tokens only those that mark parts of a reply have any."""
        cached = self._pieces.get(token)
        if cached is None:
            cached = self._pieces[token] = self._piece(token, special=token in self._shown)
        return cached

    def spell(self, token: int) -> bytes:
        """Return the bytes of an untrusted token id; raises `IndexError` if it is invalid."""
        if not 0 <= token < self.size:
            raise IndexError(f"there is no token {token}")
        return self.piece(token)

    def tokenize(self, text: str, *, special: bool, framed: bool = False) -> Tokens:
        """Cut text into tokens; `special` reads the names of special tokens as those tokens.

        `framed` adds the tokens that the model expects at the beginning and the end of a text.
        """
        data = text.encode()
        room = len(data) + 8
        while True:
            tokens = np.empty(room, dtype=np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = int(lib.llama_tokenize(self.raw, data, len(data), pointer, room, framed, special))
            if count >= 0:
                return tokens[:count]
            room = -count

    def _piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = int(lib.llama_token_to_piece(self.raw, token, buffer, len(buffer), 0, special))
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = int(lib.llama_token_to_piece(self.raw, token, buffer, len(buffer), 0, special))
        return buffer.raw[:size]

    def _controls(self, without: int = 0) -> list[int]:
        attributes = ((token, lib.llama_vocab_get_attr(self.raw, token)) for token in range(self.size))
        return [token for token, attribute in attributes if attribute & _CONTROL and not attribute & without]

    def _pattern(self, tokens: list[int]) -> re.Pattern[str] | None:
        names = sorted({self.text_of(token) for token in tokens} - {""}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None
