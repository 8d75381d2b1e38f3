"""Grammars that replies follow, made once for each schema or set of tools, and asked little.

Replies under a JSON schema follow llama.cpp's grammars. One that is asked about a vocabulary of 152,000 tokens takes
some 15 ms, so it is asked about one token, then about those that could have been chosen in its place, and then about
those whose first bytes it allows. Replies that may call tools follow llguidance's, which answer in microseconds.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from llama_cpp import llama_cpp as lib
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from cfs.errors import SchemaRefused
from cfs_server.engine.chat.call_grammar import argument_schemas, call_grammar
from cfs_server.engine.gbnf.schemas import grammar as write_grammar
from cfs_server.engine.llama.candidates import Candidates, Ids
from cfs_server.engine.llama.first_bytes import FirstBytes
from cfs_server.engine.llama.vocabulary import Vocabulary

KEPT = 64
"""Schemas whose grammars are kept: an agent asks with the same few again and again."""
KEPT_CALLS = 16
"""Sets of tools whose grammars are kept; these are larger."""
MOST_REPORTED = 1_000
"""Lines about what grammars cannot keep; whoever has written so many schemas knows."""


class Constraint(Protocol):
    """Where one reply stands in its grammar; `free` it with the reply."""

    costly: ClassVar[bool]
    """Whether asking it takes long enough to be done in a thread."""

    def allows(self, token: int) -> bool:
        """Whether a token may come next."""
        ...

    def mask(self, buffer: Candidates) -> int:
        """Drop the candidates that may not come next; returns how many are left."""
        ...

    def possible(self, buffer: Candidates) -> Ids:
        """List all tokens that may come next, among some that may not."""
        ...

    def accept(self, token: int) -> None:
        """Go on behind a token that is allowed."""
        ...

    def free(self) -> None:
        """Release what it holds."""
        ...


class Grammar:
    """Where one reply stands in the grammar of a JSON schema."""

    costly: ClassVar[bool] = True

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


class CallGrammar:
    """Where one reply stands that may call tools: free text, or a call that has begun.

    Tokens without text pass between calls, as some models mark the parts of a reply by them. When the library gives up,
    which it does at limits of its own, the rest of the reply is free.
    """

    costly: ClassVar[bool] = False

    def __init__(self, matcher: LLMatcher, mute: NDArray[np.bool_], report: Callable[[str], None]) -> None:
        self._matcher: LLMatcher | None = matcher
        self._mute = mute
        self._report = report
        self._refused: NDArray[np.bool_] | None = None

    def allows(self, token: int) -> bool:
        """Whether a token may come next."""
        if self._matcher is None:
            return True
        if self._mute[token]:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1 or self._gives_up(self._matcher)

    def mask(self, buffer: Candidates) -> int:
        """Drop the candidates that may not come next; returns how many are left."""
        return buffer.drop(self._not_allowed())

    def possible(self, buffer: Candidates) -> Ids:  # noqa: ARG002 - it is known without asking
        """List all tokens that may come next."""
        return np.flatnonzero(~self._not_allowed()).astype(np.int32)

    def accept(self, token: int) -> None:
        """Go on behind a token that is allowed."""
        self._refused = None
        if self._matcher is not None and not self._mute[token] and not self._matcher.consume_token(token):
            self._gives_up(self._matcher)

    def free(self) -> None:
        """Release the matcher."""
        self._matcher = self._refused = None

    def _not_allowed(self) -> NDArray[np.bool_]:
        if self._refused is None:
            size = len(self._mute)
            self._refused = np.zeros(size, dtype=bool)
            if self._matcher is not None:
                bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
                refused = np.unpackbits(bits, count=size, bitorder="little") == 0
                if not self._gives_up(self._matcher) and not refused.all():
                    self._refused = refused
        return self._refused

    def _gives_up(self, matcher: LLMatcher) -> bool:
        """Whether the library can say no more of this reply; it is let go then."""
        if not matcher.is_error():
            return False
        self._report(f"calls of a reply are not constrained any further: {_line(matcher.get_error())}")
        self._matcher = None
        return True


class Grammars:
    """Makes grammars for one vocabulary, and keeps those that were used last. For one thread.

    `report` takes a line of text for each thing that a grammar cannot keep, once.
    """

    def __init__(self, vocabulary: Vocabulary, report: Callable[[str], None] = lambda _line: None) -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._kept_calls: OrderedDict[str, LLMatcher] = OrderedDict()
        self._report = report
        self._reported: set[str] = set()

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

    def of_calls(self, tools: Sequence[dict[str, Any]], *, thinks: bool = False) -> CallGrammar | None:
        """Make a grammar for a reply that may call these tools; none without tools, or where none can be made."""
        if not tools:
            return None
        key = json.dumps([tools, thinks])
        if key not in self._kept_calls:
            self._kept_calls[key] = self._compile_calls(tools, thinks=thinks)
        self._kept_calls.move_to_end(key)
        if len(self._kept_calls) > KEPT_CALLS:
            self._kept_calls.popitem(last=False)
        matcher = self._kept_calls[key]
        return (
            None if matcher.is_error() else CallGrammar(matcher.deep_copy(), self._first_bytes.mute, self._report_once)
        )

    def _compile_calls(self, tools: Sequence[dict[str, Any]], *, thinks: bool) -> LLMatcher:
        schemas = {name: self._usable(name, schema) for name, schema in argument_schemas(tools).items()}
        matcher = LLMatcher(self._tokenizer, call_grammar(schemas, thinks=thinks), log_level=0)
        if matcher.is_error():
            self._report_once(f"calls of {', '.join(schemas)} are not constrained: {_line(matcher.get_error())}")
        return matcher

    def _usable(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a tool's arguments, or that of any object where the library does not take it."""
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": True})
        refused, problems = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        if problems:
            kept = "any JSON object is taken" if refused else "the rest is kept"
            self._report_once(f"the arguments of the tool {name!r}: {kept}: {_line('; '.join(problems))}")
        return {"type": "object"} if refused else schema

    def _report_once(self, line: str) -> None:
        if line not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(line)
            self._report(line)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as llguidance knows it: 0.6 s for 152,000 tokens."""
        ends = self._first_bytes.ends.tolist()
        return LLTokenizer(TokenizerWrapper(_Spelled(self._vocabulary, ends)), eos_token=ends)

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


class _Spelled:
    """The tokens of a vocabulary as the bytes that they stand for: marks that are special tokens are text, too."""

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self.tokens = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self.special_token_ids = ends
        self.bos_token_id = None
        self.eos_token_id = ends[0] if ends else None
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        """Cut text into tokens, as the library wants to try."""
        return [int(token) for token in self._vocabulary.tokenize(text.decode(errors="replace"), special=False)]


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
