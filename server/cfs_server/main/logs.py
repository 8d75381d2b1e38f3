"""Configures the log of the server process: text for people or JSON for programs (P3)."""

import logging
import sys
from collections.abc import MutableMapping
from io import StringIO
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import ExcInfo, Processor

from cfs.cli.base.output import visible
from cfs_server.access.tokens import masked

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


class _Expected(logging.Filter):
    """Drops uvicorn's messages about connections that the server closed on purpose at shutdown."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "ASGI callable returned without completing response" not in record.getMessage()


def configure(form: Literal["auto", "text", "json"], level: str) -> None:
    """Send the records of structlog and of the standard library to stderr in one format."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.processors.format_exc_info if form == "json" else _as_it_is,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(form),
                _without_secrets,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(logging.WARNING, root.level))  # our own request log is better
    logging.getLogger("uvicorn.error").addFilter(_Expected())
    for name in ("sse_starlette", "asyncio", "huggingface_hub", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _renderers(form: str) -> list[Processor]:
    if form == "json":
        return [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
            lambda _, __, line: str(line).translate(_ESCAPED),
        ]
    colors = form == "auto" and sys.stderr.isatty()
    return [_visible, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)]


_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Control characters that JSON may contain as they are."""


_EVENT = "event"
"""The text of an entry. uvicorn writes tracebacks into it."""


def _visible(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make control characters in values visible, so that they can neither control a terminal nor forge a line."""
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = visible(value) if name == _EVENT else visible(value).replace("\n", "␊")
    return entry


def _traceback(out: TextIO, exception: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exception)
    out.write(visible(text.getvalue()))


def _without_secrets(_: Any, __: str, line: Any) -> Any:
    """Mask tokens in the finished line, whatever their source: a URL, or the text of an exception."""
    return masked(line)


def _as_it_is(_: Any, __: str, event: Any) -> Any:
    return event
