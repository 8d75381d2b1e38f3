"""What all protocols make of a request: the completion that is asked for, and the readers of its common members."""

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from cfs.completions import ChatMessage, LogitOptions, NamedTool, ToolSpec
from cfs.errors import InvalidParameters
from cfs.wire import Message, SettingsPatch
from cfs_server.domain.message_sizes import check_content
from cfs_server.domain.quotas import StoreLimits
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.engine.contract.reply_options import ReplyOptions, ToolChoice

# Groups completions into conversations, which requests do not name. An engine caches computation per conversation.

MOST = 1_024
"""Maximum number of remembered conversations. The least recently used are dropped first."""


class Conversations:
    """Cache keys for conversations that no session holds.

    A conversation is identified by its owner, its tools and its beginning, up to the first message that is not a system
    message. Prompts describe the tools first: a turn with others does not take the computation of those before it. Two
    conversations with the same beginning share a key. Then the idle one may lose cached computation, nothing else.
    """

    def __init__(self, forget: Callable[[str], None], limit: int = MOST) -> None:
        self._forget = forget
        self._most = limit
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered conversations."""
        return len(self._keys)

    def key(self, owner: str, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
        """Return the key of the conversation that starts with these messages."""
        key = f"completion-{beginning_of(owner, messages)}"
        if tools:
            key += f"-{hashlib.sha256(json.dumps(tools).encode()).hexdigest()[:16]}"
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._most:
            oldest, _ = self._keys.popitem(last=False)
            self._forget(oldest)
        return key


def beginning_of(owner: str, messages: Sequence[Message]) -> str:
    """Return a digest of an owner and the beginning of a conversation: up to the first message not of the system."""
    digest = hashlib.sha256(owner.encode())
    for message in messages:
        digest.update(f"\0{message.role}\0{message.content}".encode())
        if message.role != "system":
            break
    return digest.hexdigest()[:32]


DEFAULT_TOKENS = 8_192
"""The longest reply if the request sets no limit. The context may be shorter."""
_MOST_TOKENS = 1_000_000
_MOST_STOPS = 16
_LEAST_TOP_P = 1e-6
"""The smallest `top_p`. It selects only the most likely token, as 0 does."""


@dataclass(frozen=True, slots=True)
class CompletionSpec:
    """A completion request as engines and sessions use it. `patch` contains the settings of the request.

    `before` contains all messages except the last one. A session that records the completion must have this history;
    with None it has any, and the message is added to it. Calls of tools may lack ids, see `with_ids`.
    """

    messages: tuple[Message, ...]
    before: SizedMessages | None
    patch: SettingsPatch
    options: ReplyOptions
    account: str

    def by(self, model: str | None) -> Self:
        """Return the same request for a model; None leaves it to the session or the server."""
        return self if model is None else replace(self, patch=self.patch.model_copy(update={"model": model}))


@dataclass(frozen=True, slots=True)
class ResponseParent:
    """Where a stored response belongs: to a session, to a conversation, or after another response.

    Without any of them it continues the conversation that it contains, or begins one. Without `stores` it is recorded
    in a named session only. `origins` are the keys of sessions whose items the request contains.
    """

    session: str | None = None
    conversation: str | None = None
    previous: str | None = None
    stores: bool = True
    origins: tuple[str, ...] = ()


def lack_ids(messages: Iterable[Message]) -> bool:
    """Return whether a call of a tool came without an id, as some protocols have none."""
    return any(not call.id for message in messages for call in message.tool_calls)


def with_ids(messages: tuple[Message, ...], history: Sequence[Message] = ()) -> tuple[Message, ...]:
    """Give ids to calls that have none: those of the same calls in a history, or new ones.

    Results without ids are those of the calls before them, in order.
    """
    if not lack_ids(messages):
        return messages
    result: list[Message] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message.tool_calls:
            previous = history[index].tool_calls if index < len(history) else ()
            same = [(call.name, call.arguments) for call in previous] == [
                (call.name, call.arguments) for call in message.tool_calls
            ]
            calls = tuple(
                call if call.id else call.model_copy(update={"id": previous[at].id if same else f"call_{index}_{at}"})
                for at, call in enumerate(message.tool_calls)
            )
            waiting = [call.id for call in calls]
            result.append(message.model_copy(update={"tool_calls": calls}))
        elif message.role == "tool" and message.tool_call_id in waiting:
            waiting.remove(message.tool_call_id)
            result.append(message)
        elif message.role == "tool" and not message.tool_call_id and waiting:
            result.append(message.model_copy(update={"tool_call_id": waiting.pop(0)}))
        else:
            result.append(message)
    return tuple(result)


def messages_of(messages: Sequence[ChatMessage], limits: StoreLimits) -> tuple[Message, ...]:
    """Convert messages. Raises as `checked`."""
    limits.check_messages(len(messages))
    return checked(tuple(message.message() for message in messages), limits)


def checked(messages: tuple[Message, ...], limits: StoreLimits) -> tuple[Message, ...]:
    """Return these messages. Raises `TooLarge` if there are too many, or if one is too large."""
    limits.check_messages(len(messages))
    for message in messages:
        check_content(message.content, limit=limits.message_bytes)
    return messages


def tools_of(tools: Iterable[ToolSpec] | None) -> tuple[dict[str, Any], ...]:
    """Convert tools to the engine's form."""
    return tuple(tool.model_dump(exclude_none=True) for tool in tools or ())


def read_tools(
    given: Iterable[ToolSpec] | None, choice: ToolChoice | NamedTool | None
) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
    """Return the tools that may be called, and whether a call is required. Raises `InvalidParameters`."""
    tools = tools_of(given)
    names = Counter(tool["function"]["name"] for tool in tools)
    if twice := [name for name, count in names.items() if count > 1]:
        raise refusal("tools", f"two tools are called {twice[0]!r}")
    if isinstance(choice, NamedTool):
        named = tuple(tool for tool in tools if tool["function"]["name"] == choice.function.name)
        if not named:
            raise refusal("tool_choice", f"there is no tool {choice.function.name!r} among the tools")
        return named, "required"
    if choice == "required" and not tools:
        raise refusal("tool_choice", "a call is required, and there are no tools")
    return tools, choice or "auto"


def schema_of(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON schema that a reply must follow. Raises `InvalidParameters`."""
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise refusal(
        "response_format", 'it is {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {...}}}'
    )


def refusal(member: str, reason: str) -> InvalidParameters:
    """Return the error for an invalid member of a request."""
    return InvalidParameters(f"{member}: {reason}", errors=[{"at": member, "message": reason}])


def patch_of(
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    logits: LogitOptions | None = None,
) -> SettingsPatch:
    """Return the settings of a request, as far as they are set. Raises `InvalidParameters`."""
    changes = {name: getattr(logits, name) for name in LogitOptions.model_fields} if logits else {}
    if changes.pop("ignore_eos", None):
        changes["min_tokens"] = min(max_tokens or DEFAULT_TOKENS, _MOST_TOKENS)
    min_tokens = changes.get("min_tokens")
    if min_tokens and max_tokens is not None and min_tokens > max_tokens:
        raise refusal("min_tokens", f"it is more than the {max_tokens} tokens that the reply may have")
    settings = changes | {
        "max_tokens": None if max_tokens is None else min(max_tokens, _MOST_TOKENS),
        "temperature": temperature,
        "top_p": None if top_p is None else max(top_p, _LEAST_TOP_P),
        "top_k": None if top_k is None else max(top_k, 0),
        "min_p": min_p,
        "seed": None if seed is None else seed % 2**32,
        "stop": _stops(stop),
    }
    return SettingsPatch.model_validate({key: value for key, value in settings.items() if value is not None})


def _stops(stop: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if stop is None:
        return None
    stops = tuple(filter(None, [stop] if isinstance(stop, str) else stop))
    if len(stops) > _MOST_STOPS or any(len(text) > 256 for text in stops):
        raise refusal("stop", f"{_MOST_STOPS} strings of 256 characters each are the most")
    return stops or None
