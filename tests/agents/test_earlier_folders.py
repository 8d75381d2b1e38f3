"""Folders that an earlier version has written open: an interrupted task goes on, and nothing is repaired.

`tests/fixtures/agents` was written by the version before the layout of folders: a file agent that was interrupted after
a change of windows and a file, and a tree whose second child was interrupted.
"""

import shutil
from pathlib import Path

from cfs_agents.main.testing import says
from tests.agents.fibre.trees import ScriptedModels, finish, messages, status, tree
from tests.agents.file_agent.support import agent, texts

FIXTURES = Path(__file__).parent.parent / "fixtures/agents"


async def test_a_file_agent_resumes_the_task_of_an_earlier_version(tmp_path: Path) -> None:
    """With its window, its conversation and its files."""
    shutil.copytree(FIXTURES / "file_agent", tmp_path / "root")
    made, model = agent(tmp_path / "root", says("I have written b.txt."))
    async with made:
        assert made.unfinished
        outcome = await made.resume()
    assert (outcome.reason, made.warnings) == ("answered", [])
    assert outcome.files is not None
    assert "/workspace/b.txt" in outcome.files.created
    prompt = texts(model.asked[0].messages)
    assert "Count to three." in prompt
    assert "write b.txt" in prompt


async def test_a_tree_resumes_the_work_of_an_earlier_version(tmp_path: Path) -> None:
    """The child that was interrupted reports, the other one is not asked again, and the root answers."""
    shutil.copytree(FIXTURES / "trees", tmp_path / "trees")
    models = ScriptedModels(half=[finish("made two.txt", "two.txt")], main=[says("Both files are there.")])
    async with tree(tmp_path / "trees", models) as root:
        report = await root.resume()
        assert root.warnings == []
    models.check_finished()
    assert (report.status, report.summary) == ("success", "Both files are there.")
    assert {change.path for change in report.facts} == {"one.txt", "two.txt"}
    record = await status(tmp_path / "trees", "half")
    assert (record["state"], record["report"]["status"]) == ("done", "success")
    first, *_ = await messages(tmp_path / "trees", "half")
    assert first["role"] == "user"
