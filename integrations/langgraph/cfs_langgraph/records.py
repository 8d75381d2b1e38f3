"""The files that hold checkpoints: JSON that a person can read, and that gives back every value. Pure: no I/O.

A record is a few sections of named values. What JSON keeps as it is stands in its section. Everything else (messages,
dates, sets) goes through the serializer of LangGraph into `encoded`; its section shows a line of text for it. With a
serializer of the program's own, which may encrypt, sections show nothing and all values are encoded.
"""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from cfs.errors import InvalidRequest

_FORMAT = 1
_ENCODED = "encoded"
_SHOWN_CHARACTERS = 2000

Sections = Mapping[str, Mapping[str, Any]]


def write(serde: SerializerProtocol, sections: Sections) -> bytes:
    """Write a record."""
    readable = type(serde) is JsonPlusSerializer
    rendered: dict[str, dict[str, Any]] = {name: {} for name in sections}
    encoded: dict[str, dict[str, list[str]]] = {}
    for name, values in sections.items():
        for key, value in values.items():
            if readable and is_json(value):
                rendered[name][key] = value
                continue
            if readable:
                rendered[name][key] = _shown(value)
            kind, data = serde.dumps_typed(value)
            encoded.setdefault(name, {})[key] = [kind, b64encode(data).decode()]
    record = {"format": _FORMAT, **rendered, _ENCODED: encoded}
    return f"{json.dumps(record, ensure_ascii=False, indent=1)}\n".encode()


def read(serde: SerializerProtocol, data: bytes, path: str) -> dict[str, dict[str, Any]]:
    """Read a record; raises `InvalidRequest` for another file."""
    try:
        record = json.loads(data)
        if record.pop("format") != _FORMAT:
            raise ValueError("its format is another one")
        sections: dict[str, dict[str, Any]] = record
        for name, values in sections.pop(_ENCODED).items():
            for key, (kind, text) in values.items():
                sections[name][key] = serde.loads_typed((kind, b64decode(text)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{path} cannot be read as a record of LangGraph: {error}") from error
    return sections


def is_json(value: object) -> bool:
    """Return whether JSON gives back this value, with the same types."""
    if value is None or type(value) in (bool, int):
        return True
    if type(value) is str:
        return _is_unicode(value)
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(map(is_json, value))
    if type(value) is dict:
        return all(type(key) is str and _is_unicode(key) and is_json(item) for key, item in value.items())
    return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _shown(value: object) -> str | list[str]:
    if isinstance(value, list) and value and all(isinstance(item, BaseMessage) for item in value):
        return [_line(f"{message.type}: {message.text}") for message in value]
    return _line(repr(value))


def _line(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return cut.encode(errors="replace").decode()
