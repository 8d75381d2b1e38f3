"""An agent whose session is rewound continues from the history that the session has then (S17)."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cfs_agents.main.testing import calls, says
from tests.agents.fibre.trees import ScriptedModels, answering, finish, late, said, settled, spawn, tree, wait, write
from tests.server.support import ServerHarness


async def rewind(server: ServerHarness, session: str, to: int, **how: Any) -> dict[str, Any]:
    """Rewind a session."""
    answer = await server.client.post(f"/v1/sessions/{session}/rewind", json={"to": to, **how})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def versions(server: ServerHarness, session: str) -> list[dict[str, Any]]:
    """All versions of a session."""
    answer = await server.client.get(f"/v1/sessions/{session}/versions", params={"limit": "1000"})
    listed: list[dict[str, Any]] = answer.json()["versions"]
    return listed


@pytest.mark.parametrize("running", [True, False], ids=["attached", "away"])
async def test_what_was_rewound_is_not_in_the_prompts_of_the_agent(
    tmp_path: Path, server: ServerHarness, running: bool
) -> None:
    """The task before the rewind is forgotten, the first one is not, and redo brings it back."""
    scripted = ScriptedModels(
        main=[says("I know the first."), says("I know the second."), says("Third."), says("Fourth.")]
    )
    if running:
        async with tree(tmp_path, scripted, server.url) as agent:
            await first_tasks(agent)
            await rewind(server, "main", 2)
            assert (await agent.run("third")).ok
            await back(server)
            assert (await agent.run("fourth")).ok
            (warning, _) = agent.warnings
            assert "has messages that a rewind of its session has taken back; the conversation is kept" in warning
    else:
        async with tree(tmp_path, scripted, server.url) as agent:
            await first_tasks(agent)
        await rewind(server, "main", 2)
        async with tree(tmp_path, scripted, server.url) as agent:
            assert (await agent.run("third")).ok
        await back(server)
        async with tree(tmp_path, scripted, server.url) as agent:
            assert (await agent.run("fourth")).ok
    asked = [[message.content for message in each.messages[1:]] for each in scripted.models["main"].asked]
    assert asked[2] == ["first", "I know the first.", "third"]
    assert asked[3] == ["first", "I know the first.", "second", "I know the second.", "fourth"]
    assert said((await settled(server))["history"], "user") == ["first", "second", "fourth"]


async def first_tasks(agent: Any) -> None:
    """Do two tasks."""
    for task in ("first", "second"):
        assert (await agent.run(task)).ok


async def back(server: ServerHarness) -> None:
    """Go to the version before the first rewind."""
    listed = await versions(server, "main")
    before = next(each["number"] for each in listed if each["kind"] == "rewound") - 1
    await rewind(server, "main", before)


async def test_a_rewind_in_the_middle_of_a_task_ends_the_task_and_leaves_out_its_open_calls(
    tmp_path: Path, server: ServerHarness
) -> None:
    scripted = ScriptedModels(
        main=[says("Hello."), write("a.txt"), late(write("b.txt")), says("Again.")],
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("hello")).ok
        working = asyncio.create_task(agent.run("make two files"))
        await scripted.clock.until_asleep()
        while not (later := [each["number"] for each in await versions(server, "main") if each["number"] > 3]):
            pass  # the agent sends its messages to the server as it goes on
        called = later[0]
        planned = await rewind(server, "main", called, dry_run=True)
        assert planned["sessions"][0]["cancelled"] == ["make two files"]
        await rewind(server, "main", called)
        assert not (await working).ok
        assert (await agent.run("go on")).ok
    (last,) = scripted.models["main"].asked[-1:]
    assert [message.content for message in last.messages[1:]] == ["hello", "Hello.", "make two files", "go on"]
    assert not any(message.tool_calls for message in last.messages)


async def test_one_child_goes_back_and_the_others_stay(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(
        main=[
            *(line for name in ("a", "b", "c") for line in (spawn(name), wait(name))),
            says("All done."),
            calls("sys_send_message", agent_id="b", content="what did you do?"),
            wait("b"),
            says("Asked."),
        ],
        a=[finish("a is done")],
        b=[finish("b is done"), finish("nothing yet")],
        c=[finish("c is done")],
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("go")).ok
        before = {name: (await settled(server, name))["etag"] for name in ("main", "main/a", "main/c")}
        assert (await versions(server, "main/b"))[1]["text"] == "do it"
        await rewind(server, "main/b", 0)
        assert {name: (await settled(server, name))["etag"] for name in before} == before
        assert (await agent.run("ask b")).ok
    (_, again) = scripted.models["b"].asked
    assert [message.content for message in again.messages if message.role == "user"] == [
        "[Message from main]\nwhat did you do?"
    ]


@pytest.mark.parametrize("attached", [True, False])
async def test_the_folder_of_the_agent_follows_the_files_of_its_workspace(
    tmp_path: Path, server: ServerHarness, attached: bool
) -> None:
    """What a command and a tool have changed goes back, and the agent's next step sees it."""
    folder = tmp_path / "main/agent_workspace"
    scripted = ScriptedModels(
        main=[
            write("a.txt", "one"),
            says("First."),
            write("a.txt", "two"),
            write("b.txt", "new"),
            says("Second."),
            calls("read_file", path="a.txt"),
            calls("list_directory", path="."),
            says("Third."),
        ]
    )
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(tree(tmp_path, scripted, server.url))
        assert (await agent.run("first")).ok
        there = (await versions(server, "main"))[-1]["number"]
        assert (await agent.run("second")).ok
        assert await asyncio.to_thread(contents, folder) == {"a.txt": "two", "b.txt": "new"}
        if not attached:
            await stack.aclose()
        done = await rewind(server, "main", there)
        assert [(file["path"], file["change"]) for file in done["files"]] == [
            ("/workspaces/main/a.txt", "restored"),
            ("/workspaces/main/b.txt", "removed"),
        ]
        if not attached:
            agent = await stack.enter_async_context(tree(tmp_path, scripted, server.url))
        assert (await agent.run("third")).ok
    assert await asyncio.to_thread(contents, folder) == {"a.txt": "one"}
    read, listed = (asked.last.content for asked in scripted.models["main"].asked[-2:])
    assert "one" in read
    assert "a.txt" in listed
    assert "b.txt" not in listed


async def test_files_leave_the_folder_of_an_agent_that_waits(tmp_path: Path, server: ServerHarness) -> None:
    """Without another task: who looks into the folder after a rewind sees what the command has said."""
    folder = tmp_path / "main/agent_workspace"
    scripted = ScriptedModels(main=[write("a.txt", "one"), says("Done.")])
    async with tree(tmp_path, scripted, server.url) as agent, answering(agent):
        await server.say("main", "make a.txt")
        await settled(server)
        assert await asyncio.to_thread(contents, folder) == {"a.txt": "one"}
        await rewind(server, "main", 0)
        await asyncio.to_thread(until_contents, folder, {})
        answer = await server.client.post("/v1/sessions/main/redo")
        assert answer.status_code == 200, answer.text
        await asyncio.to_thread(until_contents, folder, {"a.txt": "one"})


async def test_merged_files_come_to_the_folder_of_an_agent_that_waits(tmp_path: Path, server: ServerHarness) -> None:
    folder = tmp_path / "main/agent_workspace"
    scripted = ScriptedModels(main=[write("a.txt", "one"), says("Done.")])
    async with tree(tmp_path, scripted, server.url) as agent, answering(agent):
        await server.say("main", "make a.txt")
        await settled(server)
        for method, path, body in (
            ("POST", "/v1/sessions/main/fork", {"json": {"id": "copy"}}),
            ("PUT", "/v1/files/workspaces/copy/a.txt", {"content": b"two"}),
            ("POST", "/v1/versions/workspaces/main", {"json": {"source": "copy"}}),
        ):
            answer = await server.client.request(method, path, **body)
            assert answer.status_code < 300, answer.text
        await asyncio.to_thread(until_contents, folder, {"a.txt": "two"})


async def test_the_author_of_a_message_is_its_writer_and_not_the_agent_that_answers(
    tmp_path: Path, server: ServerHarness
) -> None:
    scripted = ScriptedModels(main=[write("a.txt"), says("Done.")])
    async with tree(tmp_path, scripted, server.url) as agent, answering(agent):
        await server.say("main", "make a.txt")
        await settled(server)
        listed = [(each["role"], each["author"]["agent"]) for each in (await versions(server, "main"))[1:]]
        assert listed == [("user", None), ("assistant", "main"), ("tool", "main"), ("assistant", "main")]


def until_contents(folder: Path, wanted: dict[str, str]) -> None:
    """Wait until a folder has these files."""
    while sorted(path.name for path in folder.iterdir()) != sorted(wanted) or contents(folder) != wanted:
        time.sleep(0.01)


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
