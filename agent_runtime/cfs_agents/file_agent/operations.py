"""The operation log: what an agent did, a line of JSON each (A6).

`logs/operations_YYYYMMDD.jsonl` has for each operation `timestamp`, `operation`, `params`, `result` or `error`,
`success`, and an `id` that is its place in the journal. It is for people and programs that look on; the agent itself
goes by its journal. Secrets are taken out, long texts shortened, and a line is written in one piece.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cfs_agents.context.redaction import redact_json
from cfs_agents.file_agent.disk import disk_errors
from cfs_agents.tools.results import shortened

LONGEST_TEXT = 2_000
_LONGEST_LINE = 64 * 1024
_MOST_MEMBERS = 50
_DEEPEST = 6
_TAIL = 1 << 20
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: what was done with which parameters, and what came of it; `id` tells it from all others."""

    id: str
    operation: str
    params: Mapping[str, Any]
    outcome: str
    success: bool


class OperationLog:
    """Appends operations to the file of the day. Any number of threads. Raises `StorageFull` and `Unavailable`."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder = folder
        self._now = now
        self._lock = threading.Lock()
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._newest_ids = deque(self._repaired(), maxlen=_REMEMBERED)

    def __contains__(self, operation_id: object) -> bool:
        """Whether the operation is among the last ones of the log."""
        return operation_id in self._newest_ids

    def write(self, operation: Operation) -> None:
        """Append a line."""
        now = self._now()
        line = _line(operation, now)
        path = self._folder / f"operations_{now:%Y%m%d}.jsonl"
        with self._lock, disk_errors(path):
            _append(path, line)
            self._newest_ids.append(operation.id)

    def _repaired(self) -> list[str]:
        """Cut off a last line that a crash left in pieces; return the ids of the newest lines."""
        logs = sorted(self._folder.glob("operations_*.jsonl"))
        if not logs:
            return []
        with logs[-1].open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - _TAIL))
            tail = file.read()
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail) and (whole or not start):
                file.truncate(start + whole)
        ids = []
        for line in tail[:whole].splitlines():
            with suppress(ValueError, TypeError, KeyError):  # the first may be cut, as the reading began in it
                ids.append(str(json.loads(line)["id"]))
        return ids


def _append(path: Path, line: bytes) -> None:
    """Append a line, or nothing of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(28, "No space left on device")
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _line(operation: Operation, now: datetime) -> bytes:
    params = _short(redact_json(dict(operation.params)).value)
    if len(json.dumps(params)) > _LONGEST_LINE:
        params = {"shortened": shortened(json.dumps(params, ensure_ascii=False), LONGEST_TEXT)}
    record = {
        "timestamp": now.isoformat(timespec="milliseconds"),
        "id": operation.id,
        "operation": operation.operation,
        "params": params,
        ("result" if operation.success else "error"): _short(redact_json(operation.outcome).value),
        "success": operation.success,
    }
    return json.dumps(record).encode() + b"\n"


def _short(value: Any, depth: int = 0) -> Any:
    """Shorten what is long in a value of JSON, so that it stays one."""
    if isinstance(value, str):
        return shortened(value, LONGEST_TEXT)
    if isinstance(value, list | tuple | dict) and depth == _DEEPEST:
        return f"[{len(value)} members]"
    if isinstance(value, dict):
        kept = dict(list(value.items())[:_MOST_MEMBERS])
        short = {shortened(str(key), 200): _short(each, depth + 1) for key, each in kept.items()}
        return short | ({"...": f"{len(value) - len(kept)} more"} if len(value) > len(kept) else {})
    if isinstance(value, list | tuple):
        more = [f"[... {len(value) - _MOST_MEMBERS} more]"] if len(value) > _MOST_MEMBERS else []
        return [*(_short(each, depth + 1) for each in value[:_MOST_MEMBERS]), *more]
    return value
