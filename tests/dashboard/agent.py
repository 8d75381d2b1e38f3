"""An agent that a test plays: it says what it is told and when, over the public API."""

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

LEASE = 300.0


class Agent:
    """Holds the turn of one session, from a message to it on."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self.session = session
        self._client = client
        self._place = f"/v1/sessions/{quote(session)}"
        self._turn = ""
        self._claim = ""
        self._calls = 0

    def begin(self, task: str) -> Self:
        """Make the session if need be, give it a task, and claim that."""
        self._post("/v1/sessions", {"id": self.session}, ok=(201, 409))
        answer = self._client.patch(f"{self._place}/settings", json={"driver": "agent"})
        assert answer.status_code == 200, answer.text
        self._post(f"{self._place}/messages", {"content": task}, ok=(202,))
        return self.claim()

    def claim(self) -> Self:
        """Claim the next message."""
        held = self._post(f"{self._place}/claim", {"lease": LEASE, "wait": 20})
        self._turn, self._claim = held["turn"], held["claim"]
        return self

    def say(self, text: str) -> None:
        """Stream some text."""
        self._update(text=text)

    def call(self, tool: str, **arguments: Any) -> str:
        """Add a message that calls a tool; returns the id of the call."""
        self._calls += 1
        call = {"id": f"call-{self._calls}", "name": tool, "arguments": arguments}
        self._update(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}])
        return f"call-{self._calls}"

    def result(self, call: str, tool: str, content: str) -> None:
        """Add the result of a call."""
        self._update(messages=[{"role": "tool", "content": content, "tool_call_id": call, "name": tool}])

    def write(self, path: str, content: str) -> None:
        """Call `write_file`, and add its result."""
        self.result(self.call("write_file", path=path, content=content), "write_file", f"created {path}")

    def think(self, thinking: str, content: str) -> None:
        """Add a message with what was thought before it."""
        self._update(messages=[{"role": "assistant", "content": content, "thinking": thinking}])

    def report(self, **work: Any) -> None:
        """Say how far the work is."""
        self._update(work=work)

    def finish(self, reply: str, prompt_tokens: int = 100, completion_tokens: int = 20) -> None:
        """End the turn."""
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        self._post(f"{self._place}/turns/{self._turn}/finish", {"claim": self._claim, "reply": reply, "usage": usage})

    def decide(self, **decision: Any) -> None:
        """Say what was decided about a call."""
        self._update(decisions=[decision])

    def ask(self, text: str, kind: str = "command") -> str:
        """Ask whether a command may run, or another kind of call; returns the id of the question."""
        new = {"claim": self._claim, "text": text, "kind": kind}
        found = self._post(f"{self._place}/questions", new, ok=(201,))
        return str(found["id"])

    def fail(self, error: str) -> None:
        """End the turn with an error."""
        self._post(f"{self._place}/turns/{self._turn}/finish", {"claim": self._claim, "error": error})

    def _update(self, **news: Any) -> None:
        self._post(f"{self._place}/turns/{self._turn}/update", {"claim": self._claim, "lease": LEASE, **news})

    def _post(self, path: str, body: dict[str, Any], ok: tuple[int, ...] = (200,)) -> dict[str, Any]:
        answer = self._client.post(path, json=body)
        assert answer.status_code in ok, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn:
            self._client.post(f"{self._place}/cancel", json={"queued": True})
