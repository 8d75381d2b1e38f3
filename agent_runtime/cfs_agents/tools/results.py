"""Results of tools as texts for a model. No I/O."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_json


class CutText(str):
    """A text that a tool returns without a part of it; the text says so, and how to go on."""

    __slots__ = ()


class ToolOutput(dict[str, Any]):
    """Values that a tool returns to a Python caller; a model reads `text` instead, which may be a `CutText`."""

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text


_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|[ -/]*[0-~])"  # ECMA-48, 5.4 and 8.3
    r"|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]",
    re.DOTALL,
)
"""Escape sequences and control characters."""


def text_of(value: Any) -> str:
    """Return a tool's return value as text for the model.

    Escape sequences and control characters are left out, except for tabs and ends of lines and pages.
    A `ToolOutput` has its own text, and None becomes "done". Other values become JSON.
    """
    if isinstance(value, ToolOutput):
        return text_of(value.text)
    if isinstance(value, str):
        return _CONTROL.sub("", value).encode("utf-8", "replace").decode()  # UTF-8 cannot encode a lone surrogate
    if value is None:
        return "done"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value):,} bytes of binary data, which is not shown]"
    try:
        return to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError):  # it contains itself, or invalid text
        return text_of(str(value))


def shortened(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than `limit` characters, and insert a note with the number left out."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 3, limit // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out ...]\n{text[len(text) - tail :]}"
