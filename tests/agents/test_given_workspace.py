"""Agents that work on a folder of the user: their state is elsewhere, and nothing of it gets into the folder."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs.errors import CfsError, InvalidRequest, NotFound
from cfs_agents.base.events import FileChanges
from cfs_agents.main.testing import Line, ScriptedModel, calls, says
from cfs_agents.tools import CommandMode
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.given_workspace import shown
from tests.agents.fibre.test_isolated import isolated, read
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait, write
from tests.agents.file_agent.support import events_of, texts
from tests.agents.file_agent.test_cli import SLEEP, call, wait_for
from tests.agents.tools.test_sandbox import needs_bubblewrap
from tests.client.terminal import Running, cfs, ended, home_in
from tests.server.support import ServerHarness, serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose model repeats the last message: so a task can be the call that answers it."""
    with serving("--engine", "scripted") as server:
        yield server.url


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of a user, with dependencies that it does not keep."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("print('hello')\n")
    (folder / "node_modules/x").mkdir(parents=True)
    (folder / "node_modules/x/index.js").write_text("hello")
    (folder / ".gitignore").write_text("node_modules\n")
    author = ("-c", "user.name=u", "-c", "user.email=u@x")
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "."]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def changed(project: Path) -> list[str]:
    """What git says of the folder."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=project, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def agent(root: Path, project: Path | None, *script: Line, **config: object) -> tuple[FileSystemAgent, ScriptedModel]:
    """An agent that works on a project, and its model."""
    model = ScriptedModel(script)
    settings = FileSystemAgentConfig(**{"commands": CommandMode.HOST} | config)  # type: ignore[arg-type]
    return FileSystemAgent(project_root=root, workspace=project, model=model, config=settings), model


def test_an_agent_works_in_the_present_folder(url: str, project: Path, tmp_path: Path) -> None:
    """Its state is that of the user for this folder, so that the next task follows in the same conversation."""
    for name in ("one.txt", "two.txt"):
        task = call("write_file", path=name, content=name)
        arguments = ("agent", "run", task, "--workspace", str(project))
        code, output, errors = ended(cfs(url, *arguments, XDG_STATE_HOME=str(tmp_path / "home/state")))
        assert (code, errors) == (0, "")
        assert f"[created: /workspace/{name}]" in output
    assert changed(project) == ["?? one.txt", "?? two.txt"]
    (root,) = (tmp_path / "home/state/cfs/agent_root").iterdir()
    assert root.name.startswith("project-")
    assert "one.txt" in (root / "journal.jsonl").read_text()
    assert not (root / "workspace").exists()


def test_an_interrupted_task_continues_where_it_worked(url: str, project: Path, tmp_path: Path) -> None:
    """The agent's directory knows the folder, which need not be given again."""
    root = ("--root", str(tmp_path / "state"))
    with Running(url, "agent", "run", SLEEP, "--commands", "host", "--workspace", str(project), *root) as running:
        wait_for(project / "begun")
        running.process.kill()
    (project / "end").touch()
    code, output, _ = ended(cfs(url, "agent", "run", "--resume", *root))
    assert code == 1, "the last call may not have happened"
    assert "[created: /workspace/begun, /workspace/end" in output


def test_a_state_in_the_folder_is_refused(url: str, project: Path) -> None:
    """The agent could change it with its tools for files."""
    arguments = ("agent", "run", "hello", "--workspace", str(project), "--root", str(project / "state"))
    code, output, errors = ended(cfs(url, *arguments))
    assert (code, output) == (1, "")
    assert errors.startswith(
        f"cfs: the agent's state in {project / 'state'} must not be in the folder that it works on"
    )
    assert "give a --root elsewhere" in errors
    assert changed(project) == []
    assert not (project / "state").exists()


@pytest.mark.parametrize("given", ["missing", "file", "state/storage"])
async def test_folders_that_cannot_be_used_are_refused(tmp_path: Path, given: str) -> None:
    """With the reason, before anything is done there."""
    (tmp_path / "file").touch()
    (tmp_path / "state/storage").mkdir(parents=True)
    made, _ = agent(tmp_path / "state", tmp_path / given)
    with pytest.raises((NotFound, InvalidRequest), match=r"no folder|with the agent's state"):
        await made.__aenter__()
    with pytest.raises(CfsError, match=r"no folder|with the agent's state"):
        await FibreAgent(tmp_path, lambda _: made, session="state", workspace=tmp_path / given).__aenter__()  # type: ignore[arg-type, return-value]


async def test_a_folder_that_was_moved_is_asked_for(project: Path, tmp_path: Path) -> None:
    """The agent makes no empty one in its place, and works on when the new place is given."""
    root = tmp_path / "state"
    made, _ = agent(root, project, says("hi"))
    async with made:
        await made.run("go")
    moved = await asyncio.to_thread(project.rename, tmp_path / "moved")
    made, _ = agent(root, None)
    with pytest.raises(NotFound, match=r"is missing: give one by --workspace"):
        await made.__aenter__()
    made, model = agent(root, moved, calls("read_file", path="src/main.py"), says("it prints hello"))
    async with made:
        await made.run("read it")
    assert "print('hello')" in texts(model.asked[-1].messages)


async def test_a_damaged_record_is_not_guessed(project: Path, tmp_path: Path) -> None:
    """Otherwise the agent would go on in an empty folder."""
    root = tmp_path / "state"
    made, _ = agent(root, project)
    async with made:
        pass
    (root / "workspace.json").write_text("[")
    made, _ = agent(root, None)
    with pytest.raises(InvalidRequest, match="is damaged: give the folder"):
        await made.__aenter__()


async def test_its_own_workspace_can_be_taken_again(project: Path, tmp_path: Path) -> None:
    root = tmp_path / "state"
    for place in (project, root / "workspace", None):
        made, _ = agent(root, place, write("own.txt"), says("done"))
        async with made:
            await made.run("go")
    assert await asyncio.to_thread(changed, project) == ["?? own.txt"]
    assert (root / "workspace/own.txt").exists()


async def test_a_link_that_a_user_has_made_is_no_own_workspace(project: Path, tmp_path: Path) -> None:
    """The folder that it leads to is worked on as any other."""
    root = tmp_path / "state"
    root.mkdir()
    (root / "workspace").symlink_to(project)
    made, _ = agent(root, project, write("new.txt"), says("done"))
    async with made:
        await made.run("go")
    assert await asyncio.to_thread(changed, project) == ["?? new.txt"]


async def test_what_commands_change_is_seen_and_what_programs_have_is_passed_over(
    project: Path, tmp_path: Path
) -> None:
    """Also deletions; the listing of the prompt names the folders of programs, but not what is in them."""
    command = "echo 1 > src/new.py; rm src/main.py; echo 2 > node_modules/x/more.js; seq 100000"
    made, model = agent(
        tmp_path / "state",
        project,
        calls("execute_command", command=command),
        calls("search_files", pattern="hello"),
        says("done"),
    )
    async with made:
        events = await events_of(made, "go")
    (changes,) = (event for event in events if isinstance(event, FileChanges))
    assert changes == FileChanges(("/workspace/src/new.py",), (), ("/workspace/src/main.py",))
    assert await asyncio.to_thread(changed, project) == [" D src/main.py", "?? src/new.py"], (
        "the long output went elsewhere"
    )
    seen = texts(model.asked[-1].messages)
    assert "/storage/commands/" in seen
    assert "index.js" not in seen
    assert "node_modules/" in texts(model.asked[0].messages)


IGNORED = "node_modules\n/dist/\n*.log\n.env\n"
CLAIMS = {"created_files": ["dist/app.js", "src/new.py"], "deleted_files": ["old.log"]}
BUILD = "mkdir dist; echo hello > dist/app.js; echo hello > debug.log; echo 1 > src/new.py"


async def test_what_git_ignores_is_not_looked_at(project: Path, tmp_path: Path) -> None:
    """It is no change and no match of a search. The agent opens it by its name, and may say that it made it."""
    (project / ".gitignore").write_text(IGNORED)
    made, model = agent(
        tmp_path / "state",
        project,
        calls("execute_command", command=BUILD),
        calls("search_files", pattern="hello"),
        calls("read_file", path="dist/app.js"),
        write("old.log", "by the agent"),
        says("I have written dist/app.js and src/new.py."),
    )
    async with made:
        events = await events_of(made, "go")
        assert made.outcome.reason == "answered", made.outcome
    (changes,) = (event for event in events if isinstance(event, FileChanges))
    assert changes == FileChanges(("/workspace/src/new.py",), (), ())
    _, found, read, _ = (message.content for message in model.asked[-1].messages if message.role == "tool")
    assert "/workspace/src/main.py:1:8: print('hello')" in found
    assert "debug.log" not in found
    assert read == "hello\n"


async def test_ignored_files_in_the_report_of_an_agent(project: Path, tmp_path: Path) -> None:
    """A claim holds if they have changed since its task began, whoever did it: such changes are not recorded."""
    (project / ".gitignore").write_text(IGNORED)
    (project / "old.log").touch()
    (project / ".env").write_text("KEY=1")
    command = calls("execute_command", command=f"{BUILD}; rm old.log")
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), spawn("b"), wait("b"), says("done")],
        a=[command, calls("sys_finish_task", status="success", summary="built", details=CLAIMS)],
        b=[finish("made", ".env")],
    )
    async with tree(tmp_path / "trees", scripted, workspace=project, commands=CommandMode.HOST) as made:
        await made.run("go")
        a, b = (made.agents[name].report for name in ("a", "b"))
    assert a is not None
    assert (a.status, [change.path for change in a.facts]) == ("success", ["src/new.py"])
    assert b is not None
    assert b.status == "unverified"


async def test_ignored_files_are_not_published(project: Path, tmp_path: Path, server: ServerHarness) -> None:
    """They may hold secrets."""
    for name, text in {".gitignore": IGNORED, ".env": "KEY=1", "secret.log": "KEY=1"}.items():
        await asyncio.to_thread((project / name).write_text, text)
    scripted = ScriptedModels(shown=[write("a.txt"), says("done")])
    async with tree(tmp_path / "trees", scripted, server.url, session="shown", workspace=project, publish=True) as made:
        assert (await made.run("go")).ok
    listed = (await server.client.get("/v1/files", params={"prefix": "/workspaces/shown/"})).json()["files"]
    names = {file["path"].removeprefix("/workspaces/shown/") for file in listed}
    assert names == {".gitignore", "a.txt", "src/main.py"}
    assert "folder" not in (await server.client.get("/v1/sessions/shown")).json()["work"]
    assert await asyncio.to_thread((project / "secret.log").read_text) == "KEY=1"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(CommandMode.HOST, str(Path.home())), pytest.param(CommandMode.BWRAP, "/tmp", marks=needs_bubblewrap)],  # noqa: S108 - the sandbox's
)
async def test_programs_do_not_take_the_project_for_a_home(
    project: Path, tmp_path: Path, mode: CommandMode, expected: str
) -> None:
    """They would leave caches there, and not find the settings of the user."""
    command = "echo $HOME > home; touch $HOME/.cfs-test && rm $HOME/.cfs-test; pwd >> home"
    made, _ = agent(tmp_path / "state", project, calls("execute_command", command=command), says("done"), commands=mode)
    async with made:
        await made.run("go")
    place = "/workspace" if mode is CommandMode.BWRAP else str(project)
    assert (project / "home").read_text().splitlines() == [expected, place]


async def test_an_answer_is_held_against_the_files_of_the_project(project: Path, tmp_path: Path) -> None:
    """By the name that the agent uses, and by that of this machine."""
    for claim in ("/workspace/src/out.py", str(project / "src/out.py")):
        made, _ = agent(tmp_path / "state", project, says(f"I have written {claim}."), says(f"I have written {claim}."))
        async with made:
            assert (await made.run("write it")).reason == "unverified"
    made, _ = agent(tmp_path / "state", project, write("src/out.py"), says("I have written src/out.py."))
    async with made:
        assert (await made.run("write it")).reason == "answered"


async def test_rules_of_the_project_restrict(project: Path, tmp_path: Path) -> None:
    """They are those of its .cfs/rules.toml, as for any workspace."""
    (project / ".cfs").mkdir()
    (project / ".cfs/rules.toml").write_text('deny = ["write_file(src/**)"]\n')
    made, model = agent(tmp_path / "state", project, write("src/a.txt"), write("b.txt"), says("done"))
    async with made:
        await made.run("go")
    assert not (project / "src/a.txt").exists()
    assert (project / "b.txt").exists()
    assert "denies it" in texts(model.asked[-1].messages)


async def test_own_skills_are_copied_to_the_storage(project: Path, tmp_path: Path) -> None:
    """A project has no copies of what belongs to the user."""
    skill = tmp_path / "skills/greet/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: greet\ndescription: Greets.\n---\nSay hello.\n")
    read = calls("read_file", path="/storage/skills/greet/SKILL.md")
    made, model = agent(tmp_path / "state", project, read, says("done"), skills=tmp_path / "skills")
    async with made:
        await made.run("go")
    assert "greet" in texts(model.asked[0].messages)
    assert "Say hello." in texts(model.asked[-1].messages)
    assert await asyncio.to_thread(changed, project) == []


async def test_a_tree_works_on_the_folder(project: Path, tmp_path: Path, server: ServerHarness) -> None:
    """A child works on the same files; none of them is sent to the server, and git sees the work only."""
    command = calls("execute_command", command="seq 100000; cat a.txt > b.txt")
    scripted = ScriptedModels(
        given=[spawn("a"), wait("a"), command, says("done")], a=[write("a.txt", "by a"), finish("made", "a.txt")]
    )
    folder = tmp_path / "trees"
    async with tree(
        folder, scripted, server.url, session="given", workspace=project, commands=CommandMode.HOST
    ) as made:
        report = await made.run("go")
    assert report.ok
    assert await asyncio.to_thread(changed, project) == ["?? a.txt", "?? b.txt"]
    assert await asyncio.to_thread((project / "b.txt").read_text) == "by a"

    def look(state: Path) -> tuple[Path, bool]:
        return (state / "sub_sessions/a/agent_workspace").resolve(), (state / "agent_workspace").exists()

    assert await asyncio.to_thread(look, folder / "given") == (project, False)
    assert (await server.client.get("/dav/workspaces/given/a.txt")).status_code == 404


async def test_a_rewind_says_that_the_files_stay(project: Path, tmp_path: Path, server: ServerHarness) -> None:
    """Before and after, as the server has neither the files nor their past; it knows the folder from the agent."""
    scripted = ScriptedModels(given=[write("a.txt"), says("done")])
    async with tree(tmp_path / "trees", scripted, server.url, session="given", workspace=project) as made:
        assert (await made.run("go")).ok
    sentence = f"Files in {project} are not taken back, as they are not on the server: use git."
    for dry_run in (True, False):
        rewound = await server.client.post("/v1/sessions/given/rewind", json={"to": 0, "dry_run": dry_run})
        assert (rewound.json()["files"], rewound.json()["lasting"]) == ([], [sentence])
    assert await asyncio.to_thread(changed, project) == ["?? a.txt"]
    redone = await server.client.post("/v1/sessions/given/redo")
    assert redone.json()["lasting"] == []


def test_readers_of_a_session_are_not_shown_where_the_home_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert shown(tmp_path / "home/code/project") == "~/code/project"
    assert shown(tmp_path / "elsewhere") == str(tmp_path / "elsewhere")


async def test_an_isolated_child_is_merged_into_the_folder(project: Path, tmp_path: Path) -> None:
    """Its copy is in the state of the tree."""
    scripted = ScriptedModels(
        main=[isolated("a"), wait("a"), says("done")],
        a=[read("src/main.py"), write("src/main.py", "print('by a')\n"), finish("edited")],
    )
    async with tree(tmp_path / "trees", scripted, workspace=project) as made:
        assert (await made.run("go")).ok
    assert await asyncio.to_thread((project / "src/main.py").read_text) == "print('by a')\n"
    assert await asyncio.to_thread(changed, project) == [" M src/main.py"]


def test_serving_an_agent_in_a_folder(project: Path, tmp_path: Path, url: str) -> None:
    """`cfs agent serve` takes the option, and names the state after the folder."""
    home = home_in(tmp_path / "home")
    arguments = ("agent", "serve", "--session", "here", "--workspace", str(project))
    with Running(url, *arguments, **home):
        state = tmp_path / "home/state/cfs/agents"
        wait_for(state)
        (folder,) = state.iterdir()
        wait_for(folder / "here/workspace.json")
        assert json.loads((folder / "here/workspace.json").read_text()) == {"path": str(project)}
