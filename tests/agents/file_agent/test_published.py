"""The files of a single agent on a server while it works, if it is asked to publish them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cfs_agents.main.runtime import AgentRuntime
from cfs_agents.main.testing import Line, ScriptedModel, calls, says
from cfs_agents.tree.file_agent import FileSystemAgent
from tests.server.support import Process, run_cfs, serving


@pytest.fixture
def server() -> Iterator[Process]:
    """A server of its own, in a process."""
    with serving("--engine", "scripted") as process:
        yield process


def told(root: Path, server: Process, *script: Line) -> str:
    """Let an agent play a script; return what it was told last."""
    model = ScriptedModel(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFS_URL", server.url)
        outcome = AgentRuntime(FileSystemAgent(project_root=root, model=model, publish="shared")).run("go")
    assert outcome.reason == "answered"
    return model.asked[-1].messages[-1].content


def test_what_others_put_there_it_reads_and_what_it_makes_they_read(tmp_path: Path, server: Process) -> None:
    with httpx.Client(base_url=f"{server.url}/v1/files/workspaces/shared/", timeout=60) as shared:
        shared.put("in.txt", content=b"given")
        write = calls("write_file", path="deep/out.txt", content="made")
        assert "given" in told(tmp_path, server, write, calls("read_file", path="in.txt"), says("done"))
        assert shared.get("deep/out.txt").text == "made"
        shared.put("deep/out.txt", content=b"edited")
        assert "edited" in told(tmp_path, server, calls("read_file", path="deep/out.txt"), says("done"))
    assert (tmp_path / "workspace/deep/out.txt").read_text() == "edited"
    assert not (tmp_path / "storage/out.txt").exists()


def test_the_command_line_has_an_option_for_it(tmp_path: Path, model_server: Process) -> None:
    task = "Write hello to notes.txt, then read it back"
    done = run_cfs(
        "agent", "run", task, "--root", str(tmp_path), "--publish", "cli-shared", "--temperature", "0",
        CFS_URL=model_server.url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = httpx.get(f"{model_server.url}/v1/files", params={"prefix": "/workspaces/cli-shared/"}, timeout=60).json()[
        "files"
    ]
    assert [each["path"] for each in listed] == ["/workspaces/cli-shared/notes.txt"]


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    refused = run_cfs("agent", "run", "x", "--root", str(tmp_path / "a"), "--publish", "../etc")
    assert refused.returncode != 0
    assert "a session id must not begin with" in refused.stderr
    assert not (tmp_path / "a").exists()
