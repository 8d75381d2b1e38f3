"""Constraints of replies, by llguidance: JSON of a schema, or text with well-formed tool calls.

A grammar is compiled once for each schema or set of tools; each reply gets a copy of the matcher. The sampler checks
the chosen token with it. Only after a refusal does it request a mask over the vocabulary.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from cachetools import LRUCache
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from cfs.errors import EngineError, SchemaRefused
from cfs_server.engine.chat.call_grammar import argument_schemas, call_grammar
from cfs_server.engine.chat.json_schema import prepare
from cfs_server.engine.llama.tokenizer import Vocabulary

KEPT = 64
"""The number of cached grammars: an agent uses the same few repeatedly."""
MOST_REPORTED = 1_000
"""The most log lines about parts that are not enforced."""
_LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000, step_lexer_fuel=100_000, step_max_items=20_000, max_lexer_states=50_000
)
"""The limits of a schema: under 100 ms to start, some 10 ms for each token, and 100 MB."""
_COLON, _COMMA = ": ?", ", ?"
"""Patterns. JSON has white space only behind its colons and commas, one space at most.

A weak model may write nothing but white space where it is free to, and it copies worse behind a space where it has seen
none in training.
"""

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
Mask = NDArray[np.bool_]


class Constraint:
    """The position of one reply in its grammar.

    `ends` marks the tokens that end a reply, `mute` the other tokens without text. With `between`, tokens without text
    are allowed at each possible end of the reply: some models separate the parts of a reply by them. `give_up` is
    called with the reason when llguidance reaches an internal limit. The rest of the reply is then unconstrained.
    Without `give_up` the reply fails.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        ends: Mask,
        mute: Mask,
        *,
        between: bool = False,
        give_up: Callable[[str], None] | None = None,
    ) -> None:
        self._matcher: LLMatcher | None = matcher
        self._ends = ends
        self._mute = mute
        self._between = between
        self._give_up = give_up
        self._mask: Mask | None = None
        self._forced: list[int] | None = None

    def allows(self, token: int) -> bool:
        """Whether a token may be next; raises `EngineError` if this cannot be determined."""
        if self._matcher is None:
            return True
        if self._ends[token] or (self._between and self._mute[token]):
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1 or self._failed(self._matcher)

    def mask(self) -> Mask:
        """Mark the tokens that may be next; raises `EngineError` if this cannot be determined."""
        if self._mask is None:
            size = len(self._mute)
            self._mask = np.ones(size, dtype=bool)
            if self._matcher is not None:
                bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
                allowed = np.unpackbits(bits, count=size, bitorder="little").astype(bool)
                if not self._failed(self._matcher) and (allowed.any() or self._give_up is None):
                    self._mask = allowed
        return self._mask

    def forced(self) -> Sequence[int]:
        """Return the tokens of the text that must come next, as a tokenizer cuts it; none where there is a choice.

        A model may cut the same text otherwise, so these tokens are likely but not certain.
        """
        if self._forced is None:
            self._forced = [] if self._matcher is None else self._matcher.compute_ff_tokens()
        return self._forced

    def accept(self, token: int) -> None:
        """Advance after an allowed token."""
        self._mask = None
        rest = self._forced[1:] if self._forced and self._forced[0] == token else []
        self._forced = rest or None  # the rest of the text stays forced; behind it there may be more
        if self._matcher is not None and not self._mute[token] and not self._matcher.consume_token(token):
            self._failed(self._matcher)

    def free(self) -> None:
        """Release the matcher."""
        self._matcher = self._mask = self._forced = None

    def _failed(self, matcher: LLMatcher) -> bool:
        """Whether llguidance has failed for this reply; the reply is then unconstrained."""
        if not matcher.is_error():
            return False
        reason = _line(matcher.get_error())
        if self._give_up is None:
            raise EngineError(f"the reply cannot be kept to its JSON schema any further: {reason}")
        self._give_up(f"calls of a reply are not constrained any further: {reason}")
        self._matcher = None
        return True


class Grammars:
    """Compiles grammars for one vocabulary, and keeps those that were used last. For one thread.

    `report` takes a line of text for each thing that is not enforced, once.
    """

    def __init__(self, vocabulary: Vocabulary, report: Callable[[str], None] = lambda _line: None) -> None:
        self._vocabulary = vocabulary
        self._kept: LRUCache[str, LLMatcher] = LRUCache(KEPT)
        self._report = report
        self._reported: set[str] = set()

    def __len__(self) -> int:
        """Count the cached grammars."""
        return len(self._kept)

    def of_reply(
        self, schema: dict[str, Any] | None, tools: Sequence[dict[str, Any]], *, thinks: bool = False
    ) -> Constraint | None:
        """Make a constraint for a reply: a schema describes all of it, calls included (`constrained_output`)."""
        return self.of_schema(schema) or self.of_calls(tools, thinks=thinks)

    def of_schema(self, schema: dict[str, Any] | None) -> Constraint | None:
        """Make a constraint for a reply that is JSON of a schema; raises `SchemaRefused` for an unsupported schema."""
        if schema is None:
            return None
        return Constraint(self._matcher(json.dumps(schema), lambda: self._compile(schema)), self._ends, self._mute)

    def of_calls(self, tools: Sequence[dict[str, Any]], *, thinks: bool = False) -> Constraint | None:
        """Make a constraint for a reply that may call these tools; none without tools, or where none can be made."""
        if not tools:
            return None
        matcher = self._matcher(json.dumps([tools, thinks]), lambda: self._compile_calls(tools, thinks=thinks))
        if matcher.is_error():
            return None
        return Constraint(matcher, self._ends, self._mute, between=True, give_up=self._report_once)

    def _matcher(self, key: str, compile_it: Callable[[], LLMatcher]) -> LLMatcher:
        """Return a matcher at its beginning."""
        if key not in self._kept:
            self._kept[key] = compile_it()
        return self._kept[key].deep_copy()

    def _compile(self, schema: dict[str, Any]) -> LLMatcher:
        """Compile a schema. Calls of a tool whose arguments cannot be enforced leave the other tools constrained."""
        try:
            return self._compiled(schema)
        except SchemaRefused as refused:
            if not isinstance(schema, dict):
                raise
            calls = schema["anyOf"] if isinstance(schema.get("anyOf"), list) else [schema]
            for may_keep in (True, False):
                loose = [self._loosened(call, schema.get("$defs", {}), may_keep=may_keep) for call in calls]
                if loose != calls:
                    self._report_once(f"the arguments of forced calls: some may be any object: {refused.detail}")
                    return self._compiled(schema | ({"anyOf": loose} if "anyOf" in schema else loose[0]))
            raise

    def _loosened(self, call: Any, definitions: dict[str, Any], *, may_keep: bool) -> Any:
        """Return the schema of a call with any object as its arguments, unless these can and may be kept."""
        match call:
            case {"properties": {"arguments": {"x-best-effort": True} as arguments, **others}}:
                if may_keep:
                    with contextlib.suppress(SchemaRefused):
                        self._compiled(arguments | {"$defs": definitions})
                        return call
                return call | {"properties": others | {"arguments": _ANY_OBJECT}}
        return call

    def _compiled(self, schema: dict[str, Any]) -> LLMatcher:
        try:
            prepared = prepare(schema)
            grammar = LLMatcher.grammar_from_json_schema(
                json.dumps(prepared.schema),
                overrides={"whitespace_flexible": False, "key_separator": _COLON, "item_separator": _COMMA},
            )
        except ValueError as error:
            raise SchemaRefused(f"replies cannot be kept to the JSON schema: {_line(str(error))}") from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
        if problems or not Constraint(matcher.deep_copy(), self._ends, self._mute).mask().any():
            reason = _line("; ".join(problems)) or "no reply fits it"
            raise SchemaRefused(f"replies cannot be kept to the JSON schema: {reason}")
        for line in prepared.left_out:
            self._report_once(f"the arguments of a forced call: {_line(line)}")
        return matcher

    def _compile_calls(self, tools: Sequence[dict[str, Any]], *, thinks: bool) -> LLMatcher:
        schemas = {name: self._usable(name, schema) for name, schema in argument_schemas(tools).items()}
        matcher = self._matcher_of_calls(schemas, thinks=thinks)
        for may_keep in (True, False):
            if not matcher.is_error():
                break
            loose = {
                name: schema
                if may_keep and not self._matcher_of_calls({name: schema}, thinks=thinks).is_error()
                else _ANY_OBJECT
                for name, schema in schemas.items()
            }
            names = ", ".join(name for name, schema in loose.items() if schema is _ANY_OBJECT)
            if names:
                self._report_once(f"the arguments of {names} may be any object: {_line(matcher.get_error())}")
                matcher = self._matcher_of_calls(loose, thinks=thinks)
        if matcher.is_error():
            self._report_once(f"calls of {', '.join(schemas)} are not constrained: {_line(matcher.get_error())}")
        return matcher

    def _matcher_of_calls(self, schemas: Mapping[str, dict[str, Any]], *, thinks: bool) -> LLMatcher:
        return LLMatcher(self._tokenizer, call_grammar(schemas, thinks=thinks), log_level=0)

    def _usable(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a tool's arguments, or that of any object where the library does not take it."""
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": True})
        refused, problems = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        if problems:
            effect = "any JSON object is taken" if refused else "the rest is kept"
            self._report_once(f"the arguments of the tool {name!r}: {effect}: {_line('; '.join(problems))}")
        return _ANY_OBJECT if refused else schema

    def _report_once(self, line: str) -> None:
        if line not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(line)
            self._report(line)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [self._vocabulary.piece(token) for token in range(self._vocabulary.size)]

    @cached_property
    def _ends(self) -> Mask:
        return np.array([self._vocabulary.ends(token) for token in range(self._vocabulary.size)])

    @cached_property
    def _mute(self) -> Mask:
        return np.array([not piece for piece in self._pieces]) & ~self._ends

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary in llguidance's form: 0.6 s for 152,000 tokens."""
        ends = np.flatnonzero(self._ends).tolist()
        return LLTokenizer(TokenizerWrapper(_Spelled(self._vocabulary, self._pieces, ends)), eos_token=ends)


class _Spelled:
    """The tokens of a vocabulary as the bytes that they stand for: marks that are special tokens are text, too."""

    def __init__(self, vocabulary: Vocabulary, pieces: list[bytes], ends: Sequence[int]) -> None:
        self.tokens = pieces
        self.special_token_ids = ends
        self.bos_token_id = None
        self.eos_token_id = ends[0] if ends else None
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize text, because the library tests this function."""
        return [int(token) for token in self._vocabulary.tokenize(text.decode(errors="replace"), special=False)]


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
