"""How a handler answers the kernel when something is wrong: by a number, and the reason in the log."""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from cfs.errors import CfsError, NotFound

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def answering(operation: Callable[P, R]) -> Callable[P, R]:
    """Give errors of ours the numbers of `cfs.errors.TABLE`, and say why in the log."""

    @functools.wraps(operation)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(*args, **kwargs)
        except CfsError as error:
            level = logging.DEBUG if isinstance(error, NotFound) else logging.WARNING
            _log.log(level, "%s: %s", operation.__name__, error.detail)
            raise OSError(error.errno, error.detail) from error

    return answer


def refusing(number: int) -> Callable[..., int]:
    """Make the handler of what is always refused by this number."""

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return refuse


def accepting(*_: Any) -> int:
    """Accept what has no effect here."""
    return 0
