"""Writing to agents that work and to agents that are done, from other agents and from outside (S10, B2)."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from cfs_agents.main.testing import calls, says, together
from tests.agents.fibre.trees import (
    ScriptedModels,
    finish,
    late,
    messages,
    roles,
    said,
    settled,
    spawn,
    status,
    tree,
    wait,
    write,
    writer,
)
from tests.server.support import ServerHarness, until

SEND = "sys_send_message"


async def test_a_message_reaches_a_working_child_at_its_next_step(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[spawn("a"), late(calls(SEND, agent_id="a", content="b too"), 1), wait("a"), says("ok")],
        a=[late(write("a.txt")), write("b.txt"), finish()],
    )
    async with tree(tmp_path, scripted) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep(2)
        scripted.clock.advance(1)
        await until(lambda: len(scripted.models["main"].asked) == 3)
        scripted.clock.advance(4)
        assert (await working).ok
    assert scripted.models["a"].asked[1].last.content == "[Message from main]\nb too"
    assert said(await messages(tmp_path, "a"), "user") == ["do it", "[Message from main]\nb too"]


async def test_a_message_to_a_child_that_is_done_puts_it_to_work_again(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), calls(SEND, agent_id="a", content="once more"), wait("a"), says("ok")],
        a=[finish("first"), finish("second")],
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("go")).ok
    results = [each["content"] for each in await messages(tmp_path) if each.get("name") == "sys_wait_agent"]
    assert ["first" in results[0], "second" in results[1]] == [True, True]
    child = await settled(server, "main/a")
    assert said(child["history"]) == ["first", "second"]
    assert said(child["history"], "user") == ["do it", "[Message from main]\nonce more"]


async def test_who_writes_to_the_session_of_the_root_steers_it(tmp_path: Path, server: ServerHarness) -> None:
    """The newer message is taken at the next step; each message has its reply (S4)."""
    scripted = ScriptedModels(main=[late(write("a.txt")), says("Both.")])
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("make a"))
        await scripted.clock.until_asleep()
        await server.say("main", "and say so")
        scripted.clock.advance(5)
        assert (await working).summary == "Both."
    detail = await settled(server)
    assert said(detail["history"], "user") == ["make a", "and say so"]
    assert said(detail["history"]) == ["[A newer message has come; the work goes on with it.]", "Both."]
    assert scripted.models["main"].asked[1].last.content == "and say so"
    assert roles(await messages(tmp_path)) == ["user", "assistant", "tool", "user", "assistant"]


async def test_who_writes_to_the_session_of_a_child_steers_it(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[late(write("a.txt")), finish("as you say")])
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.say("main/a", "use tabs")
        scripted.clock.advance(5)
        assert (await working).ok
    assert scripted.models["a"].asked[1].last.content == "use tabs"
    assert said((await settled(server, "main/a"))["history"])[-1] == "as you say"


async def test_a_message_to_the_answering_root_is_answered_too(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[late(says("First.")), says("Second.")])
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("one"))
        await scripted.clock.until_asleep()
        await server.say("main", "two")
        scripted.clock.advance(5)
        assert (await working).summary == "Second."
    assert said((await settled(server))["history"])[-1] == "Second."


async def test_who_writes_to_a_child_that_is_done_puts_it_to_work_again(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), late(calls("list_directory")), calls("list_directory"), says("ok")],
        a=[finish("first"), finish("second")],
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.say("main/a", "look again")
        await server.until("main/a", "turn.finished", 2)
        await until(lambda: agent.agents["main"].record.inbox)
        scripted.clock.advance(5)
        assert (await working).ok
    news = said(await messages(tmp_path), "user")
    assert [text.partition("\n")[0] for text in news] == ["go", "[A sub-agent is done.]"]
    assert "second" in news[1]


async def test_a_wait_ends_early_when_a_message_comes(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), wait("a"), says("ok")],
        a=[late(write("a.txt")), finish()],
    )
    async with tree(tmp_path, scripted, server.url) as agent:
        working = asyncio.create_task(agent.run("go"))
        await scripted.clock.until_asleep()
        await server.say("main", "hurry")
        await until(lambda: len(scripted.models["main"].asked) == 3)
        scripted.clock.advance(5)
        assert (await working).ok
    texts = [message.content for message in scripted.models["main"].asked[2].messages]
    assert texts[-1] == "hurry"
    assert "A message has come for you" in texts[-2]


async def test_a_root_that_answers_too_early_is_asked_once_and_then_its_children_are_ended(
    tmp_path: Path, server: ServerHarness
) -> None:
    scripted = ScriptedModels(main=[spawn("a"), says("started"), says("I do not wait")], a=[late(finish())])
    async with tree(tmp_path, scripted, server.url) as agent:
        assert (await agent.run("go")).summary == "I do not wait"
        assert agent.agents["a"].report is not None
        assert agent.agents["a"].report.status == "cancelled"
    assert "still at work: a" in scripted.models["main"].asked[2].last.content
    assert "its parent has ended" in said((await settled(server, "main/a"))["history"])[-1]
    await settled(server)


async def test_a_child_that_answers_is_asked_once_for_its_report(tmp_path: Path) -> None:
    scripted = ScriptedModels(
        main=[together(spawn("a"), spawn("b")), wait("a"), wait("b"), says("ok")],
        a=[says("here it is"), finish("now")],
        b=[says("here it is"), says("I have said it")],
    )
    async with tree(tmp_path, scripted) as agent:
        await agent.run("go")
        reports = {name: sub_agent.report for name, sub_agent in agent.agents.items()}
    assert reports["a"] is not None
    assert reports["b"] is not None
    assert (reports["a"].status, reports["a"].summary) == ("success", "now")
    assert (reports["b"].status, reports["b"].summary) == ("unverified", "I have said it")
    assert "sys_finish_task" in scripted.models["b"].asked[1].last.content


async def test_an_attached_agent_answers_one_message_after_the_other(tmp_path: Path, server: ServerHarness) -> None:
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("one"), says("two")], a=writer("a"))
    async with tree(tmp_path, scripted, server.url) as agent, aclosing(agent.serve()) as chunks:
        ended = []
        await server.create("main", driver="agent")
        await server.say("main", "first")
        async for chunk in chunks:
            if chunk.kind == "ended" and chunk.session_id == "main":
                ended.append(chunk.content)
                if len(ended) == 2:
                    break
                await server.say("main", "second")
    assert ended == ["one", "two"]
    assert said((await settled(server))["history"]) == ["one", "two"]
    assert (await status(tmp_path))["state"] == "done"
