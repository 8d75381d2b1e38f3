"""Settings as extended attributes of a session's file (F6, S9).

A setting is the attribute `user.cfs.<name>`. Its value is JSON, except that strings are stored as plain text. A
missing attribute means the default.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cfs.contract.errors import InvalidSettings
from cfs.contract.wire import TEXT_SETTINGS, Settings, SettingsPatch

PREFIX = "user.cfs."

CANCEL = PREFIX + "cancel"
"""Setting it to 1 cancels the running turn."""

LIFE = PREFIX + "life"
"""Identifies this life of the session: a session that is deleted and created again has another value."""


def write_settings(patch: SettingsPatch) -> dict[str, bytes | None]:
    """Convert a change of settings to attributes to set; None means to remove the attribute."""
    changes = {name: getattr(patch, name) for name in patch.model_fields_set}
    return {PREFIX + name: None if value is None else _write(value) for name, value in changes.items()}


def read_settings(attributes: Mapping[str, bytes]) -> Settings:
    """Parse the settings among attributes; raises `InvalidSettings` for an invalid value."""
    values = {
        name: _read(name, attributes[PREFIX + name]) for name in Settings.model_fields if PREFIX + name in attributes
    }
    try:
        return Settings.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise InvalidSettings(f"an attribute holds no setting: {error.errors()[0]['msg']}") from None


def _write(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def _read(name: str, value: bytes) -> Any:
    text = value.decode(errors="replace")
    if name in TEXT_SETTINGS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
