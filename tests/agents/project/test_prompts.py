"""AGENTS.md and skills in the prompts of agents of both kinds."""

from pathlib import Path

from cfs_agents.main.testing import calls, says
from cfs_agents.tools import CommandMode
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait
from tests.agents.file_agent.support import agent, events_of
from tests.agents.project.test_skills import fields, write


def system_of(model: object) -> list[str]:
    """Return the system prompts of all requests to a model."""
    return [asked.messages[0].content for asked in model.asked]  # type: ignore[attr-defined]


async def test_an_agent_learns_of_instructions_of_a_folder_when_it_first_reads_there(tmp_path: Path) -> None:
    """Before the text of the file, at each kind of agent."""
    for name, workspace in (("alone", "workspace"), ("main", "agent_workspace")):
        folder = tmp_path / name / workspace / "web"
        folder.mkdir(parents=True)
        (folder / "AGENTS.md").write_text("Use tabs.")
        (folder / "a.py").write_text("print(1)\n")
    reads = [calls("read_file", path="web/a.py"), calls("read_file", path="web/a.py"), says("ok")]
    made, model = agent(tmp_path / "alone", *reads, commands=CommandMode.NONE)
    async with made:
        await events_of(made, "go")
    scripted = ScriptedModels(main=reads)
    async with tree(tmp_path, scripted) as fibre:
        await fibre.run("go")
    for asked in (model.asked, scripted.models["main"].asked):
        first, second = (message.content for message in asked[-1].messages if message.role == "tool")
        note, _, text = first.partition("\n")
        assert note.startswith("[The project has instructions for this folder, in /workspace/web/AGENTS.md:")
        assert text == second == "print(1)\n"


async def test_an_agent_that_works_alone_reads_instructions_and_skills(tmp_path: Path) -> None:
    workspace = tmp_path / "agent/workspace"
    workspace.mkdir(parents=True)
    (workspace / "AGENTS.md").write_text("Use tabs.")
    write(workspace, "pdf", fields("pdf"))
    mine = tmp_path / "mine"
    write(mine, "tables", fields("tables", "Makes tables"), "")
    (mine / "tables/run.sh").write_text("echo table")
    (mine / "broken").mkdir()
    warnings: list[str] = []
    read = calls("read_file", path="/workspace/.cfs/skills/tables/run.sh")
    made, model = agent(
        tmp_path / "agent", read, says("ok"), commands=CommandMode.NONE, skills=mine, warn=warnings.append
    )
    async with made:
        await events_of(made, "go")
    (first, second) = system_of(model)
    assert first == second
    assert "<project>\nUse tabs.\n</project>" in first
    assert "- pdf: Reads PDF files (/workspace/.agents/skills/pdf/SKILL.md)" in first
    assert "- tables: Makes tables (/workspace/.cfs/skills/tables/SKILL.md)" in first
    assert "echo table" in model.asked[1].messages[-1].content
    assert warnings == []


async def test_all_agents_of_a_tree_read_instructions_and_skills(tmp_path: Path) -> None:
    workspace = tmp_path / "main/agent_workspace"
    workspace.mkdir(parents=True)
    (workspace / "CLAUDE.md").write_text("Use spaces.")
    write(workspace, "pdf", fields("pdf"))
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[finish()])
    async with tree(tmp_path, scripted, common="All are polite.") as fibre:
        assert (await fibre.run("go")).summary == "ok"
    for name in ("main", "a"):
        prompts = system_of(scripted.models[name])
        assert len(set(prompts)) == 1
        assert "All are polite." in prompts[0]
        assert "<project>\nUse spaces.\n</project>" in prompts[0]
        assert "- pdf: Reads PDF files" in prompts[0]


async def test_a_skill_that_is_not_valid_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "workspace", "pdf", "# How")
    warnings: list[str] = []
    made, model = agent(tmp_path, says("ok"), commands=CommandMode.NONE, warn=warnings.append)
    async with made:
        await events_of(made, "go")
    assert "Skills." not in system_of(model)[0]
    (warning,) = warnings
    assert warning.startswith("the skill /workspace/.agents/skills/pdf is not used: SKILL.md must begin")
