"""Structured replies: a JSON schema for the model, an object for the caller (C7)."""

import json
import re
from typing import Any, Generic

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from cfs.contract.errors import InvalidReply

Model = TypeVar("Model", bound=BaseModel)
TRIES = 3
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class ReplyFormat(Generic[Model]):
    """The required format of a reply: JSON that a pydantic model accepts."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model
        self._schema = model.model_json_schema()

    @property
    def response_format(self) -> dict[str, Any]:
        """The `response_format` for the REST interface, which enforces it by grammar."""
        return {"type": "json_schema", "json_schema": {"name": self._model.__name__, "schema": self._schema}}

    def ask(self, message: str) -> str:
        """Add the required format to a message."""
        schema = json.dumps(self._schema, ensure_ascii=False)
        return f"{message}\n\nReply with one JSON object and nothing else. It must follow this JSON schema:\n{schema}"

    def parse(self, reply: str) -> Model:
        """Parse a reply; raises `InvalidReply` with the reason."""
        try:
            return self._model.model_validate_json(_json_in(reply))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            location = ".".join(map(str, first["loc"]))
            reason = f"{location}: {first['msg']}" if location else first["msg"]
        raise InvalidReply(f"no {self._model.__name__}: {reason}", last_reply=reply)

    def complain(self, problem: InvalidReply) -> str:
        """Return the message that reports the problem and asks again."""
        return self.ask(f"That reply cannot be used ({problem.detail}).")


def _json_in(reply: str) -> str:
    """Remove what models put around JSON: a code fence, or text before and after an object."""
    if fenced := _FENCED.search(reply):
        return fenced[1]
    start, end = reply.find("{"), reply.rfind("}")
    return reply[start : end + 1] if 0 <= start < end else reply
