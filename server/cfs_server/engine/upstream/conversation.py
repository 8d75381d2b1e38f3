"""The content of a turn's request to an upstream."""

from dataclasses import dataclass

from cfs.contract.transcript import PREFIXES, render, reply_stops
from cfs.errors import EngineError
from cfs.wire import Message
from cfs_server.engine.contract.fitting import leading_systems
from cfs_server.engine.contract.history_forms import HistoryForm, in_form
from cfs_server.engine.contract.interface import GenerationRequest

MOST_STOPS = 4
"""The most stop strings that some servers accept; the requested ones are first."""


@dataclass(frozen=True, slots=True)
class UpstreamConversation:
    """The instruction, the messages, and the strings that end the reply."""

    system: str
    messages: tuple[Message, ...]
    stops: tuple[str, ...]


def conversation_of(request: GenerationRequest, form: HistoryForm = HistoryForm.PLAIN) -> UpstreamConversation:
    """Prepare the history of a turn (S8), in a form that the upstream takes.

    With `prompt_style=transcript` it becomes one message that the model continues. Raises `EngineError` when that
    is requested together with tools.
    """
    settings = request.settings
    if settings.prompt_style == "transcript":
        if request.options.tools:
            raise EngineError("tools need prompt_style=chat")
        leading = (Message(role="system", content=settings.system),) if settings.system else ()
        text = render([*leading, *request.messages]) + PREFIXES["assistant"]
        stops = reply_stops(settings.stop)[: max(MOST_STOPS, len(settings.stop or ()))]
        return UpstreamConversation("", (Message(role="user", content=text),), stops)
    count = leading_systems(request.messages)
    leading_messages, rest = request.messages[:count], request.messages[count:]
    system = "\n\n".join(text for text in (settings.system or "", *(m.content for m in leading_messages)) if text)
    return UpstreamConversation(system, tuple(in_form(rest, form)), settings.stop or ())


def stops_of(request: GenerationRequest) -> tuple[str, ...]:
    """Return all strings that end the reply; the upstream may get fewer."""
    settings = request.settings
    return reply_stops(settings.stop) if settings.prompt_style == "transcript" else settings.stop or ()
