"""Settings as extended attributes of a session's file (F6, S9). Pure: no I/O.

A setting is the attribute `user.cfs.<name>`; its value is JSON, but for texts, which stand as they are. Absent means
the default.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cfs.errors import InvalidSettings
from cfs.wire import Settings, SettingsPatch

PREFIX = "user.cfs."
CANCEL = PREFIX + "cancel"
"""Setting it to 1 cancels the running turn."""

LIFE = PREFIX + "life"
"""Reads as the name of this life of the session, which differs from that of any other of its name."""

_TEXTS = frozenset({"system", "prompt_style", "driver", "overflow"})


def write_settings(patch: SettingsPatch) -> dict[str, bytes | None]:
    """Write a change as attributes to set, and to remove where the value is None."""
    changes = {name: getattr(patch, name) for name in patch.model_fields_set}
    return {PREFIX + name: None if value is None else _write(value) for name, value in changes.items()}


def read_settings(attributes: Mapping[str, bytes]) -> Settings:
    """Read the settings among attributes; raises `InvalidSettings` for a value that is none."""
    found = {
        name: _read(name, attributes[PREFIX + name]) for name in Settings.model_fields if PREFIX + name in attributes
    }
    try:
        return Settings.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:
        raise InvalidSettings(f"an attribute holds no setting: {error.errors()[0]['msg']}") from None


def _write(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def _read(name: str, value: bytes) -> Any:
    text = value.decode(errors="replace")
    if name in _TEXTS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
