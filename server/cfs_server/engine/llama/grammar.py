"""Replies that follow a JSON schema: the library's grammars, made once for each schema, and asked little.

A grammar that is asked about a vocabulary of 152,000 tokens takes some 15 ms, so it is asked about one token, then
about those that could have been chosen in its place, and then about those whose first byte it allows.
"""

import json
from collections import OrderedDict
from functools import cached_property
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from cfs.errors import SchemaRefused
from cfs_server.engine.gbnf.schemas import grammar as write_grammar
from cfs_server.engine.llama.candidates import Candidates, Ids
from cfs_server.engine.llama.vocabulary import Vocabulary

KEPT = 64
"""Schemas whose grammars are kept: an agent asks with the same few again and again."""


class FirstBytes:
    """The tokens of a vocabulary by their first byte: a grammar that refuses the byte refuses all of them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self.ends = {token for token in range(vocabulary.size) if vocabulary.ends(token)}
        self.mute = np.array([token for token, piece in enumerate(pieces) if not piece and token not in self.ends])
        firsts = np.array([piece[0] if piece else -1 for piece in pieces])
        order = np.argsort(firsts, kind="stable").astype(np.int32)
        starts = np.searchsorted(firsts[order], np.arange(257))
        self._groups = [order[starts[byte] : starts[byte + 1]] for byte in range(256)]
        self._single = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1}
        self._probes = np.array(list(self._single.values()), dtype=np.int32)

    def possible(self, grammar: Any) -> Ids:
        """List all tokens that a grammar may allow now, among some that it does not."""
        buffer = Candidates(len(self._probes))
        buffer.take(self._probes)
        buffer.apply(grammar)
        buffer.drop_masked()
        refused = set(self._probes.tolist()) - set(buffer.ids.tolist())
        groups = [group for byte, group in enumerate(self._groups) if self._single.get(byte) not in refused]
        return np.concatenate([np.array(sorted(self.ends), dtype=np.int32), *groups])


class Grammar:
    """Where one reply stands in its grammar; `free` it with the reply."""

    def __init__(self, raw: Any, first_bytes: FirstBytes) -> None:
        self._raw = raw
        self._first_bytes = first_bytes
        self._one = Candidates(1)

    def allows(self, token: int) -> bool:
        """Whether a token may come next. The library takes special tokens for the text of their names; we do not."""
        if token in self._first_bytes.mute:
            return False
        self._one.take(token)
        self._one.apply(self._raw)
        return self._one.drop_masked() == 1

    def mask(self, buffer: Candidates) -> int:
        """Drop the candidates that may not come next; returns how many are left."""
        buffer.apply(self._raw)
        return buffer.drop_masked(self._first_bytes.mute)

    def possible(self) -> Ids:
        """List all tokens that may come next, among some that may not."""
        return self._first_bytes.possible(self._raw)

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
