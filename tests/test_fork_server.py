"""Programs of the fork server are as those that a new interpreter runs."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.fork_server import CFS, Program, asyncio_programs, run
from tests.server.support import environment

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
