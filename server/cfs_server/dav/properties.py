"""A session's settings and state as WebDAV properties in the namespace `cfs:` (W5, S9). Pure: no I/O."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from pydantic import ValidationError

from cfs.errors import Conflict, Forbidden, InvalidSettings
from cfs.transports.disk import PREFIX, read_settings, write_settings
from cfs.wire import Settings, SettingsPatch, State

NAMESPACE = "{cfs:}"
"""In Clark's notation."""

_LIVE = ("state", "queued")


@lru_cache(maxsize=256)  # most sessions of a listing have the same
def settings_shown(settings: Settings) -> Mapping[str, str]:
    """Write the settings that have a value: numbers and lists as JSON, texts as they stand."""
    written = write_settings(SettingsPatch(**settings.model_dump()))
    values = {
        NAMESPACE + name: value.decode()
        for name in Settings.model_fields
        if (value := written[PREFIX + name]) is not None
    }
    return MappingProxyType(values)


def state_shown(state: State, queued: int) -> Mapping[str, str]:
    """Write what the session is doing."""
    return {NAMESPACE + "state": state, NAMESPACE + "queued": str(queued)}


def is_ours(name: str) -> bool:
    """Tell whether a property belongs to the session itself, and not to whoever wants to keep something beside it."""
    return name.startswith(NAMESPACE)


def change_of(name: str, value: str | None) -> SettingsPatch:
    """Read the change of one property; None puts the setting back to its default.

    Raises `Forbidden` for what can only be read, and `Conflict` for what is no setting, or not with this value.
    """
    key = name.removeprefix(NAMESPACE)
    if key in _LIVE:
        raise Forbidden(f"{key!r} says what the session is doing; it cannot be set")
    if key not in SettingsPatch.model_fields:
        raise Conflict(f"there is no setting {key!r}; there are {', '.join(SettingsPatch.model_fields)}")
    try:
        return SettingsPatch.model_validate({key: None if value is None else _read(key, value)})
    except (ValidationError, InvalidSettings) as error:
        raise Conflict(f"{key} cannot be {value!r}: {_reason(error)}") from None


def _read(key: str, value: str) -> object:
    return getattr(read_settings({PREFIX + key: value.encode()}), key)


def _reason(error: ValidationError | InvalidSettings) -> str:
    return error.detail if isinstance(error, InvalidSettings) else error.errors()[0]["msg"]
