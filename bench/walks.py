"""Count the modules that six common paths through the code pass, and the calls from one module into another.

    scripts/bench walks [--root DIR] [--rounds 5] [--only NAME ...] [--modules] [--json FILE]

Real processes are measured: `cfs serve` with the embedded model and its worker, a mount by FUSE, and `cfs agent serve`
with a tree of agents, whose model is a script behind another `cfs serve`. Each path is taken once before it is counted,
which leaves out what happens only the first time. Of all rounds the smallest count is shown: other events of that time
can only add to it. `crossings.py` says what counts as a call. `--root` measures the packages of another checkout
with the libraries of this one.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from layout import HERE
from watched import PATIENCE, Checkout, Walk, until


def client_of(url: str) -> httpx.Client:
    """Open connections to a server."""
    return httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False)


def message(checkout: Checkout, rounds: int) -> list[Walk]:
    """A message by REST, from the request to the first token of the reply."""
    server, worker = (Walk("a message by REST, to its first token", side) for side in ("server", "engine's worker"))
    with checkout.serving() as (url, pid), client_of(url) as client:
        numbers = iter(range(rounds + 1))

        def way() -> tuple[int, int]:
            path = f"/v1/sessions/m{next(numbers)}/messages"
            began = time.monotonic_ns()
            with client.stream("POST", path, content=b"Hello!", headers={"Accept": "text/event-stream"}) as answer:
                for line in answer.iter_lines():
                    if line == "event: token":
                        ended = time.monotonic_ns()
                        break
                else:
                    raise SystemExit("a reply without a token")
            client.get(path.removesuffix("/messages"), params={"wait": "30"}).raise_for_status()
            return began, ended

        checkout.take(way, rounds, server=(pid, server), worker=(checkout.worker_of(pid), worker))
    return [server, worker]


def fuse(checkout: Checkout, rounds: int) -> list[Walk]:
    """`echo` into a session and `cat` of it, in the process that serves the mount; three words each way."""
    walk = Walk("`echo` and `cat` in the mount", "mount")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("fusermount3"):
        print("no FUSE here: the path through a mount is left out", file=sys.stderr)
        return []
    directory = checkout.folder / "mount"
    directory.mkdir()
    with (
        checkout.serving("--engine", "scripted") as (url, _),
        checkout.running("mount", str(directory), "--url", url) as process,
    ):
        try:
            until(lambda: directory.is_mount() or process.poll() is not None, "a mount")
            if process.poll() is not None:
                raise SystemExit(f"cfs mount does not start:\n{(checkout.folder / 'log').read_text()}")
            numbers = iter(range(rounds + 1))

            def way() -> tuple[int, int]:
                path = directory / f"f{next(numbers)}"
                began = time.monotonic_ns()
                command = 'echo "one two three" > "$0"; cat "$0"'
                done = subprocess.run(["/bin/sh", "-c", command, path], capture_output=True, text=True, check=True)
                assert "Assistant: one two three" in done.stdout, done.stdout
                return began, time.monotonic_ns()

            checkout.take(way, rounds, mount=(process.pid, walk))
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(directory)], check=False, capture_output=True)
    return [walk]


def put(checkout: Checkout, rounds: int) -> list[Walk]:
    """A PUT of a conversation to a new name by WebDAV; nothing is generated."""
    walk = Walk("a PUT by WebDAV", "server")
    with checkout.serving("--engine", "scripted") as (url, pid), client_of(url) as client:
        numbers = iter(range(rounds + 1))

        def way() -> tuple[int, int]:
            began = time.monotonic_ns()
            answer = client.put(f"/dav/sessions/p{next(numbers)}", content=b"User: Hello!\nAssistant: Hello to you.\n")
            assert answer.status_code == 201, answer.text
            return began, time.monotonic_ns()

        checkout.take(way, rounds, server=(pid, walk))
    return [walk]


def denied(checkout: Checkout, rounds: int) -> list[Walk]:
    """A PUT by WebDAV that the grants of its token refuse: decided by its head, as its body is never sent."""
    walk = Walk("a denied PUT by WebDAV", "server")
    secret, tokens = "s" * 43, checkout.folder / "tokens.toml"
    grants = 'grants = [{ prefix = "/sessions/own", ops = ["list", "read", "write"] }]'
    hashed = hashlib.sha256(secret.encode()).hexdigest()
    tokens.write_text(f'[tokens.alice]\nhash = "sha256:{hashed}"\n{grants}\n', encoding="utf-8")
    tokens.chmod(0o600)
    with checkout.serving("--engine", "scripted", "--tokens", str(tokens)) as (url, pid):
        address = urlsplit(url)
        head = (
            f"PUT /dav/sessions/other HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {secret}\r\n"
            "Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n"
        )

        def way() -> tuple[int, int]:
            with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as wire:
                began = time.monotonic_ns()
                wire.sendall(head.encode())
                answer = wire.recv(1 << 16)
                assert answer.startswith(b"HTTP/1.1 404 "), answer
                return began, time.monotonic_ns()

        checkout.take(way, rounds, server=(pid, walk))
    return [walk]


def child(checkout: Checkout, rounds: int) -> list[Walk]:
    """A sub-agent: from its parent's call that starts it, through a file that it writes, to its report's arrival.

    All that the agents' process runs in this time counts: the step of the parent that starts the child and waits, three
    requests of the child to its model with the client that sends them, the rules and the journal of its calls, and the
    parent's next step. What an agent has only because it is a part of a tree, from its creation to its report, is in
    `cfs_agents.tree`; the second figure counts this alone.
    """
    name = "a sub-agent, from its start to its report"
    walk, own = Walk(name, "agents"), Walk(f"{name}: its life in a tree", "agents", "cfs_agents.tree.")
    with ExitStack() as stack:
        model = stack.enter_context(Parent())
        url, _ = stack.enter_context(checkout.serving("--upstream", model.url, "--upstream-model", "scripted"))
        client = stack.enter_context(client_of(url))
        arguments = ["agent", "serve", "--session", "tree", "--root", str(checkout.folder / "trees"), "--url", url]
        agents = stack.enter_context(checkout.running(*arguments))

        def attached() -> bool:
            if agents.poll() is not None:
                raise SystemExit(f"cfs agent serve does not start:\n{(checkout.folder / 'log').read_text()}")
            answer = client.get("/v1/sessions/tree")
            return answer.status_code == 200 and answer.json()["settings"]["driver"] == "agent"

        until(attached, "an agent at its session")
        numbers = iter(range(rounds + 1))

        def way() -> tuple[int, int]:
            model.began = model.ended = 0
            client.post("/v1/sessions/tree/messages", json={"content": f"TASK {next(numbers)}"}).raise_for_status()
            client.get("/v1/sessions/tree", params={"wait": "30"}).raise_for_status()
            until(lambda: bool(model.ended), "the report of a sub-agent")
            return model.began, model.ended

        checkout.take(way, rounds, agents=(agents.pid, walk), tree=(agents.pid, own))
    return [walk, own]


class Parent:
    """A server of chat completions that plays a parent and its child, and notes when the child began and reported."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("application/json", json.dumps({"data": [{"id": "scripted"}]}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                pieces = [json.dumps(piece) for piece in model.reply(body["messages"])]
                self._answer("text/event-stream", "".join(f"data: {each}\n\n" for each in [*pieces, "[DONE]"]).encode())

            def _answer(self, kind: str, data: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reply(self, messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the next reply of a conversation; where it is shows in the messages since the last task."""
        tasks = [(at, found) for at, each in enumerate(messages) if (found := _task(each))]
        at, (number, role) = tasks[-1]
        step = sum(each["role"] == "assistant" for each in messages[at:])
        calls = _calls(number, role)
        if not role and step == 0:
            self.began = time.monotonic_ns()
        elif not role and step == len(calls):
            self.ended = time.monotonic_ns()
        delta: dict[str, Any] = {"content": "All of it is done."}
        if step < len(calls):
            name, arguments = calls[step]
            call = {"name": name, "arguments": json.dumps(arguments)}
            delta = {"tool_calls": [{"index": 0, "id": f"c{step}", "type": "function", "function": call}]}
        yield _chunk(delta)
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        yield _chunk({}, "tool_calls" if step < len(calls) else "stop") | {"usage": usage}


def _task(said: dict[str, Any]) -> tuple[str, str] | None:
    found = re.search(r"TASK (\d+)( child)?", str(said.get("content"))) if said["role"] == "user" else None
    return (found[1], found[2] or "") if found else None


def _calls(number: str, role: str) -> list[tuple[str, dict[str, Any]]]:
    file = f"file{number}.txt"
    if role:
        done = {"status": "success", "summary": "Written.", "details": {"created_files": [file]}}
        return [("write_file", {"path": file, "content": "hello"}), ("sys_finish_task", done)]
    job = {"role_description": "writes", "system_instruction": "Write.", "task_goal": f"TASK {number} child"}
    name = f"child{number}"
    return [("sys_spawn_agent", {"agent_name": name, **job}), ("sys_wait_agent", {"agent_id": name})]


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}


PATHS = message, fuse, put, denied, child
WALKS: dict[str, Callable[[Checkout, int], list[Walk]]] = {path.__name__: path for path in PATHS}


def main() -> None:
    """Measure the paths and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout to measure (default: this one)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each path is counted")
    parser.add_argument("--only", nargs="+", choices=WALKS, default=list(WALKS))
    parser.add_argument("--modules", action="store_true", help="also list the modules that were passed")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    walks: list[Walk] = []
    print("| path | process | modules | calls from one into another | all calls |\n|---|---|--:|--:|--:|")
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="walks-") as folder:
            found = WALKS[name](Checkout(options.root.resolve(), Path(folder)), options.rounds)
        for walk in found:
            counts = " | ".join(f"{min(row):,}" for row in (walk.counts, walk.crossings, walk.calls))
            print(f"| {walk.name} | {walk.process} | {counts} |", flush=True)
        walks += found
    if options.modules:
        for walk in walks:
            print(f"\n{walk.name} ({walk.process}):\n  " + "\n  ".join(sorted(walk.modules)))
    if options.json:
        rows = [asdict(walk) | {"modules": sorted(walk.modules)} for walk in walks]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
