"""Settings of a session as extended attributes `user.cfs.*` (F6, S9)."""

import errno
import logging
from typing import Any

from pydantic import ValidationError

from cfs import api
from cfs.errors import CfsError
from cfs.transports.disk import CANCEL, LIFE, PREFIX, read_settings, write_settings
from cfs.wire import Settings, SettingsPatch
from cfs_fuse.entries import Entry
from cfs_fuse.handles import SEEN_SECONDS, Parts

_log = logging.getLogger(__name__)


def list_of(parts: Parts, entry: Entry) -> list[str]:
    """Name the settings that have a value."""
    return list(_values(parts, entry))


def read(parts: Parts, entry: Entry, name: str) -> bytes:
    """Return a setting as text; raises `OSError` (ENODATA)."""
    value = _values(parts, entry).get(name)
    if value is None:
        raise OSError(errno.ENODATA, f"{name} is not set")
    return value


def write(parts: Parts, entry: Entry, name: str, value: bytes) -> None:
    """Change a setting, or cancel the running turn by `user.cfs.cancel`; raises `OSError` (EINVAL, EOPNOTSUPP)."""
    if not name.startswith(PREFIX):
        raise OSError(errno.EOPNOTSUPP, f"only {PREFIX}* can be set")
    try:
        text = value.decode()
        if name == LIFE:
            raise OSError(errno.EPERM, f"{LIFE} can only be read")
        if name == CANCEL:
            _cancel(parts, entry, text)
        else:
            key = name.removeprefix(PREFIX)
            _change(parts, entry, {key: getattr(read_settings({name: value}), key, value)})
    except (ValueError, CfsError) as error:
        reason = _reason(error)
        _log.error("%s: %s cannot be %r: %s", entry.id, name, value[:80], reason)
        if isinstance(error, CfsError):
            raise
        raise OSError(errno.EINVAL, reason) from None


def remove(parts: Parts, entry: Entry, name: str) -> None:
    """Put a setting back to its default; raises `OSError` (ENODATA)."""
    if name == LIFE:
        raise OSError(errno.EPERM, f"{LIFE} can only be read")
    read(parts, entry, name)
    _change(parts, entry, {name.removeprefix(PREFIX): None})


def _values(parts: Parts, entry: Entry) -> dict[str, bytes]:
    found = write_settings(SettingsPatch(**_settings(parts, entry).model_dump()))
    return {LIFE: entry.life.encode()} | {name: value for name, value in found.items() if value is not None}


def _settings(parts: Parts, entry: Entry) -> Settings:
    """The settings as events told them; asked for once where none did."""
    if (known := entry.settings) is not None:
        return known
    number = entry.event
    found = parts.server.call(api.settings(entry.id))
    with parts.cache.lock:
        if entry.event == number:
            entry.settings = found
    return found


def _change(parts: Parts, entry: Entry, change: dict[str, Any]) -> None:
    settings = parts.server.call(api.configure(entry.id, SettingsPatch.model_validate(change)))
    with parts.cache.lock:
        parts.patience.briefly(
            parts.cache.moved(entry),
            lambda: entry.gone or entry.settings is None or entry.settings == settings,
            SEEN_SECONDS,
        )


def _cancel(parts: Parts, entry: Entry, text: str) -> None:
    if text not in ("1", "all"):
        raise ValueError("1 cancels the running turn, all also those that wait")
    parts.server.call(api.cancel(entry.id, queued=text == "all"))


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return str(error)
