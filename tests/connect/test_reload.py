"""A running server takes changes of its file of models: turns go on, and what cannot be used changes nothing."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from cfs_server.engine.host.models import EMBEDDED
from tests.connect.support import Machine, OllamaStub, Server, ollama, service
from tests.models.support import table
from tests.server.support import TEXT
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import MODEL, served_aside


def write(machine: Machine, *tables: str) -> None:
    """Write the file by hand."""
    machine.file.parent.mkdir(parents=True, exist_ok=True)
    machine.file.write_text("\n".join(tables) + "\n")


def upstream(name: str, url: str, **keys: object) -> str:
    """Write a model behind a stub."""
    return table(name, upstream=url, upstream_model=MODEL, check=False, **keys)


def until(server: Server, holds: Callable[[list[str]], bool]) -> list[str]:
    """Ask for the models until something holds of their names. The test's time-out is the limit."""
    pause = threading.Event()
    while not holds(names := server.names()):
        pause.wait(0.05)
    return names


def test_without_a_file_all_is_as_it_was(machine: Machine) -> None:
    with machine.serving() as server:
        assert server.names() == [EMBEDDED]
        assert server.client.get("/readyz").json()["model"]["embedded"] is True
        assert "model=" not in server.client.get("/metrics").text
        assert server.client.post("/v1/chat/completions", json={"model": "any", "messages": []}).status_code != 404


def test_a_model_that_is_connected_answers_without_a_restart(machine: Machine) -> None:
    with machine.serving() as server, ollama(machine, OllamaStub()):
        done = machine.connect("ollama")
        assert f"answers with {MODEL} now" in done.stderr
        assert server.names() == [MODEL, EMBEDDED]
        assert server.reply("new", "three words here") == "three words here"
        assert "Alice" in server.reply("old", "My name is Alice.", model=EMBEDDED)
        machine.connect("--remove", MODEL)
        assert server.names() == [EMBEDDED]


def test_the_file_is_read_when_it_changes(machine: Machine) -> None:
    with served_aside(OpenAIStub(key=None)) as url, machine.serving() as server:
        write(machine, upstream("by-hand", url))
        assert until(server, lambda names: names[0] == "by-hand") == ["by-hand", EMBEDDED]
        machine.file.unlink()
        assert until(server, lambda names: len(names) == 1) == [EMBEDDED]


def test_the_file_is_there_at_the_next_start(machine: Machine) -> None:
    with ollama(machine, OllamaStub()):
        machine.connect("ollama")
        with machine.serving() as server:
            assert server.names() == [MODEL, EMBEDDED]
            assert server.reply("chat", "hello there") == "hello there"
            assert server.client.get("/readyz").json()["model"]["name"] == MODEL


def test_a_model_of_flags_wins(machine: Machine) -> None:
    with ollama(machine, OllamaStub()) as url:
        machine.connect("ollama")
        with machine.serving("--upstream", url, "--upstream-model", MODEL) as server:
            assert server.names() == [MODEL]
            assert server.client.get("/v1/connections").status_code == 409


def test_a_broken_file_is_one_log_line_and_the_models_stay(machine: Machine) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(served_aside(OpenAIStub(key=None)))
        server = stack.enter_context(machine.serving())
        write(machine, upstream("good", url))
        until(server, lambda names: "good" in names)
        write(machine, "[[models]")
        assert str(machine.file) in server.connections()["problem"]
        assert server.names() == ["good", EMBEDDED]
        assert server.reply("chat", "still here") == "still here"
        write(machine, upstream("good", url), upstream("better", url))
        assert until(server, lambda names: "better" in names) == ["good", "better", EMBEDDED]
        assert server.connections()["problem"] == ""
        server.process.process.terminate()
        log = server.process.ended()[1]
        assert len([line for line in log.splitlines() if "models.unusable" in line]) == 1


def test_a_model_without_its_key_is_left_out_and_says_so(machine: Machine) -> None:
    with machine.serving() as server, service(machine):
        done = machine.run("connect", "openai")
        assert done.returncode == 1
        assert "the variable OPENAI_API_KEY is not set" in done.stderr
        assert server.names() == [EMBEDDED]
        (connection,) = server.connections()["connections"]
        assert (connection["usable"], "OPENAI_API_KEY" in connection["reason"]) == (False, True)
        with machine.serving() as restarted:
            assert restarted.names() == [MODEL, EMBEDDED]
            assert restarted.reply("chat", "with a key") == "with a key"


def test_a_running_turn_ends_although_its_model_is_gone(machine: Machine) -> None:
    slow, quick = OpenAIStub(key=None), OpenAIStub(key=None)
    slow.pace = 0.05
    with served_aside(slow) as slow_url, served_aside(quick) as quick_url, machine.serving() as server:
        write(machine, upstream("slow", slow_url))
        until(server, lambda names: "slow" in names)
        words = " ".join(f"word{number}" for number in range(60))
        stream = {"Accept": "text/event-stream"}
        with server.client.stream("POST", "/v1/sessions/chat/messages", content=words, headers=stream) as reply:
            lines = reply.iter_lines()
            while "word3" not in next(lines):
                pass
            write(machine, upstream("quick", quick_url))
            assert server.connections()["default"] == "quick"
            assert server.names() == ["quick", EMBEDDED]
            assert server.reply("other", "quick answer") == "quick answer"
            for _ in lines:
                pass
        transcript = server.client.get("/v1/sessions/chat", params={"wait": 60}, headers=TEXT).text
        assert transcript == f"User: {words}\nAssistant: {words}\n"


def test_a_model_whose_entry_stays_keeps_its_worker(machine: Machine, tiny: Path) -> None:
    with served_aside(OpenAIStub(key=None)) as url, machine.serving() as server:
        write(machine, table("tiny", model=str(tiny)))
        until(server, lambda names: "tiny" in names)
        server.reply("chat", "hello", max_tokens=4)
        workers = psutil.Process(server.process.process.pid).children(recursive=True)
        write(machine, table("tiny", model=str(tiny)), upstream("more", url))
        until(server, lambda names: "more" in names)
        assert all(worker.is_running() for worker in workers)
        own = [worker for worker in workers if "cfs-demo" not in worker.cmdline()]
        write(machine, upstream("more", url))
        until(server, lambda names: "tiny" not in names)
        while len(psutil.wait_procs(own, timeout=0.05)[1]) == len(own):
            pass  # the test's time-out is the limit
