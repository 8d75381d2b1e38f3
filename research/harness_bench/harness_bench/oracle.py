"""A model that knows what is to be done: a server of chat completions that plays a task, and what goes wrong in it."""

import json
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from harness_bench.dialects import Call, Dialect, arguments_text
from harness_bench.tasks import EFFECTS, Action, Child, Fault, Task

_MARK = re.compile(r"reply_(\d+)_\d+")
_UNSURE = re.compile(
    r"interrupt|may have|perhaps|not known|unknown whether|restart|cancelled|was lost|has no result", re.IGNORECASE
)
_REFUSED = re.compile(r"refused|not overwritten|error|cannot|already exists", re.IGNORECASE)
_PART = re.compile(r"part-\d+: \w+")
"""A line of the file that children share, as it stands in the result of a read."""
_TOGETHER_SECONDS = 5.0
"""How long a child that has read the shared file waits until the others have, before it changes the file."""
_REPLY_TOKENS = 20
PRICE = (5.0, 20.0)
"""What a million tokens of prompts and of replies cost, in US dollars."""
_CONTEXT = 512_000
"""Characters of a request that the model can read: some 128,000 tokens."""
_GUESS = "a guess"
_LONGEST_LOOP = 400
"""Requests after which a harness that repeats a step for ever is ended."""


@dataclass(slots=True)
class Play:
    """One run of one harness: what it is to do, what goes wrong, and what was seen of it.

    `requests` are the bodies without what changes nothing; `gaps` the seconds between a reply and the next request.
    """

    task: Task
    fault: Fault | None
    dialect: Dialect
    requests: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    others: int = 0
    faulted: int = 0
    spent: float = 0.0
    reached: threading.Event = field(default_factory=threading.Event)
    proceed: threading.Event = field(default_factory=threading.Event)
    exhausted: bool = False
    _replied_at: float | None = None
    _together: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self._together = threading.Barrier(max(1, len(self.task.children)))

    @property
    def characters(self) -> int:
        """Characters sent in all requests."""
        return sum(map(len, self.requests))

    @property
    def fresh(self) -> int:
        """Characters that were not a prefix already sent in this run: what a cache of prefixes cannot save."""
        fresh, before = 0, ""
        for request in self.requests:
            fresh += len(request) - _common(before, request)
            before = request
        return fresh

    def reply(self, body: dict[str, Any]) -> "Reply":
        """Decide what the model says to this request."""
        if self._replied_at is not None:
            self.gaps.append(time.perf_counter() - self._replied_at)
        messages = body.get("messages", [])
        request = json.dumps([body.get("tools"), messages], ensure_ascii=False)
        self.requests.append(request)
        tokens = len(request) // 4
        self.spent += (tokens * PRICE[0] + _REPLY_TOKENS * PRICE[1]) / 1e6
        reply = replace(self._decide(messages, body), tokens=tokens)
        self._replied_at = time.perf_counter()
        return reply

    def _decide(self, messages: Sequence[dict[str, Any]], body: dict[str, Any]) -> "Reply":
        said = json.dumps(messages, ensure_ascii=False)
        order = next((str(message.get("content")) for message in messages if message.get("role") == "user"), "")
        if child := next((child for child in self.task.children if child.words in order), None):
            return self._of_child(child, messages, said)
        names = {tool["function"]["name"] for tool in body.get("tools") or ()}
        at = 1 + max((int(number) for number in _MARK.findall(said)), default=-1)
        if names == {"sync_context"}:  # the file agent's own turn for its context window
            window = f"# Current Task\n{self.task.words}\n# Working Memory\ndone up to reply_{at - 1}_0\n"
            return Reply((Call("sync_context", {"new_context_content": window}),), mark=f"sync_{at}")
        if len(said) > _CONTEXT:
            return Reply((), status=400)
        fault = self.fault
        if fault is not None and fault.kind == "same step for ever" and at >= fault.at:
            self.exhausted = len(self.requests) > _LONGEST_LOOP
            return self._spoken(self.task.replies[fault.at], fault.at) if not self.exhausted else Reply((), status=500)
        if fault is not None and fault.kind == "same words for ever" and at >= fault.at:
            return Reply((), text="and then we go on, " * 600, finish="length")
        if fault is not None and at == fault.at and not self.faulted:
            self.faulted += 1
            broken = self._broken(fault, at)
            if broken is not None:
                return broken
        last = messages[-1] if messages else {}
        if last.get("role") == "tool" and _UNSURE.search(str(last.get("content"))):
            return Reply((self.dialect.call(Action("run", f"cat {EFFECTS}")),), mark=f"look_{at}")
        if self.task.children and self.dialect.fan_out is not None:
            starts = self.dialect.fan_out(self.task.children)
            return self._called(starts[at], at) if at < len(starts) else self._spoken(self.task.replies[-1], at)
        number = self._after_looking(messages, at)
        actions = [self._knowing(action, number, said) for action in self.task.replies[number]]
        if actions[0].kind == "mcp":
            return self._remote(actions[0], body, at, said)
        return self._spoken(actions, at, mark=f"redone-reply_{number}" if number < at else "")

    def _of_child(self, child: Child, messages: Sequence[dict[str, Any]], said: str) -> "Reply":
        """Say what a child does next. It reads a file again that it was not allowed to replace, then tries again."""
        at = 1 + max((int(number) for number in _MARK.findall(said)), default=-1)
        last = messages[-1]
        tries = said.count('"call_again')
        if last.get("role") == "tool" and at > 1 and child.replies[at - 1][0].kind in ("edit", "rewrite"):
            change = child.replies[at - 1][0]
            if "call_again-read" in str(last.get("tool_call_id")):
                return self._spoken([self._change(change, messages)], at, mark=f"again-write_{tries}")
            if _REFUSED.search(str(last.get("content"))):
                return self._spoken([Action("read", change.name)], at, mark=f"again-read_{tries}")
        actions = child.replies[min(at, len(child.replies) - 1)]
        if actions[0].kind in ("edit", "rewrite"):
            with suppress(threading.BrokenBarrierError):  # a harness that runs one child after the other
                self._together.wait(_TOGETHER_SECONDS)
        return self._spoken([self._change(action, messages) for action in actions], at)

    def _change(self, action: Action, messages: Sequence[dict[str, Any]]) -> Action:
        """Return a change of the shared file in a form that the harness has; it writes what it has last read."""
        if action.kind not in ("edit", "rewrite"):
            return action
        if "edit" in self.dialect.changes and (action.kind == "edit" or "rewrite" not in self.dialect.changes):
            return replace(action, kind="edit")
        results = [_PART.findall(str(message)) for message in messages if message.get("role") != "assistant"]
        lines: list[str] = next((parts for parts in reversed(results) if parts), [])
        whole = "".join(f"{line}\n" for line in lines).replace(action.old, action.content)
        return Action("write", action.name, whole)

    def _called(self, calls: Sequence[Call], at: int) -> "Reply":
        """Make calls that are no actions, such as starting children."""
        if self.dialect.code is None:
            return Reply(tuple(calls), mark=f"reply_{at}")
        lines = [f"print({call.name}(**{call.arguments!r}))" for call in calls]
        return Reply((), text="\n".join(["Thought: call them.", "<code>", f"# reply_{at}_0", *lines, "</code>"]))

    def _knowing(self, action: Action, number: int, said: str) -> Action:
        """Return the action as a model does it that knows only what it has read."""
        text = self.task.seen.get(number, "")
        obeys = bool(self.task.below) and said.find(self.task.below) > said.find(self.task.words)
        if (text in said and not obeys) or action.kind == "answer":
            return action
        return Action("write", next(iter(self.task.files)), _GUESS)

    def _remote(self, action: Action, body: dict[str, Any], at: int, said: str) -> "Reply":
        """Call a tool of MCP by the name that the harness gave it, after a search where it offers one."""
        arguments = json.loads(action.content)
        if self.dialect.code is not None:
            return self._called([Call(action.name, arguments)], at)
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        name = next((name for name in names if name.endswith(action.name)), None)
        if name is not None:
            return Reply((Call(name, arguments),), mark=f"reply_{at}")
        if "search_tools" not in names:
            return self._spoken([Action("write", next(iter(self.task.files)), _GUESS)], at)
        searched = re.search(rf"[\w-]*{action.name}\b", said)
        if searched is None:
            query = {"query": action.name.replace("_", " ")}
            return Reply((Call("search_tools", query),), mark=f"search_{at}")
        return Reply((Call("call_tool", {"tool": searched[0], "arguments": arguments}),), mark=f"reply_{at}")

    def _after_looking(self, messages: Sequence[dict[str, Any]], at: int) -> int:
        """Do a step again whose effect, when looked at, was not there."""
        if len(messages) > 1 and "look_" in json.dumps(messages[-2]) and at:
            last_action = self.task.replies[at - 1][0]
            effect = re.search(r"effect-\d+", last_action.name)
            if effect and effect[0] not in str(messages[-1].get("content")):
                return at - 1
        return min(at, len(self.task.replies) - 1)

    def _spoken(self, actions: Sequence[Action], at: int, mark: str = "") -> "Reply":
        mark = mark or f"reply_{at}"
        if self.dialect.code is not None:
            return Reply((), text=self.dialect.code(actions).replace("<code>\n", f"<code>\n# {mark}_0\n"))
        return Reply(tuple(map(self.dialect.call, actions)), mark=mark)

    def _broken(self, fault: Fault, at: int) -> "Reply | None":
        right = self._spoken(self.task.replies[at], at)
        call = next((call for call in right.calls if isinstance(call, Call)), Call("python", {"code": "print(1)"}))
        match fault.kind:
            case "empty reply":
                return Reply((), text="")
            case "HTTP 500":
                return Reply((), status=500)
            case "HTTP 429":
                return Reply((), status=429)
            case "connection cut":
                return Reply(right.calls, text=right.text, mark="cut", cut=True)
            case "broken arguments":
                if self.dialect.code is not None:
                    return Reply((), text="Thought: go on.\n<code>\nprint('open\n</code>")
                return Reply((call,), mark="broken", raw=arguments_text(call)[:-3])
            case "unknown tool":
                if self.dialect.code is not None:
                    return Reply((), text="Thought: go on.\n<code>\nuse_magic(path='x')\n</code>")
                return Reply((Call("use_magic", {"path": "x"}),), mark="unknown")
            case "call cut off":
                if self.dialect.code is not None:
                    return Reply((), text="Thought: go on.\n<code>\nwrite_file(path='do", finish="length")
                return Reply((call,), mark="short", raw=arguments_text(call)[:8], finish="length")
            case "call as text":
                return Reply((), text=f'<tool_call>{{"name": "{call.name}", "arguments": {{"comm</tool_call>')
            case "kill -9 between steps":
                self.reached.set()
                self.proceed.wait(30)
                return None
            case _:
                return None


def _common(one: str, other: str) -> int:
    """Return the length of what both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes over the wire: calls or text, or an error status.

    `raw` replaces the JSON of the first call's arguments. With `cut` the connection ends in the middle.
    """

    calls: tuple[Call | str, ...]
    text: str = ""
    mark: str = ""
    raw: str | None = None
    finish: str = ""
    status: int = 200
    cut: bool = False
    tokens: int = 0

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of the request and of the reply."""
        total = self.tokens + _REPLY_TOKENS
        return {"prompt_tokens": self.tokens, "completion_tokens": _REPLY_TOKENS, "total_tokens": total}

    def message(self) -> dict[str, Any]:
        """Return the assistant's message in the form of the OpenAI API."""
        text = self.text + "".join(call for call in self.calls if isinstance(call, str))
        calls = [
            {
                "id": f"call_{self.mark}_{number}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": self.raw if self.raw is not None and number == 0 else arguments_text(call),
                },
            }
            for number, call in enumerate(self.calls)
            if isinstance(call, Call)
        ]
        return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _finish(reply: Reply, message: dict[str, Any]) -> str:
    return reply.finish or ("tool_calls" if "tool_calls" in message else "stop")


class _Handler(BaseHTTPRequestHandler):
    """Answers for the plays of its server."""

    server: "_Server"
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is the base's
        pass

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [{"id": "oracle", "object": "model"}]})

    def do_POST(self) -> None:
        with suppress(ConnectionError):  # a harness that was killed, or has read enough
            self._answer()

    def _answer(self) -> None:
        run, _, rest = self.path.strip("/").partition("/")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        play = self.server.plays[run]
        if not rest.endswith("chat/completions"):
            play.others += 1
            self._json({"error": {"message": "not here", "type": "invalid_request_error"}}, 404)
            return
        reply = play.reply(body)
        if reply.status != 200:
            error = {"message": f"the fault of this test: {reply.status}", "type": "server_error"}
            self._json({"error": error}, reply.status, {"Retry-After": "1"})
        elif body.get("stream"):
            self._stream(reply)
        else:
            self._whole(reply)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def _whole(self, reply: Reply) -> None:
        message = reply.message()
        choice = {"index": 0, "message": message, "finish_reason": _finish(reply, message)}
        value = {**_head("chat.completion"), "choices": [choice], "usage": reply.usage}
        self._json(value, cut=reply.cut)

    def _stream(self, reply: Reply) -> None:
        message = reply.message()
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": message["content"]}]
        for number, call in enumerate(message.get("tool_calls", ())):
            deltas.append({"tool_calls": [{"index": number, **call}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for delta in deltas:
            self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if reply.cut:
            return
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply, message)}]})
        self._event({"choices": [], "usage": reply.usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps({**_head('chat.completion.chunk'), **value})}\n\n".encode())
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    """Listens on a free port of this machine."""

    daemon_threads = True

    def __init__(self, plays: dict[str, Play]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.plays = plays


class Oracle:
    """The server, in a thread: use it in `with`. Each run has a path of its own, `/RUN/v1`."""

    def __init__(self) -> None:
        self.plays: dict[str, Play] = {}
        self._server = _Server(self.plays)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, run: str) -> str:
        """Return the base address of a run, without `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{run}"


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-oracle", "object": kind, "created": 0, "model": "oracle"}
