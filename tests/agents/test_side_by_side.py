"""Calls of one reply: side by side where none waits for another, and in their order where one does (A3, A7)."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import Message, ToolCall
from cfs_agents.base.events import CallFinished, CallStarted
from cfs_agents.context import ContextItem
from cfs_agents.loop.agent import Agent, AgentConfig
from cfs_agents.main.testing import Line, ScriptedModel, calls, says, together
from cfs_agents.tools import CommandMode, FileAccess, FileTools, Registry, Tool, agent_grants, tool
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_filesystem import InMemoryFileSystem
from tests.agents.fibre.trees import ScriptedModels, finish, messages, spawn, tree, wait
from tests.agents.file_agent.support import agent, events_of, until_there
from tests.server.support import until

READS = FileAccess("/workspace/a", writes=False)


def reader(name: str, work: Any) -> Tool:
    """A tool that reads, so that others may read beside it."""
    return tool(name, name=name, touches=lambda _: READS)(work)


def write(path: str, content: str) -> Line:
    return calls("write_file", path=path, content=content)


def read(path: str) -> Line:
    return calls("read_file", path=path)


def results(model: ScriptedModel) -> list[str]:
    """What the model read of its last calls."""
    return [message.content for message in model.asked[-1].messages if message.role == "tool"]


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["read a", "read b", "list", "read a"], 4),
        (["write a", "write b", "read c"], 3),
        (["write a", "write a"], 1),
        (["read a", "write a"], 1),
        (["write a", "read a"], 1),
        (["write b/c", "list b"], 1),
        (["list b", "write ba"], 2),
        (["search", "read a", "write a"], 2),
        (["read a", "none"], 1),
        (["none", "read a"], 1),
        (["read ..", "read a"], 1),
    ],
)
def test_what_may_run_beside_what(names: list[str], first: int) -> None:
    """Reads beside reads; a write beside nothing that is at, above or below its path; what is not known, alone."""
    registry = Registry(FileTools(InMemoryFileSystem().create_handle(agent_grants())).tools())
    kinds = {"read": "read_file", "write": "write_file", "list": "list_directory", "search": "search_files"}
    made = []
    for number, name in enumerate(names):
        kind, _, path = name.partition(" ")
        arguments = {"path": path} if path else {}
        made.append(ToolCall(id=str(number), name=kinds.get(kind, kind), arguments=arguments))
    assert registry.together(made) == made[:first]


async def test_calls_that_wait_for_each_other_end_only_side_by_side() -> None:
    """Their results stand in the order of the calls, whichever ends first."""
    met = asyncio.Barrier(3)
    order: list[int] = []

    async def meet(number: int) -> str:
        await met.wait()
        for _ in range(3 - number):
            await asyncio.sleep(0)
        order.append(number)
        return str(number)

    model = ScriptedModel([together(*(calls("meet", number=number) for number in range(3))), says("Met.")])
    made = Agent(llm=model, config=AgentConfig(tools=[reader("meet", meet)], offload_enabled=False))
    events = [event async for event in made.run_stream("Meet.")]
    assert made.outcome.ok
    assert order == [2, 1, 0]
    assert results(model) == ["0", "1", "2"]
    kinds = [type(event) for event in events if isinstance(event, CallStarted | CallFinished)]
    assert kinds == [CallStarted] * 3 + [CallFinished] * 3


async def test_files_and_commands_of_a_reply_keep_their_order(tmp_path: Path) -> None:
    """Each sees what those before it have done, and nothing of those after it."""
    reply = together(
        write("a", "1\n"),
        write("b", "2\n"),
        write("a", "3\n"),
        read("a"),
        calls("execute_command", command="cat a b; sleep 0.1; echo 4 > a"),
        calls("execute_command", command="cat a; echo 5 > b"),
        read("b"),
        write("b", "6\n"),
    )
    made, model = agent(tmp_path, reply, says("Done."), commands=CommandMode.HOST)
    async with made:
        assert (await made.run("Do it.")).ok
    found = results(model)
    assert [text.splitlines()[0] for text in found[3:7]] == ["3", "3", "4", "5"]
    assert found[4].startswith("3\n2\n")
    assert (tmp_path / "workspace/b").read_text() == "6\n"
    journal = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in journal if line["kind"] in ("intent", "result")]
    assert kinds[:4] == ["intent", "intent", "result", "result"], "the first two are begun together"


async def test_what_comes_before_a_sync_is_done_and_what_comes_after_is_not(tmp_path: Path) -> None:
    reply = together(
        write("a", "1"),
        write("b", "2"),
        calls("sync_context", new_context_content="# Current Task\nX\n"),
        write("c", "3"),
    )
    made, model = agent(tmp_path, reply, says("Done."))
    async with made:
        assert (await made.run("Do it.")).ok
    assert sorted(path.name for path in (tmp_path / "workspace").iterdir()) == ["a", "b"]
    assert "were not run: write_file" in model.asked[1].last.content


async def test_spawns_of_a_reply_are_children_each_and_once(tmp_path: Path) -> None:
    """They start side by side, after what was written for them to read."""
    names = [f"child{number}" for number in range(5)]
    main = [together(write("brief.md", "read this"), *map(spawn, names)), *map(wait, names), says("All done.")]
    scripted = ScriptedModels(main=main, **{name: [read("brief.md"), finish()] for name in names})
    async with tree(tmp_path, scripted) as made:
        assert (await made.run("work")).ok
        assert list(made.agents) == ["main", *names]
    told = await messages(tmp_path)
    assert [each["content"] for each in told if each.get("name") == "sys_spawn_agent"] == names
    assert all(model.asked[1].last.content == "read this" for name, model in scripted.models.items() if name != "main")


async def test_an_interrupt_ends_all_of_them() -> None:
    """None is left at work, and the model is told of each that it may have happened."""
    ended: list[int] = []
    begun = asyncio.Barrier(3)

    async def hang(number: int) -> str:
        try:
            await begun.wait()
            if number == 2:
                made.interrupt()
            await asyncio.Event().wait()
        finally:
            ended.append(number)
        return "never"

    reply = together(*(calls("hang", number=number) for number in range(3)), calls("later"))
    model = ScriptedModel([reply, says("I see.")])
    made = Agent(llm=model, config=AgentConfig(tools=[reader("hang", hang)], offload_enabled=False))
    assert (await made.query("Hang.")).reason == "interrupted"
    assert sorted(ended) == [0, 1, 2]
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert (await made.query()).over
    assert ["may or may not have happened" in text for text in results(model)] == [True, True, True, False]
    assert "was not run" in results(model)[3]


async def test_a_cancellation_ends_all_of_them() -> None:
    ended: list[int] = []
    begun = asyncio.Barrier(3)

    async def hang(number: int) -> str:
        try:
            await begun.wait()
            await asyncio.Event().wait()
        finally:
            ended.append(number)
        return "never"

    model = ScriptedModel([together(calls("hang", number=0), calls("hang", number=1))])
    made = Agent(llm=model, config=AgentConfig(tools=[reader("hang", hang)], offload_enabled=False))
    working = asyncio.create_task(made.query("Hang."))
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert sorted(ended) == [0, 1]


async def test_what_ended_before_an_interrupt_has_its_result() -> None:
    """Only what was still at work is in doubt."""

    async def step(number: int) -> str:
        if number == 0:
            return "done at once"
        await finished.wait()
        made.interrupt()
        await asyncio.Event().wait()
        return "never"

    finished = asyncio.Event()
    model = ScriptedModel([together(calls("step", number=0), calls("step", number=1)), says("I see.")])
    made = Agent(llm=model, config=AgentConfig(tools=[reader("step", step)], offload_enabled=False))
    async for event in made.run_stream("Go."):
        if isinstance(event, CallFinished):
            finished.set()
    assert made.outcome.reason == "interrupted"
    await made.query()
    assert [results(model)[0], "may or may not" in results(model)[1]] == ["done at once", True]


KILLED = """
import asyncio, sys
from cfs_agents.file_agent import FileSystemAgent, FileSystemAgentConfig
from cfs_agents.testing import ScriptedModel, calls, together
from cfs_agents.tools import FileAccess, tool
from pathlib import Path

root = Path(sys.argv[1])

@tool("Work", touches=lambda _: FileAccess("/workspace", writes=False))
async def work(number: int) -> str:
    (root / f"begun{number}").touch()
    if number < 2:
        return "worked"
    await asyncio.Event().wait()

async def main():
    reply = together(*(calls("work", number=number) for number in range(4)), calls("write_file", path="x", content="y"))
    config = FileSystemAgentConfig(tools=[work])
    async with FileSystemAgent(project_root=root, model=ScriptedModel([reply]), config=config) as agent:
        await agent.run("Work.")

asyncio.run(main())
"""


async def test_a_kill_in_their_middle_leaves_no_doubt_which_were_begun(tmp_path: Path) -> None:
    """Those with a result have happened, those without may have, and none is run again by itself."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(tmp_path))
    try:
        async with asyncio.timeout(60):
            for number in range(4):
                await until_there(tmp_path / f"begun{number}")
            await until(lambda: (tmp_path / "journal.jsonl").read_text().count('"kind": "result"') == 2)
    finally:
        process.kill()
        await process.wait()
    again: list[int] = []

    async def work(number: int) -> str:
        """Work."""
        again.append(number)
        return "again"

    model = ScriptedModel([says("I see.")])
    async with FileSystemAgent(project_root=tmp_path, model=model, config=FileSystemAgentConfig(tools=[work])) as made:
        assert made.unfinished
        assert (await made.resume()).over
    found = results(model)
    assert found[:2] == ["worked", "worked"]
    assert ["may or may not have happened" in text for text in found[2:]] == [True, True, False]
    assert "was not run" in found[4]
    assert again == []


async def test_a_journal_of_the_time_before_is_understood(tmp_path: Path) -> None:
    """A single call that was begun, with a result still to come."""
    made, _ = agent(tmp_path, says("Hello."))
    async with made:
        await events_of(made, "Hi.")
    call = ToolCall(id="c1", name="execute_command", arguments={"command": "true"})
    lines = [
        {"kind": "item", "item": ContextItem.of(Message(role="user", content="Go.")).dump(), "broken": {}},
        {
            "kind": "item",
            "item": ContextItem.of(Message(role="assistant", content="", tool_calls=(call,))).dump(),
            "broken": {},
        },
        {"kind": "intent", "call": call.model_dump(mode="json")},
    ]
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    again, model = agent(tmp_path, says("I see."))
    async with again:
        assert (await again.resume()).over
    assert "may or may not have happened" in results(model)[-1]
