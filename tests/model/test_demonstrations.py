"""The embedded model as the mind of agents: the demonstrations of `examples/` work, and are what was recorded (E5)."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.terminal import cfs, ended
from tests.fuse.support import reason_to_skip
from tests.server.support import Process, serving

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TREE = 'Make a.txt with "hello" and b.txt with "world" in parallel.'


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    """`cfs serve` with the embedded model."""
    with serving() as process:
        yield process


def played(name: str, url: str) -> str:
    """Run a demonstration, and return what is on the screen."""
    done = subprocess.run(
        [EXAMPLES / name, url],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lasting(text: str) -> str:
    """What is on the screen, without what differs from run to run: times, and how much was known before."""
    return re.sub(r"\(\S+ of them known\)", "(...)", re.sub(r"\d+\.\d+ s\b", "... s", text)).strip()


def test_an_agent_writes_a_file_and_reads_it_back_as_was_recorded(server: Process) -> None:
    recorded = (EXAMPLES / "agent-demo.txt").read_text()
    assert lasting(played("agent-demo.sh", server.url)) == lasting(recorded)


@pytest.mark.parametrize(
    ("task", "path", "content"),
    [
        ("Write hello to notes.txt, then read it back", "notes.txt", "hello"),
        ('Write "blue 42" to a.md, then read it back.', "a.md", "blue 42"),
        ("把苹果写入list.txt，然后读回来", "list.txt", "苹果"),
    ],
)
def test_tasks_are_done(server: Process, tmp_path: Path, task: str, path: str, content: str) -> None:
    """A file is written and read back, and the answer says what is in it."""
    code, output, errors = ended(cfs(server.url, "agent", "run", task, "--root", str(tmp_path), "--temperature", "0"))
    assert (code, errors) == (0, "")
    assert (tmp_path / "workspace" / path).read_text() == content
    assert output.index("> write_file") < output.index("> read_file") < output.rindex(content)


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
def test_a_tree_is_played_from_echo_to_cat() -> None:
    """Who is done first differs from run to run, so what must be seen is looked for, here and in the recording."""
    with serving() as server:  # of its own: the session is `main`
        for screen in (played("fibre-demo.sh", server.url), (EXAMPLES / "fibre-demo.txt").read_text()):
            _, echoed, told, tree, files, child = screen.split("\n$ ")
            assert echoed.startswith(f"echo '{TREE}' >> cfs/main")
            for name in ("writer_1", "writer_2"):
                assert f"sys_spawn_agent(agent_name='{name}'" in told
                assert re.search(rf"^  {name} +finished", tree, re.MULTILINE)
            assert "Assistant: The agents wrote the files a.txt and b.txt." in told
            shown = re.findall(r"^==> \S+/(\S+) <==\n(\w+)", files, re.MULTILINE)
            assert shown == [("a.txt", "hello"), ("b.txt", "world")]
            assert "[CALL:write_file(path='a.txt', content='hello')]" in child
            assert "[CALL:sys_finish_task(status='success'" in child
