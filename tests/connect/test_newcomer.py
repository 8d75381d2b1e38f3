"""Two commands from a fresh clone to the reply of a real model, and a third that sends the message."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cfs_server.engine.host.models import EMBEDDED, resolve
from tests.connect import bare
from tests.connect.support import Machine, OllamaStub, copy_to, ollama, service
from tests.server.support import CFS, free_port
from tests.upstream.stub import MODEL

bare_machine = pytest.mark.skipif(bare.obstacle() is not None, reason=f"no bare machine: {bare.obstacle()}")
CONNECT_AND_ASK = "cfs connect; cfs 'hello from a bare machine'; cfs down"


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


def answers_from_the_usual_ports(shown: str) -> None:
    """What the user has seen: a toy, then the models of both servers, then the reply of the first."""
    assert f"Model: {EMBEDDED}, a toy" in shown
    table = [line.split()[:3] for line in shown.splitlines() if line.endswith(" works")]
    assert table == [["1", MODEL, "Ollama,"], ["2", bare.OTHER_MODEL, "llama-server,"]]
    assert shown.splitlines()[-1] == "hello from a bare machine"


@bare_machine
def test_model_servers_are_found_at_their_usual_ports(tmp_path: Path) -> None:
    """`cfs up` is what `scripts/up` runs once all is installed."""
    script = f"PATH={CFS.parent}:$PATH; cfs up --no-mount --background; {CONNECT_AND_ASK}"
    answers_from_the_usual_ports(bare.run(script, tmp_path, tmp_path))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels that the installation needs: the bare machine cannot reach a package index."""
    folder = tmp_path_factory.mktemp("wheels")
    flags = subprocess.run([bare.ROOT / "scripts/lib/llama-flags"], capture_output=True, text=True, check=True).stdout
    needed = (f"{bare.ROOT}[server,fuse,webdav,agents]", "hatchling", "editables")
    command = (sys.executable, "-m", "pip", "wheel", "-q", "-c", bare.ROOT / "constraints.txt", "-w", folder, *needed)
    subprocess.run(command, check=True, env=os.environ | {"CMAKE_ARGS": flags.strip()})
    return folder


@pytest.mark.slow  # a whole installation: minutes
@pytest.mark.timeout(1800)
@bare_machine
def test_a_fresh_clone_answers(tmp_path: Path, wheels: Path) -> None:
    """As the README says; a second `scripts/up` installs nothing and names the connected model."""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", bare.ROOT, tmp_path / "cfs"], check=True)
    up = 'scripts/up --background; eval "$(scripts/env)"'
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    shown = bare.run(f"{up}; {CONNECT_AND_ASK}; echo AGAIN; {up}; cfs down", home, tmp_path / "cfs", **offline)
    first, _, second = shown.partition("AGAIN\n")
    answers_from_the_usual_ports(first)
    assert "is installed in .venv" in second
    assert f"Model: {MODEL}.\n" in second
