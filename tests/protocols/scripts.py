"""What the model of these tests says: it follows the request, so that one server serves many tests."""

from collections.abc import Iterable, Iterator
from typing import Any

from cfs.errors import ContextTooLong, EngineError
from cfs.wire import Usage
from cfs_server.engine.contract.interface import Delta, Finished, GenerationRequest

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
COLOUR: dict[str, Any] = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


def obedient(request: GenerationRequest) -> Iterable[str | Delta | Finished]:
    """Answer by form: JSON for a schema, a call for a question about the weather, and else what was said."""
    return list(_obedient(request))


def _obedient(request: GenerationRequest) -> Iterator[str | Delta | Finished]:
    last = request.messages[-1]
    if request.options.json_schema is not None:
        yield from ('{"colour":', ' "red"}')
    elif request.options.tools and (
        request.options.tool_choice == "required" or (last.role == "user" and "weather" in last.content)
    ):
        yield from ("<think>hm</think>", "I look. ", CALL)
    elif last.content == "too long":
        raise ContextTooLong("the prompt is too long: it has 9 tokens, the context 3")
    elif last.content == "break":
        raise EngineError("the engine broke")
    elif last.content == "stop":
        yield "one"
        yield Finished("stop", Usage(), request.settings.stop[0] if request.settings.stop else "")
    else:
        yield from (word if not place else f" {word}" for place, word in enumerate(last.content.split()))
