"""Questions of agents are put to the person at an MCP client while its call waits for the agent (A5, H9)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, types

from cfs import api
from cfs.transports.async_http import AsyncClient
from cfs.wire import AgentFinish, SettingsPatch
from pytest_cfs import ScriptedServer

from .conftest import Connect

pytestmark = [pytest.mark.external, pytest.mark.asyncio(loop_scope="module")]
TEXT = "coder asks: may it run this command in /srv?\n  | make\n  | test\nAnswer with one word: allow, always, deny\n"


@asynccontextmanager
async def agent(server: ScriptedServer, session: str = "coder", above: str | None = None) -> AsyncIterator[AsyncClient]:
    """An agent that answers its next message with what a person has answered to its question."""
    async with AsyncClient(server.url) as client:
        for name in filter(None, (above, session)):
            await client.call(api.create(name, SettingsPatch(driver="agent")))

        async def work() -> None:
            while (claim := await client.call(api.claim(session, wait=20.0))) is None:
                pass
            question = await client.call(api.ask(session, claim.claim, "make\ntest", directory="/srv"))
            while question.state == "open":
                question = await client.call(api.question(session, question.id, 20.0))
            end = AgentFinish(claim=claim.claim, reply=f"{question.answer} by {question.by}")
            await client.call(api.finish(session, claim.turn, end))

        task = asyncio.create_task(work())
        try:
            yield client
        finally:
            task.cancel()
            await asyncio.wait([task])


class Person:
    """Answers what a client elicits."""

    def __init__(self, *answers: str | None, before: Callable[[], Any] | None = None) -> None:
        self.asked: list[types.ElicitRequestFormParams] = []
        self._answers = list(answers)
        self._before = before

    async def __call__(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.asked.append(params)
        if self._before is not None:
            await self._before()
        answer = self._answers.pop(0)
        if answer is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"answer": answer})


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    content: dict[str, Any] | None = result.structured_content
    assert content is not None
    return content


async def history(client: AsyncClient, session: str = "coder") -> list[str]:
    return [message.content for message in (await client.call(api.read(session, 30.0))).history]


async def test_the_person_answers_by_elicitation(connect: Connect, cfs_server: ScriptedServer) -> None:
    """The reply comes by the same call, and the message was sent once."""
    person = Person("deny")
    async with agent(cfs_server) as client, connect(elicitation_callback=person) as mcp:
        sent = await called(mcp, "send_message", session="coder", message="go")
        assert (sent["finished"], sent["reply"], sent["questions"]) == (True, "deny by local", [])
        assert await history(client) == ["go", "deny by local"]
    (asked,) = person.asked
    assert asked.message == TEXT
    assert asked.requested_schema["properties"]["answer"]["enum"] == ["allow", "always", "deny"]


async def test_a_wait_asks_for_the_agents_below(connect: Connect, cfs_server: ScriptedServer) -> None:
    person = Person("always")
    async with agent(cfs_server, "main/coder", "main") as client, connect(elicitation_callback=person) as mcp:
        await called(mcp, "send_message", session="main/coder", message="go", wait_seconds=0)
        waited = await called(mcp, "wait", session="main")
        assert (waited["settled"], waited["questions"]) == (True, [])
        assert await history(client, "main/coder") == ["go", "always by local"]
    assert person.asked[0].message.startswith("main/coder asks: may it run this command in /srv?")


async def test_without_elicitation_the_result_says_what_is_asked(connect: Connect, cfs_server: ScriptedServer) -> None:
    """The call ends early, as it would wait in vain, and its turn goes on."""
    async with agent(cfs_server) as client, connect() as mcp:
        sent = await called(mcp, "send_message", session="coder", message="go")
        assert sent["finished"] is False
        (question,) = sent["questions"]
        assert question["text"] == TEXT
        assert f"cfs answer coder {question['id'][:8]} allow|always|deny" in question["how_to_answer"]
        waited = await called(mcp, "wait", session="coder")
        assert (waited["settled"], waited["questions"]) == (False, [question])
        await client.call(api.answer("coder", question["id"], "allow"))
        assert (await called(mcp, "wait", session="coder"))["settled"] is True
        assert await history(client) == ["go", "allow by local"]


async def test_a_question_that_is_declined_stays_open(connect: Connect, cfs_server: ScriptedServer) -> None:
    person = Person(None)
    async with agent(cfs_server) as client, connect(elicitation_callback=person) as mcp:
        sent = await called(mcp, "send_message", session="coder", message="go")
        (question,) = sent["questions"]
        assert (sent["finished"], len(person.asked)) == (False, 1)
        assert (await client.call(api.question("coder", question["id"]))).state == "open"
        await client.call(api.answer("coder", question["id"], "deny"))
        assert await history(client) == ["go", "deny by local"]


async def test_the_first_answer_counts(connect: Connect, cfs_server: ScriptedServer) -> None:
    """Somebody answers elsewhere while the person thinks."""
    async with agent(cfs_server) as client:

        async def elsewhere() -> None:
            (question,) = await client.call(api.questions("coder"))
            await client.call(api.answer("coder", question.id, "deny"))

        async with connect(elicitation_callback=Person("allow", before=elsewhere)) as mcp:
            sent = await called(mcp, "send_message", session="coder", message="go")
            assert (sent["finished"], sent["reply"]) == (True, "deny by local")
