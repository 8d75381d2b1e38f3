"""Programs of the fork server are as those that a new interpreter runs."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from tests.client.terminal import Running
from tests.engine.support import ask, running
from tests.fork_server import CFS, Program, asyncio_programs, run
from tests.pacing import SWITCHES
from tests.pacing.gate import Gate
from tests.server.support import environment, serving
from tests.shell_programs import shell_path

SERVE = [str(CFS), "serve", "--port", "0", "--engine", "scripted"]


@pytest.mark.parametrize("variables", [{}, {"PYTHONHASHSEED": "1"}], ids=["fork", "interpreter"])
def test_a_program_is_a_child_with_streams_a_directory_and_an_end(tmp_path: Path, variables: dict[str, str]) -> None:
    """In a fork, and by an interpreter of its own where a variable asks for it."""
    with Program(SERVE, cwd=tmp_path, env=environment(**variables), text=True, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline().startswith("listening on http://127.0.0.1:")
            process = psutil.Process(program.pid)
            assert (process.ppid(), process.cwd()) == (os.getpid(), str(tmp_path))
            assert ("tests.fork_server" in process.cmdline()) == (not variables)
            program.terminate()
            assert (program.communicate(timeout=60)[0], program.returncode) == ("", 0)
        finally:
            program.kill()


def test_each_program_has_arguments_and_variables_of_its_own() -> None:
    for port in ("9", "10"):
        done = run([CFS, "ls"], timeout=60, text=True, env=environment(CFS_URL=f"http://127.0.0.1:{port}"))
        assert (done.returncode, done.stdout) == (3, "")
        assert f"no server answers at http://127.0.0.1:{port} " in done.stderr
    done = run([CFS, "send", "main"], data="", timeout=60, text=True, env=environment())
    assert (done.returncode, "the message is empty" in done.stderr) == (2, True)


def test_a_program_that_is_killed_says_so() -> None:
    with Program(SERVE, stdout=subprocess.PIPE, env=environment()) as program:
        assert program.stdout is not None
        assert program.stdout.readline()
        program.kill()
        assert program.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("gated", [False, True], ids=["no gate", "gate"])
async def test_an_engine_starts_its_worker_as_a_fork(request: pytest.FixtureRequest, gated: bool) -> None:
    """Also one behind a gate, which counts its steps."""
    if gated and any(map(os.environ.get, SWITCHES)):
        pytest.skip("a worker with a gate and another pace needs an interpreter")
    gate: Gate | None = request.getfixturevalue("gate") if gated else None
    async with running(None) as engine:
        worker = psutil.Process((await engine.stats()).worker_pid)
        assert "tests.fork_server" in worker.cmdline()
        assert (await ask(engine, "Hello!", max_tokens=3)).text
        assert gate is None or gate.steps >= 3


def test_a_server_forks_its_worker() -> None:
    """Which has nothing of the server's but the socket to it, and ends with it."""
    with serving() as server:
        (worker,) = psutil.Process(server.process.pid).children()
        assert "tests.fork_server" in worker.cmdline()
        assert worker.net_connections("inet") == []
        assert os.getsid(worker.pid) == worker.pid
        url = f"{server.url}/v1/sessions/main/messages?wait=true"
        assert httpx.post(url, content="Hello!", timeout=60, trust_env=False).json()["reply"]
        worker.kill()
        assert httpx.post(url, content="Hello again!", timeout=60, trust_env=False).json()["reply"]
        (other,) = psutil.Process(server.process.pid).children()
        assert other.pid != worker.pid
    assert psutil.wait_procs([other], timeout=60)[1] == []


def test_a_program_that_starts_a_server_forks_it() -> None:
    """In a group of its own; its output and its end arrive."""
    with Running("", "up", "--no-mount", "--port", "0", "--engine", "scripted") as running:
        running.until("chat1\n")
        (server,) = psutil.Process(running.process.pid).children()
        assert "tests.fork_server" in server.cmdline()
        assert os.getpgid(server.pid) == server.pid
        server.send_signal(signal.SIGKILL)
        assert running.end()[0] == 128 + signal.SIGKILL


def test_a_shell_starts_forks_too(tmp_path: Path) -> None:
    """With its streams, directory and variables; signals reach the program, and its end reaches the shell."""
    path = os.pathsep.join([shell_path(), os.environ["PATH"]])
    lines = """
    cfs serve --port 0 --engine scripted --ready-file ready >listening 2>log & server=$!
    while [ ! -s listening ]; do sleep 0.05; done
    export CFS_URL=$(sed "s/listening on //" listening)
    echo milk | cfs send main
    cfs frobnicate 2>/dev/null || echo "ended with $?"
    kill -INT $server; wait $server; echo "ended with $?"
    cfs ls 2>/dev/null || echo "ended with $?"
    """
    done = subprocess.run(
        ["bash", "-c", lines], cwd=tmp_path, env=environment(PATH=path), capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["milk", "ended with 2", "ended with 0", "ended with 3"], done.stderr


def test_a_program_of_a_shell_that_is_killed_ends(tmp_path: Path) -> None:
    path = os.pathsep.join([shell_path(), os.environ["PATH"]])
    command = [f"{shell_path()}/cfs", *SERVE[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(PATH=path), cwd=tmp_path) as shown:
        assert shown.stdout is not None
        assert shown.stdout.readline().startswith(b"listening on ")
        shown.kill()
        assert shown.stdout.read() == b""  # nothing has its other end any more


async def test_a_library_that_starts_programs_by_asyncio_starts_forks() -> None:
    with asyncio_programs():
        program = await asyncio.create_subprocess_exec(
            *SERVE, stdout=subprocess.PIPE, env=environment(), start_new_session=True
        )
    assert program.stdout is not None
    assert (await program.stdout.readline()).startswith(b"listening on ")
    assert "tests.fork_server" in psutil.Process(program.pid).cmdline()
    assert os.getsid(program.pid) == program.pid
    program.terminate()
    await program.communicate()
    assert program.returncode == 0
