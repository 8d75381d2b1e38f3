"""Replies that follow a JSON schema: the library's grammars, made once for each schema, and asked little.

A grammar that is asked about a vocabulary of 152,000 tokens takes some 15 ms, so it is asked about one token, then
about those that could have been chosen in its place, and then about those whose first bytes it allows.
"""

import json
from collections import OrderedDict
from functools import cached_property
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from cfs.errors import SchemaRefused
from cfs_server.engine.gbnf.schemas import grammar as write_grammar
from cfs_server.engine.llama.candidates import Candidates, Ids
from cfs_server.engine.llama.first_bytes import FirstBytes
from cfs_server.engine.llama.vocabulary import Vocabulary

KEPT = 64
"""Schemas whose grammars are kept: an agent asks with the same few again and again."""


class Grammar:
    """Where one reply stands in its grammar; `free` it with the reply."""

    def __init__(self, raw: Any, first_bytes: FirstBytes) -> None:
        self.asked = 0
        """Tokens that the library was asked about so far."""
        self._raw = raw
        self._first_bytes = first_bytes
        self._one = Candidates(1)

    def allows(self, token: int) -> bool:
        """Whether a token may come next. The library takes special tokens for the text of their names; we do not."""
        if self._first_bytes.mute[token]:
            return False
        self._one.take(token)
        return self.mask(self._one) == 1

    def mask(self, buffer: Candidates) -> int:
        """Drop the candidates that may not come next; returns how many are left."""
        buffer.drop(self._first_bytes.mute)
        self.asked += buffer.size
        buffer.apply(self._raw)
        return buffer.drop_masked()

    def possible(self, buffer: Candidates) -> Ids:
        """List all tokens that may come next, among some that may not."""

        def ask(tokens: Ids) -> NDArray[np.bool_]:
            self.asked += len(tokens)
            buffer.take(tokens)
            buffer.apply(self._raw)
            return buffer.unmasked

        return self._first_bytes.possible(ask)

    def accept(self, token: int) -> None:
        """Go on behind a token that is allowed (the library ends the process on any other)."""
        lib.llama_sampler_accept(self._raw, token)

    def free(self) -> None:
        """Release the native grammar."""
        lib.llama_sampler_free(self._raw)


class Grammars:
    """Makes grammars for one vocabulary, and keeps those of the schemas that were used last. For one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[str, Any] = OrderedDict()

    def __len__(self) -> int:
        """Count the grammars that are kept."""
        return len(self._kept)

    def get(self, schema: dict[str, Any] | None) -> Grammar | None:
        """Make a grammar that stands at its beginning; raises `SchemaRefused` for what cannot be one."""
        if schema is None:
            return None
        text = json.dumps(schema)
        if text not in self._kept:
            self._kept[text] = self._compile(schema)
        self._kept.move_to_end(text)
        if len(self._kept) > KEPT:
            lib.llama_sampler_free(self._kept.popitem(last=False)[1])
        return Grammar(lib.llama_sampler_clone(self._kept[text]), self._first_bytes)

    @cached_property
    def _first_bytes(self) -> FirstBytes:
        return FirstBytes(self._vocabulary)

    def _compile(self, schema: dict[str, Any]) -> Any:
        try:
            text = write_grammar(schema).text.encode()
        except ValueError as error:
            raise SchemaRefused(f"the JSON schema cannot be made a grammar: {error}") from error
        raw = lib.llama_sampler_init_grammar(self._vocabulary.raw, text, b"root")
        if not raw:
            raise SchemaRefused("the JSON schema cannot be made a grammar: the library refuses the result")
        return raw
