"""Two commands from a fresh clone to the reply of a real model, and a third that sends the message."""

from pathlib import Path

import pytest

from cfs_server.engine.host.models import EMBEDDED, resolve
from tests.connect.support import Machine, OllamaStub, copy_to, ollama, service
from tests.server.support import free_port
from tests.upstream.stub import MODEL


@pytest.fixture
def started(machine: Machine) -> Machine:
    """A machine on which `scripts/up --background` has run: that is `cfs up`, once all is installed."""
    port = free_port()
    machine.env |= {"CFS_PORT": str(port), "CFS_URL": f"http://127.0.0.1:{port}"}
    return machine


def up(machine: Machine) -> str:
    """Start the server in the background; what the user sees."""
    done = machine.run("up", "--no-mount", "--background")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_of_this_machine_answers(started: Machine) -> None:
    with ollama(started, OllamaStub()):
        try:
            assert f"Model: {EMBEDDED}, a toy" in up(started)
            table = started.connect("--yes").stdout
            assert f"{MODEL} " in table
            assert started.run("send", "first", "hello from Ollama").stdout.strip() == "hello from Ollama"
        finally:
            started.run("down")
        try:
            assert f"Model: {MODEL}.\n" in up(started)
        finally:
            started.run("down")


def test_a_service_answers_whose_key_is_in_the_shell(started: Machine) -> None:
    with service(started) as stub:
        try:
            up(started)
            started.connect("--yes")
            assert started.run("send", "first", "hello from afar").stdout.strip() == "hello from afar"
        finally:
            started.run("down")
    assert len(stub.bodies) == 2  # the trial, and the message


def test_a_file_in_a_usual_folder_answers(started: Machine) -> None:
    copy_to(resolve(None).path, started.home / "cache/llama.cpp/copy-of-demo.gguf")
    try:
        up(started)
        started.connect("--yes")
        assert "Carol" in started.run("send", "first", "My name is Carol.").stdout
        ps = started.run("model", "ps").stdout.splitlines()
        assert ps[1].startswith("copy-of-demo ")
    finally:
        started.run("down")


def test_smollm2_in_a_usual_folder_answers(started: Machine, smollm2: Path) -> None:
    target = started.home / ".lmstudio/models/owner/repo" / smollm2.name
    target.parent.mkdir(parents=True)
    target.symlink_to(smollm2)
    try:
        up(started)
        started.connect("--yes")
        assert started.run("send", "first", "--set", "max_tokens=8", "Hello!").stdout.strip()
    finally:
        started.run("down")
