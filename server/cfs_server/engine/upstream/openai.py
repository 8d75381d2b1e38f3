"""The protocol of OpenAI's chat completions, as many servers speak it: what is sent. Pure: no I/O.

Members are those of the public API reference; `reasoning_content` and `reasoning` are what vLLM, llama-server and
others call a model's thinking.
"""

import json
from collections.abc import Mapping
from typing import Any

from cfs.wire import Message
from cfs_server.engine.interface import GenerationRequest
from cfs_server.engine.upstream.failures import Failure
from cfs_server.engine.upstream.fields import OptionalFields
from cfs_server.engine.upstream.history import conversation_of
from cfs_server.engine.upstream.openai_reply import OpenAIReply, Voice
from cfs_server.engine.upstream.options import Options

_OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stream_options",
    "tool_choice",
    "parallel_tool_calls",
)
_MORE_MODERN = "max_completion_tokens"


class OpenAIDialect:
    """Speaks to servers that are compatible with OpenAI."""

    path = "chat/completions"

    def __init__(self, options: Options, model: str) -> None:
        self._options = options
        self._model = model
        self._fields = OptionalFields(_OPTIONAL)
        self._length = "max_tokens"
        self._voice = Voice()

    def headers(self, key: str | None) -> Mapping[str, str]:
        """Make the headers of every request."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, request: GenerationRequest) -> dict[str, Any]:
        """Make the body of a turn's request."""
        talk = conversation_of(request)
        system = [{"role": "system", "content": talk.system}] if talk.system else []
        optional = self._sampling(request) | {"stop": list(talk.stops), "stream_options": {"include_usage": True}}
        if request.tools:
            optional["tool_choice"] = request.tool_choice
            if not request.parallel_calls:
                optional["parallel_tool_calls"] = False
        return {
            "model": self._model,
            "messages": [*system, *map(self._message, talk.messages)],
            "stream": True,
            self._length: request.settings.max_tokens,
            **{name: value for name, value in optional.items() if value != [] and self._fields.takes(name)},
            **({"tools": list(request.tools)} if request.tools else {}),
            **_format(request.json_schema),
        }

    def reply(self, request: GenerationRequest) -> OpenAIReply:  # noqa: ARG002 - the other protocol needs it
        """Make the reader of a turn's answer."""
        return OpenAIReply(self._voice)

    def learn(self, failure: Failure) -> None:
        """Leave out what the upstream refused; newer models of OpenAI want another name for the length."""
        if failure.status == 400 and _MORE_MODERN in failure.said:
            self._length = _MORE_MODERN
        else:
            self._fields.learn(failure)

    def forget(self, cache_key: str) -> None:
        """Nothing is kept for a session."""

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        values = {name: getattr(request.settings, name) for name in self._options.sampling}
        return {name: value for name, value in values.items() if value is not None}

    def _message(self, message: Message) -> dict[str, Any]:
        if message.role == "tool":
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            row["content"] = message.content or None
            row["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for call in message.tool_calls
            ]
            # Some models must get back what they thought before a call, and others refuse any other thinking.
            if message.thinking is not None:
                row[self._voice.thinking] = message.thinking
        return row


def _format(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Ask for JSON; `strict` stays off because few schemas are what OpenAI's strict mode wants."""
    if schema is None:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}}
