"""What the wire models share: their base classes, and the form of ids and numbers."""

from typing import Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

ID_PATTERN = r"^[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,62}(/[A-Za-z0-9_-]{1,64}){0,15}$"
"""What every session id may look like that has 63 characters at most; the server judges longer ones by their bytes."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integral = BeforeValidator(_whole)
"""Lets 5.0 pass as an integer, as JSON has only one kind of number."""

NewId = Field(json_schema_extra={"pattern": ID_PATTERN})


class WireModel(BaseModel):
    """A model of the REST interface: it cannot be changed, and refuses members that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenModel(BaseModel):
    """A part of the OpenAI API's protocol, which grows: members that are not known are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)
