"""Settings on the command line: `KEY=VALUE` (S9)."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError

from cfs.cli.base.output import did_you_mean
from cfs.contract.errors import InvalidSettings
from cfs.contract.wire import TEXT_SETTINGS, TurnSettings

Patch = TypeVar("Patch", bound=TurnSettings)


def read_settings(assignments: Iterable[str], kind: type[Patch]) -> Patch:
    """Parse `temperature=0`, `stop=END` or `stop=["a", "b"]`; an empty value means the default.

    Raises `InvalidSettings`, which names the setting and the reason.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InvalidSettings(f"{assignment!r} is no setting: write KEY=VALUE, such as temperature=0")
        if key not in kind.model_fields:
            similar = did_you_mean(get_close_matches(key, kind.model_fields, n=1))
            raise InvalidSettings(f"there is no setting {key!r} here, but {', '.join(kind.model_fields)}{similar}")
        values[key] = _value(key, text)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSettings(f"{first['loc'][0]}: {first['msg'].lower()} (given: {first['input']!r})") from None


def write_settings(settings: TurnSettings | Any) -> list[str]:
    """Format settings as `read_settings` accepts them."""
    values = settings.model_dump(mode="json")
    return [f"{key}={_written(value)}" for key, value in values.items()]


def _value(key: str, text: str) -> Any:
    if not text:
        return None
    if key in TEXT_SETTINGS:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return [text] if key == "stop" and not isinstance(value, list) else value


def _written(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
