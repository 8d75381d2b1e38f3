"""What a strand says: to its session on the server, and to whoever reads the chunks of the tree (B3, B5)."""

from collections.abc import Sequence
from typing import Any

import structlog

from cfs.errors import CfsError
from cfs.wire import Message, Usage
from cfs_agents.events import AgentEvent, CallFinished, CallStarted, Retrying, Text, Thinking
from cfs_agents.fibre.chunks import ChunkKind, ChunkStream
from cfs_agents.fibre.holds import Hold, LocalHold
from cfs_agents.fibre.live import Begun
from cfs_agents.fibre.reports import Report
from cfs_agents.fibre.state import Held
from cfs_agents.retries import is_outage
from cfs_agents.sentences import Language

_log = structlog.get_logger(__name__)


class Voice:
    """The voice of one strand; `hold` is the turn that it answers. Nothing here waits but the end of a turn."""

    def __init__(self, chunks: ChunkStream, session_id: str, agent_name: str) -> None:
        self._chunks = chunks
        self._session_id = session_id
        self._agent_name = agent_name
        self._hold: Hold = LocalHold()
        self._given: str | None = None
        self._answer: Message | None = None
        self._shown = ""
        """What has been said of the reply that is being made, also by an attempt that broke off."""
        self._reply, self._differs = "", False

    @property
    def held(self) -> Held | None:
        """The turn of the server, if there is one."""
        return self._hold.held

    def take(self, begun: Begun) -> None:
        """Answer this turn from now on; its message is known to the session."""
        self._hold, self._answer = begun.hold, None
        self._given = begun.content if begun.hold.held is not None else None

    def tell(self, message: Message) -> None:
        """Tell of a message that is on disk. An answer waits: it may be the end of the turn, which brings it."""
        self._shown, self._reply, self._differs = "", "", False
        given = self._given if message.role == "user" else None
        if message.role == "user":
            self.chunk("message", "user", content=message.content)
            self._given = None
        if given == message.content:
            return
        if not (self._answer is not None and message.content.startswith(self._answer.content)):
            self._release()  # else it is the same answer, gone on with
        if message.role == "assistant" and not message.tool_calls:
            self._answer = message
        else:
            self._hold.message(message)

    def say(self, event: AgentEvent) -> None:
        """Tell of what happens, as it happens."""
        match event:
            case Text(text):
                self._text(text)
            case Retrying():
                self._reply, self._differs = "", False
            case Thinking(text):
                self.chunk("thinking", content=text)
            case CallStarted(call):
                self.chunk("call", call=call, name=call.name)
            case CallFinished(call, result):
                self.chunk("result", "tool", content=result.text, tool_call_id=call.id, name=call.name)

    def _text(self, text: str) -> None:
        """Say a piece of a reply. Where the reply was asked for again, what was said before is not said twice."""
        self._reply += text
        if self._differs:
            self.chunk("text", content=text)
        elif self._reply.startswith(self._shown):
            new, self._shown = self._reply[len(self._shown) :], self._reply
            self._hold.text(new)
            self.chunk("text", content=new)
        elif not self._shown.startswith(self._reply):  # another reply: the session shows it when it is whole
            self._differs = True
            self.chunk("text", content=f"\n{self._reply}")

    def chunk(self, kind: ChunkKind, role: Any = "assistant", **parts: Any) -> None:
        """Say a chunk."""
        self._chunks.say(self._session_id, self._agent_name, kind, role, **parts)

    async def turn_over(self, reply: str) -> None:
        """End the turn, as another one follows."""
        self._release()
        hold, self._hold = self._hold, LocalHold()
        await hold.finish(reply, Usage())

    async def finish(self, report: Report, language: Language) -> None:
        """End the turn by the report; raises the error of an outage. Other errors are logged: the report stands."""
        hold, self._hold = self._hold, LocalHold()
        reply = report.summary if report.ok else report.text(language)
        answer, self._answer = self._answer, None
        if answer is not None and answer.content != reply:
            hold.message(answer)
        error = None
        if report.status in ("failed", "cancelled"):
            error = "; ".join(report.reasons) or report.summary or report.status
        try:
            await hold.finish(reply, report.usage, error=error)
        except CfsError as problem:
            if is_outage(problem):
                raise
            _log.warning("strand.turn_not_finished", session=self._session_id, reason=str(problem))
        finally:
            await hold.close()

    async def close(self) -> None:
        """Let go of the turn, as another process will go on with it."""
        hold, self._hold = self._hold, LocalHold()
        await hold.close()

    def _release(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._hold.message(answer)


def said_since(messages: Sequence[Message], content: str) -> list[Message]:
    """Return the messages that answer the last one with this content; an answer at the end waits for the turn's end."""
    for back in range(len(messages) - 1, -1, -1):
        if messages[back].role == "user" and messages[back].content == content:
            said = list(messages[back + 1 :])
            if said and said[-1].role == "assistant" and not said[-1].tool_calls:
                said.pop()
            return said
    return []
