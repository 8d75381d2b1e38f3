"""Replies in a form that was asked for: a schema for the model, an object for the caller (C7). Pure: no I/O."""

import json
import re
from typing import Any, Generic

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from cfs.errors import InvalidReply

Model = TypeVar("Model", bound=BaseModel)

TRIES = 3
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class Form(Generic[Model]):
    """What a reply must be: JSON that a pydantic model accepts."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model
        self._schema = model.model_json_schema()

    @property
    def response_format(self) -> dict[str, Any]:
        """The form as the REST interface takes it, to be enforced by grammar."""
        return {"type": "json_schema", "json_schema": {"name": self._model.__name__, "schema": self._schema}}

    def ask(self, message: str) -> str:
        """Add to a message what its reply must be."""
        schema = json.dumps(self._schema, ensure_ascii=False)
        return f"{message}\n\nReply with one JSON object and nothing else. It must follow this JSON schema:\n{schema}"

    def parse(self, reply: str) -> Model:
        """Read a reply; raises `InvalidReply`, which says what is wrong with it."""
        try:
            return self._model.model_validate_json(_json_in(reply))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise InvalidReply(f"no {self._model.__name__}: {reason}", last_reply=reply)

    def complain(self, problem: InvalidReply) -> str:
        """Ask again, saying what was wrong."""
        return self.ask(f"That reply cannot be used ({problem.detail}).")


def _json_in(reply: str) -> str:
    """Take off what models like to put around JSON: a code fence, or words before and after an object."""
    if fenced := _FENCED.search(reply):
        return fenced[1]
    start, end = reply.find("{"), reply.rfind("}")
    return reply[start : end + 1] if 0 <= start < end else reply
