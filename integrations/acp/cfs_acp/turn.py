"""One turn of a session: what of the agent's work goes to the server, and what the editor has seen of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.events import Finished
from cfs_agents.base.messages import Language, catalogue
from cfs_agents.context import ContextItem, ConversationChange
from cfs_agents.loop.config import Outcome
from cfs_agents.loop.recorder import NewContext
from cfs_agents.tools import ToolResult
from cfs_agents.tree.server_sessions import ServerSessions
from cfs_agents.tree.session_backend import ClaimedTurn


class TurnRecorder:
    """Sends what an agent does to its turn on the server; a `Recorder`.

    The last answer waits: it is the end of the turn, which sends it.
    """

    def __init__(self, turn: ClaimedTurn, backend: ServerSessions, session: str) -> None:
        self._lease, self._backend, self._session = turn.lease, backend, session
        self._given: str | None = turn.content
        self._answer: Message | None = None
        self._is_whole = False

    def begin(self) -> None:
        """Begin the next reply of the model."""
        self._is_whole = False

    def text(self, piece: str) -> None:
        """Send a piece of a reply."""
        self._lease.text(piece)

    def unsent(self, reply: str) -> str:
        """Return what no message has that was sent, if the task ends now; `reply` is the last reply so far."""
        return (self._answer.content if self._answer else "") + ("" if self._is_whole else reply)

    async def finish(self, outcome: Outcome) -> None:
        """End the turn as the task has ended. Raises `CfsError` if the server cannot be reached."""
        answered = outcome.over
        if not answered:
            self._send_answer()
        error = None if answered else outcome.detail or outcome.reason
        try:
            await self._lease.finish(outcome.text if answered else "", outcome.usage, error=error)
        finally:
            await self._lease.close()

    def _send_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._lease.message(answer)

    async def before_round(self) -> None:
        """Wait while the session is paused."""
        await self._backend.unpaused(self._session)

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:  # noqa: ARG002
        """Send a message. The session has the one that began the turn, and a continued answer replaces its part."""
        message = item.message
        if message.role == "user" and message.content == self._given:
            self._given = None
            return
        if self._answer is not None and not message.content.startswith(self._answer.content):
            self._send_answer()
        self._answer = None
        self._is_whole = self._is_whole or message.role == "assistant"
        if message.role == "assistant" and not message.tool_calls:
            self._answer = message
        else:
            self._lease.message(message)

    async def shortened(self, change: ConversationChange) -> None:
        """Do nothing: the session keeps all messages."""

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Do nothing."""

    async def done(
        self,
        call: ToolCall,  # noqa: ARG002
        result: ToolResult,
        item: ContextItem,  # noqa: ARG002
        later: Sequence[ToolCall],  # noqa: ARG002
    ) -> NewContext | None:
        """Send a result."""
        self._lease.message(result.message())
        return None

    async def ended(self, end: Finished) -> None:
        """Do nothing: `finish` ends the turn."""


class Piecewise:
    """A text in pieces. If it is requested again, the part that was shown is not shown twice."""

    def __init__(self) -> None:
        self.text = self._shown = ""

    def start(self) -> None:
        """Begin a new text."""
        self.text = self._shown = ""

    def repeat(self) -> None:
        """Begin the same text again; it may come out differently."""
        self.text = ""

    def add(self, piece: str) -> str:
        """Add a piece, and return what is new."""
        self.text += piece
        if self._shown.startswith(self.text):
            return ""
        new = self.text[len(self._shown) :] if self.text.startswith(self._shown) else f"\n{self.text}"
        self._shown = self.text
        return new


@dataclass(slots=True)
class Shown:
    """What the editor has seen of a turn: the present reply, open calls, and files before they are changed."""

    reply: Piecewise = field(default_factory=Piecewise)
    thinking: Piecewise = field(default_factory=Piecewise)
    open: list[ToolCall] = field(default_factory=list)
    before: dict[str, str | None] = field(default_factory=dict)


def repaired(history: Sequence[Message], language: Language) -> list[Message]:
    """Return a history in which each call has a result; a turn that was cancelled may have ended between the two."""
    say = catalogue(language)
    whole: list[Message] = []
    waiting: dict[str, ToolCall] = {}
    for message in history:
        if message.role != "tool":
            whole += [_no_result(call, say.no_result.format(say.stopped)) for call in waiting.values()]
            waiting = {call.id: call for call in message.tool_calls}
        elif waiting.pop(message.tool_call_id or "", None) is None:
            continue  # its call has left the history
        whole.append(message)
    return whole + [_no_result(call, say.no_result.format(say.stopped)) for call in waiting.values()]


def _no_result(call: ToolCall, text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
