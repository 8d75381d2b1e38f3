"""The output of a sub-agent: to its session on the server, and to the readers of the tree's chunks (B3, B5)."""

from typing import Any

from cfs.errors import CfsError
from cfs.wire import AgentWork, Message, Usage
from cfs_agents.base.events import AgentEvent, CallFinished, CallStarted, Retrying, Text, Thinking
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import Language
from cfs_agents.guards.report import Report
from cfs_agents.loop.retries import is_outage
from cfs_agents.tree.chunks import ChunkKind, ChunkStream
from cfs_agents.tree.no_sessions import NoLease
from cfs_agents.tree.record import LeaseRecord
from cfs_agents.tree.session_backend import ClaimedTurn, TurnLease

_log = get_logger(__name__)


class TurnOutput:
    """Sends a sub-agent's output to its session on the server and to the readers of the tree's chunks (B3, B5).

    Only the end of a turn waits for the server.
    """

    def __init__(self, chunks: ChunkStream, session_id: str, agent_name: str) -> None:
        self._chunks = chunks
        self._session_id = session_id
        self._agent_name = agent_name
        self._lease: TurnLease = NoLease()
        self._given: str | None = None
        self._answer: Message | None = None
        self._shown = ""
        """The sent part of the present reply, including parts of a failed attempt."""
        self._reply, self._differs = "", False

    @property
    def lease(self) -> LeaseRecord | None:
        """The turn of the server, if there is one."""
        return self._lease.record

    def begin(self, turn: ClaimedTurn) -> None:
        """Write to this turn from now on; the session has its message already."""
        self._lease, self._answer = turn.lease, None
        self._given = turn.content if turn.lease.record is not None else None

    def message(self, message: Message) -> None:
        """Send a message that is on disk. An answer waits: it may be the end of the turn, which sends it."""
        self._shown, self._reply, self._differs = "", "", False
        given = self._given if message.role == "user" else None
        if message.role == "user":
            self.chunk("message", "user", content=message.content)
            self._given = None
        if given == message.content:
            return
        if not (self._answer is not None and message.content.startswith(self._answer.content)):
            self._send_answer()  # else it is the same answer, continued
        if message.role == "assistant" and not message.tool_calls:
            self._answer = message
        else:
            self._lease.message(message)

    def work(self, work: AgentWork) -> None:
        """Send what the agent says of its work."""
        self._lease.work(work)

    def event(self, event: AgentEvent) -> None:
        """Send an event of the agent's loop."""
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
        """Send a piece of a reply. If the reply was requested again, nothing is sent twice."""
        self._reply += text
        if self._differs:
            self.chunk("text", content=text)
        elif self._reply.startswith(self._shown):
            new, self._shown = self._reply[len(self._shown) :], self._reply
            self._lease.text(new)
            self.chunk("text", content=new)
        elif not self._shown.startswith(self._reply):  # another reply: the session shows it when it is whole
            self._differs = True
            self.chunk("text", content=f"\n{self._reply}")

    def chunk(self, kind: ChunkKind, role: Any = "assistant", **parts: Any) -> None:
        """Send a chunk to the readers of the tree."""
        self._chunks.send(self._session_id, self._agent_name, kind, role, **parts)

    async def end_turn(self, reply: str) -> None:
        """End the turn, as another one follows."""
        self._send_answer()
        lease, self._lease = self._lease, NoLease()
        await lease.finish(reply, Usage())

    async def finish(self, report: Report, language: Language) -> None:
        """End the turn with the report; raises the error of an outage. Other errors are logged: the report is valid."""
        lease, self._lease = self._lease, NoLease()
        reply = report.summary if report.ok else report.text(language)
        answer, self._answer = self._answer, None
        if answer is not None and answer.content != reply:
            lease.message(answer)
        error = None
        if report.status in ("failed", "cancelled"):
            error = "; ".join(report.reasons) or report.summary or report.status
        try:
            await lease.finish(reply, report.usage, error=error)
        except CfsError as problem:
            if is_outage(problem):
                raise
            _log.warning("sub_agent.turn_not_finished", session=self._session_id, reason=str(problem))
        finally:
            await lease.close()

    async def close(self) -> None:
        """Stop writing to the turn without ending it: another process will continue it."""
        lease, self._lease = self._lease, NoLease()
        await lease.close()

    def _send_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._lease.message(answer)
