"""The operation log: what an agent did, a line of JSON each (A6).

`logs/operations_YYYYMMDD.jsonl` has for each operation `timestamp`, `operation`, `params`, `result` or `error`,
`success`, and an `id` that is its place in the run log. It is for people and other programs; the agent itself reads its
run log. Secrets are taken out, long texts shortened, and a line is written in one piece.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from cfs_agents.base.disk import cut_torn_line, disk_errors, open_file, write_all
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn, usable_file, without_damage
from cfs_agents.context.redaction import redact_json
from cfs_agents.tools.results import shortened, text_of

_log = get_logger(__name__)

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


class OperationLogger:
    """Appends operations to the file of the day in a folder, a line of JSON each; threads may share it.

    Secrets are taken out, long texts are shortened. `warn` gets a sentence for each repair. Raises `StorageFull` and
    `Unavailable`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        warn: Warn = _log.warning,
    ) -> None:
        self._folder = Path(folder)
        self._now = now
        self._warn = warn
        self._lock = threading.Lock()
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._newest_ids = deque(self._repaired(), maxlen=_REMEMBERED)

    def __contains__(self, operation_id: object) -> bool:
        """Whether the operation is among the last ones of the log."""
        return operation_id in self._newest_ids

    def log_operation(
        self, operation: str, params: Mapping[str, Any], result: Any = "", error: str | None = None
    ) -> None:
        """Append an operation with its parameters and its result, or with the error that it failed with.

        A `result` that is no text is written as JSON.
        """
        outcome = text_of(result) if error is None else error
        self.write(Operation(uuid4().hex, operation, params, outcome, success=error is None))

    def write(self, operation: Operation) -> None:
        """Append an operation of the run log, which has an id."""
        now = self._now()
        line = _line(operation, now)
        path = self._folder / f"operations_{now:%Y%m%d}.jsonl"
        with self._lock, disk_errors(path):
            _append(usable_file(path, self._warn), line)
            self._newest_ids.append(operation.id)

    def _repaired(self) -> list[str]:
        """Put aside a newest file with damaged lines; return the ids of the newest lines.

        A last line that a crash left in pieces is cut off.
        """
        logs = sorted(self._folder.glob("operations_*.jsonl"))
        if not logs:
            return []
        path = usable_file(logs[-1], self._warn)
        if not path.exists():
            return []
        size = path.stat().st_size
        file = open_file(path)
        try:
            cut_torn_line(file)
            start = max(0, size - _TAIL)
            tail = os.pread(file, _TAIL, start)
        finally:
            os.close(file)
        lines = tail.splitlines()[1 if start else 0 :]  # the reading may begin within a line
        ids = [_id_in(line) for line in lines]
        if None in ids or not size:
            good = [line for line in path.read_bytes().splitlines(keepends=True) if _id_in(line) is not None]
            problem = "is empty" if not size else "has lines that cannot be read: they are left out"
            without_damage(path, b"".join(good), problem, self._warn)
            if not good:
                path.unlink()
        return [line_id for line_id in ids if line_id is not None]


def _id_in(line: bytes) -> str | None:
    """Return the id in a line of the log; None for a line that is none."""
    try:
        return str(json.loads(line)["id"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _append(path: Path, line: bytes) -> None:
    """Append a line, or nothing of it. A line before it that has no end, as somebody has cut the file, stays apart."""
    file = open_file(path)
    try:
        size = os.fstat(file).st_size
        apart = b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""
        write_all(file, apart + line, wait=False)
    finally:
        os.close(file)


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
        members = dict(list(value.items())[:_MOST_MEMBERS])
        short = {shortened(str(key), 200): _short(member, depth + 1) for key, member in members.items()}
        return short | ({"...": f"{len(value) - len(members)} more"} if len(value) > len(members) else {})
    if isinstance(value, list | tuple):
        more = [f"[... {len(value) - _MOST_MEMBERS} more]"] if len(value) > _MOST_MEMBERS else []
        return [*(_short(member, depth + 1) for member in value[:_MOST_MEMBERS]), *more]
    return value
