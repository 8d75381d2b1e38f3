"""Settings as a user types them: KEY=VALUE (S9). Pure: no I/O."""

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import ValidationError

from cfs.errors import InvalidSettings
from cfs.wire import TurnSettings

Patch = TypeVar("Patch", bound=TurnSettings)

_TEXTS = frozenset({"system", "prompt_style", "driver", "overflow"})


def read(assignments: Iterable[str], kind: type[Patch]) -> Patch:
    """Read `temperature=0`, `stop=END` or `stop=["a", "b"]`; nothing behind the `=` is the default.

    Raises `InvalidSettings`, which says what is wrong with which.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InvalidSettings(f"{assignment!r} is no setting: write KEY=VALUE, such as temperature=0")
        if key not in kind.model_fields:
            raise InvalidSettings(f"there is no setting {key!r} here, but {', '.join(kind.model_fields)}")
        values[key] = _value(key, text)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSettings(f"{first['loc'][0]}: {first['msg'].lower()} (given: {first['input']!r})") from None


def write(settings: TurnSettings | Any) -> list[str]:
    """Write settings as `read` takes them."""
    shown = settings.model_dump(mode="json")
    return [f"{key}={_written(value)}" for key, value in shown.items()]


def _value(key: str, text: str) -> Any:
    if not text:
        return None
    if key in _TEXTS:
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
