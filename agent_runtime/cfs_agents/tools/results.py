"""What a tool's call came to: text for the model, and whether it went well."""

from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from cfs.wire import Message


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call: `text` is all that the model learns, `seconds` is how long it took.

    When `ok` is false, `text` is the reason. `truncated` says that the tool's own bound on its results cut the text.
    """

    call_id: str
    name: str
    text: str
    ok: bool
    seconds: float
    truncated: bool = False

    def message(self) -> Message:
        """Make the message that brings the result to the model."""
        return Message(role="tool", content=self.text, tool_call_id=self.call_id, name=self.name)


def text_of(value: Any) -> str:
    """Write what a tool returned as text: a text as it is, nothing as "done", all else as JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a lone surrogate could not be sent to anybody
    if value is None:
        return "done"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value):,} bytes of binary data, which is not shown]"
    try:
        return to_json(value, fallback=str, bytes_mode="base64", inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError):  # it holds itself, or a text that is none
        return text_of(str(value))


def shortened(text: str, most: int) -> str:
    """Cut a text in its middle to about `most` characters, and say how many are missing."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out ...]\n{text[len(text) - tail :]}"
