"""Measure whether tasks of agents survive outages: of the network, and of the server, which loses its sessions.

    python bench/outages.py [--outages 30] [--restarts 20] [--longest 20] [--parallel 4] [--json FILE] [--docs]

Each task is one of `cfs agent run`, or one of `cfs agent serve` that becomes two agents, against a real `cfs serve`
whose model is a scripted upstream. Its commands append a line each to a file. At a random moment of it the way to the
server is cut for 1 to 20 s (a proxy on loopback closes its connections and refuses new ones), or the server is killed
(`kill -9` or SIGTERM) and started again on its port, in every third case with an empty store. In every fifth case the
agent's process is killed, too, in the middle of the outage, and started again. A task has finished when its answer is
there; a line that is there twice is a command that was run twice.
"""

import argparse
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import httpx

from ports import free_port

CFS = Path(sys.executable).with_name("cfs")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
ANSWER = "All of it is done."
_SECONDS = 240.0
"""How long a task may take in all."""

Kind = Literal["run", "serve"]
Fault = Literal["outage", "kill -9", "SIGTERM", "upstream"]
"""What goes away: the network, the server by a signal, or the model behind it."""


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to one task. `at` counts from its first reply on; times are in seconds."""

    name: str
    fault: Fault
    kind: Kind
    at: float
    length: float
    killed: bool
    """Whether the agent's process is killed in the middle of it, and started again."""
    kept: bool = False
    """Whether a server that is started again has its sessions."""


@dataclass(slots=True)
class Result:
    """What came of it."""

    case: Case
    finished: bool
    twice: int
    missing: int
    seconds: float
    problems: list[str] = field(default_factory=list)


# -- the model --------------------------------------------------------------------------------------------------------


def _command(task: str, number: object) -> tuple[str, dict[str, Any]]:
    return "execute_command", {"command": f"echo {task}-{number} >> effects; sleep 0.2"}


def script(task: str, role: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of one agent of a task, in their order; after them it answers."""
    if role == "run":
        return [_command(task, number) for number in range(5)]
    if role == "child":
        done = {"status": "success", "summary": "child done", "details": {}}
        return [*(_command(task, f"child{number}") for number in range(3)), ("sys_finish_task", done)]
    child = {
        "agent_name": "child",
        "role_description": "works",
        "system_instruction": "Work.",
        "task_goal": f"TASK {task} child",
    }
    return [_command(task, 0), ("sys_spawn_agent", child), ("sys_wait_agent", {"agent_id": "child"}), _command(task, 1)]


def effects(kind: Kind) -> int:
    """How many lines the commands of a task write."""
    roles = ["run"] if kind == "run" else ["serve", "child"]
    return sum(name == "execute_command" for role in roles for name, _ in script("", role))


class Upstream:
    """A chat-completions server that plays the scripts, slowly. Where it is it reads in the conversation."""

    def __init__(self, pause: float = 0.04) -> None:
        self.seen: set[str] = set()
        """Tasks of which the model has been asked something."""
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("application/json", json.dumps({"data": [{"id": "scripted"}]}).encode())

            def do_POST(self) -> None:
                raw = self.rfile.read(size := int(self.headers["Content-Length"]))
                self.close_connection = True
                if len(raw) < size:  # the sender was killed
                    return
                body = json.loads(raw)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                with suppress(OSError):  # the reader has left
                    for piece in upstream.reply(body["messages"]):
                        if upstream.away:
                            break
                        self.wfile.write(b"data: " + piece + b"\n\n")
                        self.wfile.flush()
                        time.sleep(pause)

            def _answer(self, kind: str, data: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._handler = Handler
        self._port = free_port()
        self.mend()
        self.url = f"http://127.0.0.1:{self._port}/v1"

    def cut(self) -> None:
        """Break off all replies, and refuse connections."""
        self.away = True
        self.close()

    def mend(self) -> None:
        """Answer again."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler)
        self._server.daemon_threads = True
        self.away = False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reply(self, messages: Sequence[dict[str, Any]]) -> Iterator[bytes]:
        """Stream the next reply of a conversation: a few words, then a call or the answer."""
        texts = [str(message.get("content")) for message in messages if message["role"] == "user"]
        task, role = next(found.groups() for text in texts if (found := re.search(r"TASK (\S+) (\w+)", text)))
        self.seen.add(task)
        steps, said = script(task, role), sum(message["role"] == "assistant" for message in messages)
        deltas: list[dict[str, Any]] = [{"content": f"{word} "} for word in f"Step {said} of {task}:".split()]
        if said < len(steps):
            name, arguments = steps[said]
            call = {"index": 0, "id": f"c{said}", "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [call]})
            text = json.dumps(arguments)
            halves = (text[: len(text) // 2], text[len(text) // 2 :])
            deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": half}}]} for half in halves]
        else:
            deltas = [{"content": f"{word} "} for word in ANSWER.split()]
        reason = "tool_calls" if said < len(steps) else "stop"
        for delta in deltas:
            yield chunk(delta)
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        yield chunk({}, reason, usage)
        yield b"[DONE]"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def chunk(delta: dict[str, Any], reason: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    """Write one event of a streamed reply."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}
    return json.dumps(chunk | ({"usage": usage} if usage else {})).encode()


# -- the way to the server, and the server ----------------------------------------------------------------------------


class Proxy:
    """Forwards connections to a port of loopback, until it is cut: then there are none, and new ones are refused."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.port = free_port()
        self._listener = self._listen(self.port)
        self.url = f"http://127.0.0.1:{self.port}"

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target), 5) as server:
            for each in (client, server):  # or small pieces wait for the acknowledgement of those before them
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs |= {client, server}
            try:
                while True:
                    for source in select.select([client, server], [], [])[0]:
                        if not (data := source.recv(65536)):
                            return
                        (server if source is client else client).sendall(data)
            finally:
                with self._lock:
                    self._pairs -= {client, server}

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._pairs:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Forward again."""
        self._listener = self._listen(self.port)


class Server:
    """`cfs serve` on one port, which can be killed and started again."""

    def __init__(self, upstream: str, data: str = "temporary") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._upstream, self._data = upstream, data
        self.start()

    def start(self) -> None:
        """Start it, and return when it listens."""
        command = [str(CFS), "serve", "--port", str(self.port), "--upstream", self._upstream, "--shutdown-grace", "1"]
        self._process = subprocess.Popen(
            [*command, "--log-level", "error"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(self._data),
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith(b"listening"):
            raise RuntimeError("cfs serve does not start")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal."""
        self._process.send_signal(number)
        self._process.communicate()


def _environment(data: str = "temporary") -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CFS_")}
    return ours | {"CFS_DATA_DIR": data}


# -- agents -----------------------------------------------------------------------------------------------------------


class Agent:
    """The process of an agent at a task of a case; it can be killed and resumed."""

    def __init__(self, case: Case, url: str, folder: Path) -> None:
        self._case, self._url, self._folder = case, url, folder
        self._log = (folder / "agent.log").open("ab")
        where = "workspace" if case.kind == "run" else f"{case.name}/agent_workspace"
        self.effects = folder / "root" / where / "effects"
        self._start(*(["run", f"TASK {case.name} run"] if case.kind == "run" else ["serve", "--session", case.name]))

    def _start(self, *arguments: str) -> None:
        where = ["--root", str(self._folder / "root"), "--url", self._url, "--commands", "host"]
        command = [str(CFS), "agent", *arguments, *where]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=_environment())

    def kill(self) -> None:
        """Kill it as the kernel does."""
        self._process.kill()
        self._process.wait()

    def resume(self) -> None:
        """Go on where it was."""
        self._start(*(["run", "--resume"] if self._case.kind == "run" else ["serve", "--session", self._case.name]))

    def wait(self, seconds: float) -> int:
        """Wait for its end."""
        return self._process.wait(seconds)

    def log(self) -> str:
        """Return what it has shown."""
        return (self._folder / "agent.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self._log.close()


def play(case: Case, upstream: Upstream, server: Server, folder: Path) -> Result:
    """Let a task meet its fault, and look what has become of it. A server that is to be killed is the case's own."""
    proxy = Proxy(server.port) if case.fault == "outage" else None
    began = time.monotonic()
    with Agent(case, proxy.url if proxy else server.url, folder) as agent:
        if case.kind == "serve":
            _until(lambda: "an agent answers" in agent.log(), _SECONDS)
            httpx.post(
                f"{server.url}/v1/sessions/{case.name}/messages",
                json={"content": f"TASK {case.name} serve"},
                timeout=60,
            )
        _until(lambda: case.name in upstream.seen, _SECONDS)
        time.sleep(case.at)
        if proxy:
            proxy.cut()
        elif case.fault == "upstream":
            upstream.cut()
        else:
            server.stop(signal.SIGKILL if case.fault == "kill -9" else signal.SIGTERM)
        time.sleep(case.length / 2)
        if case.killed:
            agent.kill()
            agent.resume()
        time.sleep(case.length / 2)
        if proxy:
            proxy.mend()
        elif case.fault == "upstream":
            upstream.mend()
        else:
            server.start()
        finished = _finished(case, agent, server)
        lines = Counter(agent.effects.read_text().splitlines() if agent.effects.exists() else [])
        result = Result(
            case,
            finished,
            twice=sum(count - 1 for count in lines.values()),
            missing=effects(case.kind) - len(lines),
            seconds=time.monotonic() - began,
        )
        result.problems = _problems(result, agent, server)
    return result


def _finished(case: Case, agent: Agent, server: Server) -> bool:
    """Wait for the answer: by the exit code of a run, or in the session that a tree answers."""
    try:
        if case.kind == "run":
            return agent.wait(_SECONDS) == 0 and ANSWER in agent.log()
        _until(lambda: _answers(case, server) != [], _SECONDS)
    except (subprocess.TimeoutExpired, TimeoutError):
        return False
    return True


def _answers(case: Case, server: Server) -> list[str]:
    try:
        detail = httpx.get(f"{server.url}/v1/sessions/{case.name}", timeout=60).json()
    except httpx.HTTPError:
        return []
    said = [message["content"] for message in detail.get("history", ()) if message["role"] == "assistant"]
    return [text for text in said if ANSWER in text] if detail.get("state") == "idle" else []


def _problems(result: Result, agent: Agent, server: Server) -> list[str]:
    """Say what is wrong with what can be seen: on the server each message once, on the console few lines."""
    case, found = result.case, list[str]()
    if not result.finished:
        found.append(f"it did not finish: {agent.log()[-2000:]}")
    if result.missing and not case.killed:
        found.append(f"{result.missing} effects are missing")
    if (waits := agent.log().count("[waiting for")) > 4:
        found.append(f"it said {waits} times that it waits")
    if case.kind == "serve" and result.finished:
        wanted = {case.name: ["TASK", ANSWER], f"{case.name}/child": ["TASK"]}
        with suppress(TimeoutError):  # the tree goes on while what the server has lost is written again
            _until(lambda: not any(_missing(server, session, texts) for session, texts in wanted.items()), 30.0)
        for session, once in wanted.items():
            texts = Counter(json.dumps([m["role"], m["content"], m.get("tool_calls")]) for m in _said(server, session))
            found += [f"{session} shows twice: {text}" for text, count in texts.items() if count > 1]
            found += [f"{session} does not show {text!r}" for text in _missing(server, session, once)]
    return found


def _missing(server: Server, session: str, texts: Sequence[str]) -> list[str]:
    said = _said(server, session)
    return [text for text in texts if not any(text in message["content"] for message in said)]


def _said(server: Server, session: str) -> list[dict[str, Any]]:
    """Return what users and the model have said in a session."""
    history = httpx.get(f"{server.url}/v1/sessions/{session}", timeout=60).json().get("history", [])
    return [message for message in history if message["role"] in ("user", "assistant")]


def _until(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


# -- all of it --------------------------------------------------------------------------------------------------------


def cases(outages: int, restarts: int, longest: float, seed: int) -> list[Case]:
    """Draw the cases: half of the tasks of each kind, every fifth with a kill of the agent."""
    draw, drawn = random.Random(seed), list[Case]()
    for number in range(outages + restarts):
        kind: Kind = "run" if number % 2 else "serve"
        at, killed = draw.uniform(0.0, 3.0), number % 5 == 4
        if number < outages:
            drawn.append(Case(f"outage{number}", "outage", kind, at, draw.uniform(min(1.0, longest), longest), killed))
        else:
            fault: Literal["kill -9", "SIGTERM"] = "SIGTERM" if number % 4 > 1 else "kill -9"
            length, kept = draw.uniform(0.0, min(3.0, longest)), number % 3 != 0
            drawn.append(Case(f"restart{number}", fault, kind, at, length, killed, kept))
    return drawn


@contextmanager
def serving(upstream: Upstream, data: str = "temporary") -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server(upstream.url, data)
    try:
        yield server
    finally:
        server.stop()


def measure(drawn: Sequence[Case], parallel: int) -> list[Result]:
    """Play all cases, some at a time; those that only lose the way share a server."""
    upstream = Upstream()

    def one(case: Case) -> Result:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                if case.fault == "outage":
                    result = play(case, upstream, shared, Path(folder))
                else:
                    with serving(upstream, str(Path(folder, "data")) if case.kept else "temporary") as own:
                        result = play(case, upstream, own, Path(folder))
            except (OSError, httpx.HTTPError) as error:
                result = Result(case, finished=False, twice=0, missing=0, seconds=0.0, problems=[repr(error)])
        wrong = "; ".join(result.problems) or "ok"
        print(f"{case.name} {case.fault} {case.kind} killed={case.killed} {result.seconds:.0f} s: {wrong}", flush=True)
        return result

    try:
        with serving(upstream) as shared, ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(one, drawn))
    finally:
        upstream.close()


def table(results: Sequence[Result]) -> str:
    """Write the table of the documentation."""
    rows = [
        "| what happened | tasks | finished | commands run twice | messages lost or doubled |",
        "|---|--:|--:|--:|--:|",
    ]
    for fault in ("outage", "kill -9", "SIGTERM"):
        for killed in (False, True):
            some = [each for each in results if each.case.fault == fault and each.case.killed == killed]
            if some:
                what = {"outage": "the way to the server is cut", "kill -9": "server killed", "SIGTERM": "server ended"}
                name = what[fault] + (", and the agent killed" if killed else "")
                rows.append(_row(name, some))
    return "\n".join([*rows, _row("together", results)])


def _row(name: str, some: Sequence[Result]) -> str:
    finished, twice = sum(each.finished for each in some), sum(each.twice for each in some)
    wrong = sum(len(each.problems) for each in some if each.finished)
    return f"| {name} | {len(some)} | {finished} | {twice} | {wrong} |"


def main() -> int:
    """Measure, and say what was found; 1 where a task did not finish, or a command was run twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outages", type=int, default=30)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of the longest outage")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    asked = parser.parse_args()
    results = measure(cases(asked.outages, asked.restarts, asked.longest, asked.seed), asked.parallel)
    print(found := table(results))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    if asked.docs:
        page = re.sub(
            r"(?s)(<!-- outages -->\n).*?(<!-- /outages -->)", lambda m: f"{m[1]}{found}\n{m[2]}", PAGE.read_text()
        )
        PAGE.write_text(page)
    return int(any(not each.finished or each.twice or each.problems for each in results))


if __name__ == "__main__":
    sys.exit(main())
