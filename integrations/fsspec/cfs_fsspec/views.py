"""The files that show a session. Pure: no I/O.

Their names are those of `cfs export`, which writes the same layout; `transcript.jsonl` is for programs that read
tables.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cfs.contract.transcript import render
from cfs.wire import SessionDetail

SESSIONS = "sessions"


@dataclass(frozen=True, slots=True)
class ViewPath:
    """What a path below `sessions/` names: a session, or one of its files."""

    session: str
    view: str | None = None


def parse(path: str) -> ViewPath:
    """Parse a path that begins with `sessions/`. Names of sub-sessions have no dots, so both never mean the same."""
    _, _, rest = path.partition("/")
    session, _, last = rest.rpartition("/")
    return ViewPath(session, last) if session and last in VIEWS else ViewPath(rest)


def as_lines(detail: SessionDetail) -> str:
    """Write the messages as lines of JSON.

    Each line has the same keys, with values of the same types, so that tables of several sessions fit together:
    `session`, `index`, `time` (seconds since the epoch, or null), `role`, `content`, `name`, `thinking`, `tool_calls`
    and `tool_call_id`. A text that is missing is empty. The arguments of calls are JSON in a string, as in the API of
    OpenAI, because their form differs from tool to tool.
    """
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(detail))


def _rows(detail: SessionDetail) -> Iterator[dict[str, object]]:
    for index, message in enumerate(detail.history):
        calls = [
            {"id": call.id, "name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            for call in message.tool_calls
        ]
        yield {
            "session": detail.id,
            "index": index,
            "time": detail.times[index] if index < len(detail.times) else None,
            "role": message.role,
            "content": message.content,
            "name": message.name or "",
            "thinking": message.thinking or "",
            "tool_calls": calls,
            "tool_call_id": message.tool_call_id or "",
        }


VIEWS: Mapping[str, Callable[[SessionDetail], str]] = {
    "session.json": lambda detail: detail.model_dump_json() + "\n",
    "transcript.jsonl": as_lines,
    "transcript.txt": lambda detail: render(detail.history),
}
"""The files of each session, by name."""
