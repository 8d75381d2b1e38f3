"""The formats in which models write tool calls, each with its opening mark. Pure: no I/O.

A format reads a text that begins with its mark and may still grow. It answers as soon as later text cannot change the
answer, and not earlier. So the result does not depend on the boundaries of the pieces.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cfs.contract.tool_calls import LONGEST_CALL, parse_arguments
from cfs_server.engine.chat.json_calls import FoundCall, JsonEnd, calls_in, may_be_call, read_json
from cfs_server.engine.contract.schema_references import arguments_of, resolved

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ParsedCalls:
    """The calls at the beginning of a text, and the index after them. Without calls the part up to it is text."""

    calls: tuple[FoundCall, ...]
    end: int


class Parameters:
    """The names of the tools' parameters, in order, and the JSON type of each."""

    def __init__(self, tools: Iterable[Mapping[str, Any]] = ()) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, Mapping):
                self._known[str(function.get("name"))] = _properties_of(function)

    def known(self, calls: Sequence[FoundCall]) -> bool:
        """Whether all of some calls are of these tools."""
        return all(call.name in self._known for call in calls)

    def named(self, tool: str, values: Sequence[Any]) -> dict[str, Any]:
        """Assign positional values to the tool's parameters, in order."""
        if len(values) == 1 and isinstance(values[0], dict):
            parameters = self._known.get(tool)
            if parameters is None or values[0].keys() <= parameters.keys():
                return values[0]
        names = [*self._known.get(tool, ())]
        names += [f"argument{number}" for number in range(len(names), len(values))]
        return dict(zip(names, values, strict=False))

    def value(self, tool: str, parameter: str, text: str) -> Any:
        """Parse a value in bare text: a string where the type is string, else JSON if it is valid JSON."""
        schema = self._known.get(tool, {}).get(parameter)
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return text
        value = read_json(text)
        return text if value is None and text.strip() != "null" else value


def _properties_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas of a tool's parameters. References are followed only where there are some: it takes time."""
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    parts = [schema, *(properties.values() if isinstance(properties, Mapping) else ())]
    definitions: Mapping[str, Any] = {}
    if any(isinstance(part, Mapping) and "$ref" in part for part in parts):
        arguments = arguments_of(function)
        properties, definitions = arguments.schema.get("properties"), arguments.definitions
    if not isinstance(properties, Mapping):
        return {}
    return {name: resolved(part, definitions) for name, part in properties.items()}


@dataclass(slots=True)
class CallFormat:
    """A format of calls; one object parses one place of one reply."""

    parameters: Parameters
    _end: JsonEnd | None = None
    _calls: list[FoundCall] = field(default_factory=list)
    _at: int = 0

    MARK: ClassVar[str]
    """The beginning of the text."""

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Judge the text, which begins with the mark; None while more of it is needed, and never for the `last`."""
        raise NotImplementedError

    def _none(self) -> ParsedCalls:
        """The mark is only text; the text after it is parsed separately."""
        return ParsedCalls((), len(self.MARK))

    def _some(self, end: int) -> ParsedCalls:
        return ParsedCalls(tuple(self._calls), end) if self._calls else self._none()

    def _unmarked(self, text: str) -> None:
        """Read JSON that no mark calls a call: it is one only of tools that were given."""
        calls = calls_in(text, strict=True)
        if self.parameters.known(calls):
            self._calls += calls

    def _json(self, text: str, start: int) -> int | None:
        """Look for the end of the JSON that begins at a place."""
        if self._end is None:
            self._end = JsonEnd(start)
        end = self._end.find(text)
        if end is not None:
            self._end = None
        return end


@dataclass(slots=True)
class Tagged(CallFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write it.

    There may be several objects between the tags, or `<function=NAME><parameter=KEY>VALUE</parameter></function>`. The
    second tag may be missing.
    """

    MARK: ClassVar[str] = "<tool_call>"
    CLOSE: ClassVar[str] = "</tool_call>"

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Read the objects one after the other, then the closing tag."""
        behind = self._at or len(self.MARK)
        while True:
            start = _skip(text, behind)
            rest = text[start : start + len(self.CLOSE)]
            if self._calls and rest == self.CLOSE:
                return self._some(start + len(self.CLOSE))
            if not last and (_may_become(rest, self.CLOSE) or _may_become(rest, _FUNCTION)):
                return None
            if rest[0:1] in ("{", "["):
                end = self._json(text, start)
            elif rest.startswith(_FUNCTION):
                end = _end_of_function(text, start)
            else:
                return self._some(behind)
            if end is None:
                return self._some(behind) if last else None
            calls = self._function(text[start:end]) if rest[0] == "<" else calls_in(text[start:end], strict=False)
            if not calls:
                return self._some(behind)
            self._calls += calls
            self._at = behind = end

    def _function(self, text: str) -> list[FoundCall]:
        head = re.match(r"<function=([^<>\s]{1,128})>", text)
        if head is None:
            return []
        values = {
            key: self.parameters.value(head[1], key, value.removeprefix("\n").removesuffix("\n"))
            for key, value in re.findall(r"<parameter=([^<>\s]{1,128})>(.*?)</parameter>", text, re.DOTALL)
        }
        return [FoundCall(head[1], values)]


_FUNCTION = "<function="


def _may_become(text: str, tag: str) -> bool:
    return text != tag and tag.startswith(text)


def _end_of_function(text: str, start: int) -> int | None:
    close = "</function>"
    end = text.find(close, start)
    return None if end < 0 else end + len(close)


@dataclass(slots=True)
class Listed(CallFormat):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, or `[TOOL_CALLS]NAME[ARGS]{...}`, as Mistral's models do."""

    MARK: ClassVar[str] = "[TOOL_CALLS]"
    _HEAD: ClassVar[re.Pattern[str]] = re.compile(
        r"([A-Za-z_][\w.-]{0,127})(?:\[CALL_ID\][^\[\]{]{0,64})?(?:\[ARGS\])?\s*(?=\{)"
    )
    _PART: ClassVar[re.Pattern[str]] = re.compile(r"([A-Za-z_][\w.-]{0,127})?(?:\[[A-Z_]*\]?[^\[\]{]{0,64}){0,2}\s*")

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Read a list, or a name and an object."""
        start = _skip(text, len(self.MARK))
        head = self._HEAD.match(text, start)
        if head is None and text[start : start + 1] not in ("{", "["):
            return None if not last and self._PART.fullmatch(text, start) else self._none()
        begin = head.end() if head else start
        end = self._json(text, begin)
        if end is None:
            return self._none() if last else None
        if head is None:
            self._calls += calls_in(text[begin:end], strict=False)
        elif isinstance(arguments := read_json(text[begin:end]), dict):
            self._calls.append(FoundCall(head[1], arguments))
        return self._some(end)


@dataclass(slots=True)
class Bracketed(CallFormat):
    """`[CALL:NAME(1, key='text')]`: literals, as transcripts show calls (C8)."""

    MARK: ClassVar[str] = "[CALL:"
    _HEAD: ClassVar[re.Pattern[str]] = re.compile(r"\[CALL:([A-Za-z_][A-Za-z0-9_.-]{0,127})\(")
    _PART: ClassVar[re.Pattern[str]] = re.compile(r"\[CALL:([A-Za-z_][A-Za-z0-9_.-]{0,127})?")
    _ENDS: ClassVar[int] = 32
    _tried: int = 0

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Try each `)]` as the end, until the arguments before one are some."""
        head = self._HEAD.match(text)
        if head is None:
            return None if not last and self._PART.fullmatch(text) else self._none()
        self._at = self._at or head.end() - 1
        while self._tried < self._ENDS:
            end = text.find(")]", self._at + 1, head.end() + LONGEST_CALL)
            if end < 0:
                self._at = max(self._at, min(len(text), head.end() + LONGEST_CALL) - 2)
                more = len(text) < head.end() + LONGEST_CALL
                return None if more and not last else self._none()
            self._tried, self._at = self._tried + 1, end
            if (arguments := self._arguments(head[1], text[head.end() : end])) is not None:
                return ParsedCalls((FoundCall(head[1], arguments),), end + len(")]"))
        return self._none()

    def _arguments(self, tool: str, text: str) -> dict[str, Any] | None:
        try:
            parsed = parse_arguments(text)
            if parsed is None:
                return None
            values, keywords = parsed
            arguments = self.parameters.named(tool, values)
            if arguments.keys() & keywords.keys():
                return None
            as_json = json.dumps(arguments | keywords, ensure_ascii=False, allow_nan=False)
            as_json.encode()
        except (ValueError, TypeError, RecursionError):  # no literals, or such as JSON does not have
            return None
        read: dict[str, Any] = json.loads(as_json)
        return read


@dataclass(slots=True)
class Python(CallFormat):
    """`<|python_tag|>{"name": ..., "parameters": {...}}`, as Llama 3 writes it, several with `;` in between."""

    MARK: ClassVar[str] = "<|python_tag|>"

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Read objects for as long as a semicolon follows."""
        behind = self._at or len(self.MARK)
        while True:
            start = _skip(text, behind)
            if self._calls and text[start : start + 1] == ";":
                start = _skip(text, start + 1)
            if start == len(text) and not last:
                return None
            if text[start : start + 1] != "{":
                return self._some(behind)
            end = self._json(text, start)
            if end is None:
                return self._some(behind) if last else None
            calls = calls_in(text[start:end], strict=False)
            if not calls:
                return self._some(behind)
            self._calls += calls
            self._at = behind = end


@dataclass(slots=True)
class Plain(CallFormat):
    """A JSON object with a name and arguments, or a list of such, with which a reply begins."""

    MARK: ClassVar[str] = "{"  # or "["

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Parse it, unless its first key shows that it is not a call."""
        if not may_be_call(text):
            return self._none()
        end = self._json(text, 0)
        if end is None:
            return self._none() if last else None
        self._unmarked(text[:end])
        return self._some(end)


@dataclass(slots=True)
class FencedBlock(CallFormat):
    """The same in a fence of three backticks, which begins a line."""

    MARK: ClassVar[str] = "```"
    _HEAD: ClassVar[re.Pattern[str]] = re.compile(r"```(?:json|tool_calls?)?\s*(?=[{\[])")
    _INFO: ClassVar[tuple[str, ...]] = ("json", "tool_calls")

    def read(self, text: str, *, last: bool) -> ParsedCalls | None:
        """Read the JSON, then the fence that closes it."""
        head = self._HEAD.match(text)
        if head is None:
            return None if not last and self._may_be_head(text) else self._none()
        if self._at == 0:
            if not may_be_call(text[head.end() :]):
                return self._none()
            end = self._json(text, head.end())
            if end is None:
                return self._none() if last else None
            self._unmarked(text[head.end() : end])
            self._at = end
        start = _skip(text, self._at)
        rest = text[start : start + len(self.MARK)]
        if self._calls and not last and _may_become(rest, self.MARK):
            return None
        return self._some(start + len(self.MARK) if rest == self.MARK else self._at)

    def _may_be_head(self, text: str) -> bool:
        info = text[len(self.MARK) :]
        word = info.rstrip()
        if word != info:
            return word in ("", "json", "tool_call", "tool_calls")
        return any(key.startswith(word) for key in self._INFO)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


ANYWHERE: tuple[type[CallFormat], ...] = (Tagged, Listed, Bracketed, Python)
"""Forms whose mark begins a call at any position."""
