"""The agent's log: what happened to it, with tracebacks, for people who look for a cause."""

import logging
import os
import queue
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

from cfs_agents.base.disk import disk_errors
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn, usable_file
from cfs_agents.context.redaction import redact

_log = get_logger(__name__)

AGENT_LOG = "agent.log"
_LOG_BYTES = 1 << 20


class AgentLog:
    """Writes lines and tracebacks to `agent.log` in a folder, by a thread of its own, so no task waits for the disk.

    There are two files of at most 1 MiB each. Secrets are taken out. A disk that takes no lines loses them, never a
    task. `warn` gets a sentence for each repair.
    """

    def __init__(self, folder: Path, agent_id: str, warn: Warn = _log.warning) -> None:
        lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with disk_errors(folder):
            path = usable_file(folder / AGENT_LOG, warn)
        file = _LogFile(path, maxBytes=_LOG_BYTES, backupCount=1, delay=True)
        self._logger = logging.Logger(agent_id, logging.INFO)  # noqa: LOG001 - it belongs to this agent alone
        into_queue = QueueHandler(lines)
        into_queue.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._logger.addHandler(into_queue)
        self._listener = QueueListener(lines, file)
        self._file = file
        self._listener.start()

    def info(self, text: str) -> None:
        """Log an event."""
        self._logger.info("%s", text)

    def warning(self, text: str) -> None:
        """Log what a person should know."""
        self._logger.warning("%s", text)

    def error(self, text: str, error: BaseException) -> None:
        """Log a failure with its traceback."""
        self._logger.error("%s", text, exc_info=error)

    def close(self) -> None:
        """Write what is left and close the file. Blocks."""
        self._listener.stop()
        self._file.close()


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record)).text


class _LogFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Lose the line: the disk does not take it."""
