"""The public names of the package, and the runtimes that run an agent."""

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cfs_agents
from cfs.errors import Conflict, InvalidIdentifier, InvalidParameters, InvalidSettings
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall
from cfs_agents import (
    Agent,
    AgentConfig,
    AgentRuntime,
    AsyncAgentRuntime,
    AsyncPersistentShell,
    CompleteResponse,
    ConsoleStreamHandler,
    ContextFileSystem,
    ContextSynchronizer,
    FileSystemAgent,
    IncrementalOutputFormatter,
    OffloadPolicy,
    OperationLogger,
    PathManager,
    PersistentShell,
    StreamProcessor,
)
from cfs_agents.context import ContextItem, EstimatingCounter
from cfs_agents.loop.config import MODEL_VARIABLES
from cfs_agents.loop.model import Chunk
from cfs_agents.loop.retries import seconds_of
from cfs_agents.loop.server_model import ServerModel
from cfs_agents.main.options import USUAL_PATIENCE
from cfs_agents.main.testing import ScriptedModel, calls, says
from cfs_agents.tools import Registry, ShellSettings, ToolError
from tests.agents.file_agent.support import operations
from tests.server.support import serving

PUBLIC = """Agent FileSystemAgent AgentRuntime AsyncAgentRuntime AgentConfig PersistentShell AsyncPersistentShell
OperationLogger PathManager ContextSynchronizer StreamProcessor ConsoleStreamHandler IncrementalOutputFormatter
CompleteResponse OffloadPolicy ContextFileSystem FibreAgent FibreOrchestrator FibreSubAgent SubSessionContext tool"""


@pytest.mark.parametrize("name", PUBLIC.split())
def test_public_names_can_be_imported(name: str) -> None:
    assert callable(getattr(cfs_agents, name))
    assert name in dir(cfs_agents)


def test_importing_the_package_loads_none_of_its_modules() -> None:
    script = "import sys, cfs_agents; print([name for name in sys.modules if name.startswith('cfs_agents.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def writing(root: Path, **agent: Any) -> FileSystemAgent:
    """An agent that writes a file and says so, twice."""
    task = [calls("write_file", path="a.txt", content="hello"), says("a.txt is written.")]
    return FileSystemAgent(project_root=root, model=ScriptedModel(task * 2), **agent)


def test_a_runtime_runs_an_agent_and_blocks(tmp_path: Path) -> None:
    runtime = AgentRuntime(writing(tmp_path))
    assert runtime.run("write").text == "a.txt is written."
    assert (tmp_path / "workspace/a.txt").read_text() == "hello"
    with AgentRuntime(writing(tmp_path)):  # the first one has closed the directory
        pass


def test_a_runtime_keeps_the_agent_open_between_tasks(tmp_path: Path) -> None:
    with AgentRuntime(writing(tmp_path)) as runtime:
        assert runtime.run("write").ok
        with pytest.raises(Conflict):
            AgentRuntime(writing(tmp_path)).run("write")
        assert runtime.run("write again").ok


def test_a_runtime_runs_an_agent_without_a_directory() -> None:
    agent = Agent(llm=ScriptedModel([says("done")]), config=AgentConfig(offload_enabled=False))
    assert AgentRuntime(agent).run("work").text == "done"
    assert [item.message.role for item in agent.context.context] == ["user", "assistant"]


async def test_a_task_is_invoked_in_a_loop(tmp_path: Path) -> None:
    outcome = await AsyncAgentRuntime(writing(tmp_path)).invoke("write")
    assert outcome.ok
    assert outcome.files.created == ("/workspace/a.txt",)


async def test_a_task_is_shown_on_the_console(tmp_path: Path) -> None:
    with (tmp_path / "console").open("w") as out:
        runtime = AsyncAgentRuntime(writing(tmp_path / "root"), console_handler=ConsoleStreamHandler(out))
        assert (await runtime.invoke_with_console("write")).ok
    shown = (tmp_path / "console").read_text()
    assert "> write_file /workspace/a.txt" in shown
    assert "a.txt is written." in shown


def test_console_of_a_blocking_runtime_is_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AgentRuntime(writing(tmp_path), console=True).run("write")
    assert "a.txt is written." in capsys.readouterr().out


def test_agents_of_one_directory_keep_their_own_conversations(tmp_path: Path) -> None:
    AgentRuntime(writing(tmp_path)).run("write")
    other = ScriptedModel([says("nothing yet")])
    AgentRuntime(FileSystemAgent("other", project_root=tmp_path, model=other)).run("What is done?")
    assert [message.role for message in other.asked[0].messages] == ["system", "user"]
    assert "[/context_window_other.md]" in other.asked[0].messages[0].content
    assert (tmp_path / "context_window_other.md").exists()
    assert (tmp_path / "journal_other.jsonl").exists()


def test_the_file_of_the_context_window_can_be_chosen(tmp_path: Path) -> None:
    window = "# Current Task\nWait."
    model = ScriptedModel([calls("sync_context", new_context_content=window), says("synced")])
    AgentRuntime(FileSystemAgent(context_file="mind.md", project_root=tmp_path, model=model)).run("sync")
    assert (tmp_path / "mind.md").read_text() == window
    assert not (tmp_path / "context_window_main.md").exists()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidIdentifier):
        FileSystemAgent(context_file=name)
    with pytest.raises(InvalidIdentifier):
        FileSystemAgent(name)


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({}, ""),
        ({"OPENAI_MODEL": "small"}, "small"),
        ({"OPENAI_MODEL": "small", "ANTHROPIC_MODEL": "wise"}, "wise"),
        ({"OPENAI_MODEL": "small", "ANTHROPIC_MODEL": "wise", "CFS_MODEL": "ours"}, "ours"),
    ],
)
def test_the_model_comes_from_the_environment(variables: dict[str, str], model: str) -> None:
    assert AgentConfig.from_env(variables).model == model


def test_a_configuration_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFS_THINKING_BUDGET", "512")
    monkeypatch.setenv("CFS_MODEL", "ours")
    config = AgentConfig.from_env(model="another", max_rounds=3)
    assert (config.thinking_budget, config.model, config.max_rounds) == (512, "another", 3)
    assert AgentConfig.from_env({"CFS_THINKING_BUDGET": "0"}).thinking_budget is None
    with pytest.raises(InvalidSettings, match="CFS_THINKING_BUDGET"):
        AgentConfig.from_env({"CFS_THINKING_BUDGET": "much"})


async def test_a_reply_that_thinks_too_long_is_stopped_and_asked_for_again() -> None:
    long = says("never said", thinking="I could " + " ".join(f"try {n * n}" for n in range(200)))
    model = ScriptedModel([long, says("done", thinking="In short.")], cut=8)
    agent = Agent(model, AgentConfig(offload_enabled=False, thinking_budget=50))
    outcome = await agent.query("work")
    assert outcome.text == "done"
    assert "Think less" in model.asked[1].last.content
    thought = agent.context.context.items[-1].message.thinking or ""
    assert thought.startswith("I could try 0 try 1")
    assert len(thought) < 400
    assert thought.endswith("In short.")


async def test_thinking_within_the_budget_is_not_stopped() -> None:
    model = ScriptedModel([says("done", thinking="I look at it, and then I do it.")], cut=4)
    agent = Agent(model, AgentConfig(offload_enabled=False, thinking_budget=50))
    assert (await agent.query("work")).text == "done"


def test_a_budget_for_thinking_is_positive() -> None:
    with pytest.raises(InvalidSettings, match="thinking_budget"):
        AgentConfig(thinking_budget=0)


def test_operations_are_logged_with_results_and_errors(tmp_path: Path) -> None:
    log = OperationLogger(tmp_path / "logs")
    log.log_operation("deploy", {"to": "staging"}, "done")
    log.log_operation("deploy", {"to": "production"}, error="refused")
    log.log_operation("deploy", {"to": "mars"}, {"exit_code": 1}, "no route")
    done, refused, lost = operations(tmp_path, "deploy")
    assert (lost["error"], lost["success"]) == ("no route", False)
    assert (done["params"], done["result"], done["success"]) == ({"to": "staging"}, "done", True)
    assert (refused["error"], refused["success"]) == ("refused", False)
    assert done["id"] != refused["id"]


def test_paths_of_an_agent_are_resolved_below_its_directory(tmp_path: Path) -> None:
    root = tmp_path / "agent_root"
    paths = PathManager(project_root=tmp_path)
    assert root.is_dir()
    assert paths.resolve_agent_path("a/b.txt") == root / "workspace/a/b.txt"
    assert paths.resolve_agent_path("/storage/x") == root / "storage/x"
    assert paths.resolve_agent_path("/guideline.md") == root / "guideline.md"
    assert paths.resolve_agent_path("/") == root
    assert paths.agent_path(root / "workspace/a") == "/workspace/a"
    assert PathManager(root, tmp_path / "elsewhere", folder="").resolve_agent_path("a") == tmp_path / "elsewhere/a"


@pytest.mark.parametrize(
    "path",
    ["../x", "/workspace/../../etc/passwd", "a\0b", "link/etc/passwd", "link", "/etc/passwd", "/logs", "/storages"],
)
@pytest.mark.parametrize("error", [ValueError, ToolError])
def test_paths_that_the_tools_refuse_are_refused(tmp_path: Path, path: str, error: type[Exception]) -> None:
    paths = PathManager(tmp_path)
    paths.workspace.mkdir()
    (paths.workspace / "link").symlink_to("/")
    with pytest.raises(error):
        paths.resolve_agent_path(path)


def test_the_commands_wait_for_a_server_without_a_limit() -> None:
    """The command line writes it as a user does, so that its help needs no heavy imports."""
    assert seconds_of(USUAL_PATIENCE) == math.inf


@pytest.mark.usefixtures("server_of_model")
class TestWordsOfEarlierPrograms:
    """Calls as programs of others write them, with only the imports changed."""

    async def test_a_runtime_is_made_of_a_directory_and_settings(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = AgentConfig.from_env()
        runtime = AsyncAgentRuntime(tmp_path / "one", config)
        out = io.StringIO()
        outcome = await runtime.invoke_with_console(
            role="user", content="Say hello.", console_handler=ConsoleStreamHandler(out)
        )
        assert outcome.text
        assert "1 step" in out.getvalue()
        assert capsys.readouterr().out == ""

    def test_a_blocking_runtime_is_made_of_a_directory(self, tmp_path: Path) -> None:
        assert AgentRuntime(project_root=tmp_path / "two").run("Say hello.").text
        assert (tmp_path / "two/guideline.md").exists()

    def test_an_agent_keeps_its_own_settings(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidParameters, match="its own settings"):
            AgentRuntime(writing(tmp_path), AgentConfig())

    async def test_another_role_gives_no_task(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidParameters, match="'user'"):
            await AsyncAgentRuntime(writing(tmp_path)).invoke_with_console(role="system", content="x")

    async def test_an_agent_is_named_with_its_window_and_its_directory(self, tmp_path: Path) -> None:
        agent = FileSystemAgent("main", "context_window_main.md", tmp_path)
        assert (await AsyncAgentRuntime(agent).invoke("Say hello.")).text
        assert (tmp_path / "context_window_main.md").exists()

    async def test_an_agent_of_one_call_has_its_context(self, tmp_path: Path) -> None:
        async with AsyncClient() as client:
            config = AgentConfig(offload_enabled=True, offload_token_threshold=2000, offload_root_path=tmp_path)
            agent = Agent(llm=ServerModel(client), config=config)
            await agent.query("Say hello.")
        assert [message.role for message in agent.context.context.messages()] == ["user", "assistant"]
        assert not any(message.offloaded for message in agent.context.context.messages())

    async def test_blocks_of_a_reply_are_printed(self) -> None:
        out = io.StringIO()
        processor, formatter = StreamProcessor(), IncrementalOutputFormatter(out)
        async with AsyncClient() as client:
            async for item in ServerModel(client).stream([Message(role="user", content="Say hello.")]):
                if isinstance(item, Chunk | CompleteResponse):
                    for block in processor.feed(item):
                        formatter.print(block)
                    reply = item
        for block in processor.finish():
            formatter.print(block)
        assert isinstance(reply, CompleteResponse)
        assert reply.message.content
        assert reply.message.content in out.getvalue()


class TestPartsOfEarlierPrograms:
    """The parts of an agent that programs use by themselves."""

    def test_a_shell_keeps_its_state(self, tmp_path: Path) -> None:
        with PersistentShell(ShellSettings(directory=tmp_path)) as shell:
            shell.run("X=4; mkdir sub; cd sub")
            result = shell.run("echo $X; pwd; exit_here() { return 3; }; exit_here")
        assert (result.output, result.status) == (f"4\n{tmp_path}/sub\n", 3)

    async def test_a_shell_of_a_loop_keeps_its_state(self, tmp_path: Path) -> None:
        async with AsyncPersistentShell(ShellSettings(directory=tmp_path)) as shell:
            await shell.run("X=4")
            assert (await shell.run("echo $X")).output == "4\n"

    async def test_a_synchronizer_takes_the_window_that_a_model_writes(self) -> None:
        synchronizer = ContextSynchronizer(EstimatingCounter())
        result = await Registry([synchronizer.tool()]).call(
            ToolCall(id="1", name="sync_context", arguments={"new_context_content": "# Current Task\nWait."})
        )
        assert result.ok
        assert synchronizer.take() == "# Current Task\nWait."
        assert synchronizer.take() is None

    def test_a_policy_names_types_and_a_store_keeps_items(self, tmp_path: Path) -> None:
        policy = OffloadPolicy(threshold=10, type_enabled={"assistant_message": True})
        item = ContextItem.of(Message(role="assistant", content="word " * 50))
        assert policy.type_enabled["tool_result"]
        assert policy.may_go(item)
        with ContextFileSystem(tmp_path) as files:
            record = files.offload([item]).records[item.item_id]
            document = json.loads((files.path / str(record.path)).read_text())
            assert files.restore(item.item_id).message == item.message
        assert document.keys() == {"schema_version", "item_id", "item_type", "offloaded_at", "metadata", "content"}

    def test_paths_of_an_agent_are_those_of_its_directory(self, tmp_path: Path) -> None:
        """A `PathManager` makes `agent_root` in a project, which is then the `project_root` of the agent."""
        paths = PathManager(tmp_path)
        AgentRuntime(writing(paths.agent_root)).run("write")
        assert paths.resolve_agent_path("a.txt").read_text() == "hello"
        AgentRuntime(writing(tmp_path / "other")).run("write")
        assert PathManager(tmp_path / "other", folder="").resolve_agent_path("a.txt").read_text() == "hello"
        assert not (tmp_path / "other/agent_root").exists()


@pytest.fixture
def server_of_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that `CFS_URL` names, whose model repeats the last message."""
    with serving("--engine", "scripted", "--log-level", "error") as server:
        monkeypatch.setenv("CFS_URL", server.url)
        yield


def test_a_file_beside_the_program_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*MODEL_VARIABLES, "CFS_THINKING_BUDGET"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text("OPENAI_MODEL=from-the-file\nCFS_THINKING_BUDGET=7\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    config = AgentConfig.from_env()
    assert (config.model, config.thinking_budget) == ("from-the-file", 7)
    monkeypatch.setenv("CFS_MODEL", "from-the-environment")
    assert AgentConfig.from_env().model == "from-the-environment"
    assert AgentConfig.from_env({}).model == ""


async def test_a_cleared_agent_has_its_files_and_no_conversation(tmp_path: Path) -> None:
    model = ScriptedModel([calls("write_file", path="a.txt", content="x"), says("done"), says("what?")])
    async with FileSystemAgent(project_root=tmp_path, model=model) as agent:
        await agent.run("write")
        await agent.clear()
        await agent.run("again")
    assert [message.role for message in model.asked[-1].messages] == ["system", "user"]
    assert (tmp_path / "workspace/a.txt").exists()
    async with FileSystemAgent(project_root=tmp_path, model=model) as agent:
        assert (agent.task, agent.unfinished) == ("again", False)
