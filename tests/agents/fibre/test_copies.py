"""A copy of a session that an agent answers: what is in it, and what an agent that is attached to it knows (S14)."""

import asyncio
import json
from pathlib import Path

import pytest

from cfs import Session, api
from cfs.transports.async_http import AsyncClient
from cfs_agents.main.testing import says
from tests.agents.fibre.trees import ScriptedModels, spawn, tree, wait, writer
from tests.client.terminal import Running
from tests.server.support import ServerHarness, serving

ORDER = "Let a write its file."


async def work(folder: Path, server: ServerHarness) -> None:
    """A tree does a task in the session `main`."""
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("a.txt is there.")], a=writer("a"))
    async with tree(folder, scripted, server.url) as agent:
        assert (await agent.run(ORDER)).ok


async def test_a_copy_says_what_is_not_in_it(tmp_path: Path, server: ServerHarness) -> None:
    """By REST, WebDAV and the SDK it is answered by the model, as a new session is, and says so where it can."""
    await work(tmp_path, server)
    copy = (await server.client.post("/v1/sessions/main/fork", json={"id": "rest"})).json()
    agent, children = copy["warnings"]
    assert agent.startswith("the agent of main answers there only, and the driver is model: `cfs agent serve")
    assert children == "sub-sessions are not copied: main has 1"
    target = {"Destination": f"{server.url}/dav/sessions/dav"}
    assert (await server.client.request("COPY", "/dav/sessions/main", headers=target)).status_code == 201
    async with AsyncClient(server.url) as client:
        await client.call(api.fork("main", "sdk"))
        whole = (await client.call(api.read("main"))).history
        for name in ("rest", "dav", "sdk"):
            detail = await client.call(api.read(name))
            assert (detail.history, detail.sub_sessions) == (whole, 0)
            assert (await client.call(api.settings(name))).driver == "model"
        assert (await client.call(api.fork("rest", "plain"))).warnings == ()


def forget_life(folder: Path) -> None:
    """Let the folder of a tree be that of a session which this server has never had."""
    status = folder / "session_status.json"
    status.write_text(
        json.dumps(json.loads(status.read_text(encoding="utf-8")) | {"life": "00000000"}), encoding="utf-8"
    )


@pytest.mark.parametrize("before", [False, True])
async def test_an_agent_of_a_copy_knows_the_history_of_the_session(
    tmp_path: Path, server: ServerHarness, before: bool
) -> None:
    """Also if its folder holds the conversation of a lost session of the name, which is put aside."""
    await work(tmp_path, server)
    if before:
        async with tree(tmp_path, ScriptedModels(copy=[says("I know.")]), server.url, session="copy") as agent:
            assert (await agent.run("Remember another thing.")).ok
        await server.client.delete("/v1/sessions/copy")
        await asyncio.to_thread(forget_life, tmp_path / "copy")
    await server.client.post("/v1/sessions/main/fork", json={"id": "copy"})
    scripted = ScriptedModels(copy=[says("You asked for a.txt.")])
    async with tree(tmp_path, scripted, server.url, session="copy") as agent:
        assert (await agent.run("What did I ask for?")).ok
        assert len(agent.warnings) == before
    (asked,) = scripted.models["copy"].asked
    shown = [message.content for message in asked.messages if message.role == "user"]
    assert shown[0] == ORDER
    assert shown[-1] == "What did I ask for?"
    assert not any("another thing" in message.content for message in asked.messages)
    history = (await server.client.get("/v1/sessions/copy")).json()["history"]
    assert [each["content"] for each in history] == [each.content for each in asked.messages[1:]] + [
        "You asked for a.txt."
    ]
    aside = tmp_path / "copy/messages.json.aside-1"
    assert await asyncio.to_thread(aside.exists) is before


def test_the_program_takes_over_the_history_of_a_copy(tmp_path: Path) -> None:
    """`cfs agent serve --session copy`, by a session that the model has answered before."""
    with serving("--engine", "scripted") as server:
        with Session("chat", url=server.url) as session:
            session.send("the first message")
            session.fork("copy")
        with Running(server.url, "agent", "serve", "--session", "copy", "--root", str(tmp_path)) as running:
            errors = running.process.stderr
            assert errors is not None
            assert errors.readline() == b"[an agent answers in copy; Ctrl-C ends it]\n"
            with Session("copy", url=server.url) as session:
                session.send("the second message")
        stored = json.loads((tmp_path / "copy/messages.json").read_text(encoding="utf-8"))
        assert [each["content"] for each in stored if each["role"] == "user"] == [
            "the first message",
            "the second message",
        ]
