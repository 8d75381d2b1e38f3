"""Tools as a message offers them to the model, in the form of the OpenAI API."""

from typing import Annotated, Any, Literal

from pydantic import (
    StringConstraints,
)

from cfs.contract.wire.base import OpenModel


class FunctionSpec(OpenModel):
    """How a tool is described to a model; `parameters` is a JSON schema of an object."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolSpec(OpenModel):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionSpec


class FunctionName(OpenModel):
    """A tool, by its name."""

    name: str


class NamedTool(OpenModel):
    """The one tool that must be called."""

    type: Literal["function"] = "function"
    function: FunctionName
