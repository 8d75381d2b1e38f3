"""The two commands of the README, and what they stand on, do what they say (P1)."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ports import free_port

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for path in (ROOT / "scripts").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
PROGRAMS = [*SCRIPTS, ROOT / ".ci/run", ROOT / "examples/tour.sh"]
SHELL = [path for path in PROGRAMS if "bash" in path.read_text().splitlines()[0]]


class Running(NamedTuple):
    """A server that scripts/up started, and what it printed until it was ready."""

    process: subprocess.Popen[str]
    port: int
    printed: list[str]

    @property
    def commands(self) -> list[str]:
        """The commands that it tells the user to try."""
        return [line.strip() for line in self.printed if line.strip().startswith("curl ")]


def shell(command: str, *, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a line as a user would type it."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def start(port: int, *arguments: str) -> Running:
    """Run scripts/up, without a mount that other tests would meet, and read until the three commands are there."""
    process = subprocess.Popen(
        [ROOT / "scripts/up", "--no-mount", *arguments],
        cwd="/",
        env=os.environ | {"PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    running = Running(process, port, [])
    for line in process.stdout:
        running.printed.append(line)
        if len(running.commands) == 3:
            return running
    process.wait(10)
    process.stdout.close()
    pytest.fail("scripts/up ended before it was ready:\n" + "".join(running.printed))


def stop(running: Running) -> int:
    """End a server as a supervisor would, and return its exit status."""
    running.process.send_signal(signal.SIGTERM)
    running.process.communicate(timeout=30)
    return running.process.returncode


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    """One server that scripts/up started, with the embedded model."""
    running = start(free_port())
    yield running
    stop(running)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_program_may_be_run(path: Path) -> None:
    """Each script is executable and names its interpreter."""
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env ")


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shell_script_is_sound(path: Path) -> None:
    """It parses, stops at the first error, is short, and shellcheck (where there is one) has nothing to say."""
    text = path.read_text()
    assert "\nset -euo pipefail\n" in text
    assert 3 <= len(text.splitlines()) <= 45
    assert shell(f"bash -n {path}").returncode == 0
    if shutil.which("shellcheck"):
        assert shell(f"shellcheck {path}").stdout == ""


def test_second_installation_has_nothing_to_do(tmp_path: Path) -> None:
    """With the same pyproject.toml, constraints and Python, pip is not even started."""
    shell(f"{ROOT}/scripts/install server")
    again = shell(f"PIP_LOG={tmp_path / 'pip'} {ROOT}/scripts/install server", cwd=Path("/"))
    assert again.returncode == 0, again.stderr
    assert again.stdout == "CFS [server] is installed in .venv.\n"
    assert list(tmp_path.iterdir()) == []


def test_python_that_is_too_old_is_told_in_a_sentence(tmp_path: Path) -> None:
    """Nobody gets a stack trace for an interpreter that we do not support."""
    old = tmp_path / "python-of-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = shell(f"PYTHON={old} {ROOT}/scripts/lib/find-python")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr


def test_bench_without_a_name_says_which_there_are() -> None:
    """The list holds each benchmark of `bench/` and `research/` once, and nothing that is no benchmark."""
    done = shell(f"{ROOT}/scripts/bench")
    assert done.returncode == 2
    usage, *names = done.stderr.splitlines()
    assert usage.startswith("usage: scripts/bench NAME")
    assert {"rest", "fuse", "engine", "harness", "demo_agents", "demo_model_quality"} <= set(names)
    assert len(names) == len(set(names))
    assert "train" not in names


def test_bench_of_the_research_folder_runs() -> None:
    """A benchmark is run by its name, wherever it lies."""
    done = shell(f"{ROOT}/scripts/bench engine --only W77")
    assert "there is no workload W77; there are W1, W2" in done.stderr


def test_up_prints_three_commands_that_work(up: Running) -> None:
    """The commands name the right port; a reply streams, the next turn knows the name, and both can be read."""
    base = f"http://localhost:{up.port}/v1/sessions"
    assert all(f"{base}/chat1" in command for command in up.commands)
    surely = """-H 'Content-Type: application/json' -d '{"id": "chat1", "settings": {"temperature": 0}}'"""
    assert shell(f"curl -sf {surely} {base}").returncode == 0
    streamed, asked, read = (shell(command) for command in up.commands)
    assert re.search(r"^id: \S+-\d+$", streamed.stdout, re.MULTILINE), streamed.stdout + streamed.stderr
    assert re.findall(r"^event: (.*)$", streamed.stdout, re.MULTILINE)[-1] == "turn.finished"
    assert "event: token" in streamed.stdout
    assert "Alice" in asked.stdout, asked.stdout + asked.stderr
    assert read.stdout.startswith("User: My name is Alice.\nAssistant: ")
    assert "\nUser: What is my name?\nAssistant: " in read.stdout
    assert shell(f"curl -sf -X DELETE {base}/chat1").returncode == 0


def test_up_serves_at_once_when_everything_is_installed(up: Running) -> None:
    """How long that takes is measured by `scripts/bench newcomer`."""
    assert up.printed[0] == "CFS [server,fuse,webdav,agents] is installed in .venv.\n"


def test_example_works(up: Running) -> None:
    """The example talks to the server that it is pointed at, and cleans up after itself."""
    done = shell(f"{ROOT}/examples/tour.sh http://localhost:{up.port}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("User: My name is Alice.") == 2
    assert "tour-" not in shell(f"curl -s localhost:{up.port}/v1/sessions").stdout


def test_second_server_on_the_port_says_so(up: Running) -> None:
    """It ends with an error of its own, and does not announce the first server as itself."""
    done = shell(f"PORT={up.port} {ROOT}/scripts/up --no-mount")
    assert done.returncode != 0
    assert "curl" not in done.stdout
    assert str(up.port) in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_sigterm_ends_the_server_cleanly() -> None:
    """No stack trace, status 0, and the port is free again; arguments of scripts/up reach `cfs serve`."""
    port = free_port()
    running = start(free_port(), "--port", str(port))
    assert all(f"localhost:{port}/" in command for command in running.commands)
    running.process.send_signal(signal.SIGTERM)
    rest = running.process.communicate(timeout=30)[0]
    assert running.process.returncode == 0
    assert "Traceback" not in rest
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


COMPILING = "".join(f"  [{step}/140] /usr/bin/g++ -c file{step}.cpp\n" for step in range(1, 141))


def progress(output: str) -> list[str]:
    """What scripts/install shows of an output of pip."""
    command = [sys.executable, str(ROOT / "scripts/lib/progress")]
    return subprocess.run(command, input=output, capture_output=True, text=True, check=True).stdout.splitlines()


def test_an_installation_shows_how_far_the_compilation_is() -> None:
    """Ninja counts files, and CMake with make counts per cent; pip alone says nothing for minutes."""
    steps = "Collecting llama-cpp-python\n  Running command pip subprocess\n  Collecting scikit-build-core\n"
    shown = progress(
        f"{steps}  Building wheel for llama-cpp-python: started\n{COMPILING}Successfully installed cfs-local\n"
    )
    tenths = [f"  Compiling llama.cpp: {10 * tenth:3} %, 0:00" for tenth in range(11)]
    building = "  Building wheel for llama-cpp-python: started"
    assert shown == ["Collecting llama-cpp-python", building, *tenths, "Successfully installed cfs-local"]
    assert progress("[ 50%] Building CXX object a.o\n") == ["  Compiling llama.cpp:  50 %, 0:00"]


def test_an_installation_that_fails_shows_the_compilers_error() -> None:
    """It is the end of the output, which is not shown otherwise."""
    shown = progress("  file.cpp:1:1: error: unknown type\nERROR: Failed building wheel for llama-cpp-python\n")
    assert shown[0] == "ERROR: Failed building wheel for llama-cpp-python"
    assert "  file.cpp:1:1: error: unknown type" in shown[1:]


def test_a_generated_file_that_is_out_of_date_is_found_whatever_comes_after_it(tmp_path: Path) -> None:
    """All tools run in one process, and none of them may change anything."""
    tools = {"outdated": 1, "new": 0}
    for name, status in tools.items():
        (tmp_path / f"{name}.py").write_text(
            f"import sys\nprint({name!r}, *sys.argv[1:])\nraise SystemExit({status})\n"
        )
    shutil.copy(ROOT / "tools/check_generated.py", tmp_path)
    command = [sys.executable, str(tmp_path / "check_generated.py")]
    done = subprocess.run([*command, *tools], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "outdated --check\nnew --check\n"), done.stderr
    assert subprocess.run([*command, "new"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("checks", "tests"), [(0, 0), (1, 0), (0, 2), (1, 2)])
def test_a_run_fails_if_its_checks_or_its_tests_do(tmp_path: Path, checks: int, tests: int) -> None:
    """Both run, side by side, whatever the other one finds."""
    here = ("system-packages", "postgres", "fetch-javascript")
    programs = {f"scripts/lib/{name}": 0 for name in here} | {"scripts/install": 0, "scripts/check": checks}
    for name, status in (programs | {".venv/bin/python": tests}).items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} $*\nexit {status}\n")
        program.chmod(0o755)
    for name in ("scripts/test", "scripts/lib/in-memory"):
        shutil.copy(ROOT / name, tmp_path / name)
    done = shell(f"{tmp_path}/scripts/test -k some")
    assert bool(done.returncode) == bool(checks or tests), done
    assert "scripts/check\n" in done.stdout
    assert ".venv/bin/python -m pytest -n 4" in done.stdout
    assert ("found errors" in done.stdout) == bool(checks)


def test_temporary_files_are_in_memory_until_the_end(tmp_path: Path) -> None:
    """Unless somebody says where they are to be."""
    command = f"{ROOT}/scripts/lib/in-memory sh -c 'touch $TMPDIR/file; echo $TMPDIR; exit 3'"
    own = shell(f"TMPDIR={tmp_path} {command}")
    assert (own.returncode, own.stdout) == (3, f"{tmp_path}\n")
    assert (tmp_path / "file").exists()
    memory = Path("/dev/shm")  # noqa: S108 - looked at only
    if not memory.is_dir() or shutil.disk_usage(memory).free < 7 << 30:
        pytest.skip("no room in memory")
    done = shell(f"env -u TMPDIR {command}")
    assert done.returncode == 3
    assert re.fullmatch(rf"{memory}/cfs-tests-\w+\n", done.stdout)
    assert not Path(done.stdout.strip()).exists()
