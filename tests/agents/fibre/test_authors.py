"""Requests of agents name the agent and the tool call that they come from, so that records of the server can."""

from pathlib import Path

import httpx

from cfs import api
from cfs.transports.async_http import AsyncClient
from cfs_agents.main.testing import calls, says
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, wait
from tests.server.support import ServerHarness


async def test_each_request_names_its_agent_and_its_call(tmp_path: Path, server: ServerHarness) -> None:
    """A child's session and task come from its parent's call, and its messages from itself."""
    seen: list[tuple[str, str, str | None, str | None]] = []

    async def look(request: httpx.Request) -> None:
        headers = request.headers
        seen.append((request.method, request.url.path, headers.get(api.AGENT), headers.get(api.TOOL_CALL)))

    scripted = ScriptedModels(
        main=[spawn("child"), calls("elsewhere"), wait("child"), says("ok")], child=[finish("done")]
    )
    async with AsyncClient(server.url) as client:
        client._http.event_hooks["request"].append(look)

        async def elsewhere() -> str:
            """Make a session."""
            return (await client.call(api.create("else/where"))).id

        config = FibreConfig(tick_seconds=0.02, tools=[elsewhere])
        async with FibreAgent(tmp_path, scripted, config, client=client) as agent:
            assert (await agent.run("go")).summary == "ok"
            asked = [
                call.id for each in agent.agents["main"].context.message_manager.messages for call in each.tool_calls
            ]

    changes = [(path, by, call) for method, path, by, call in seen if method == "POST"]
    child = "/v1/sessions/main/child"
    assert changes.count(("/v1/sessions", "main", None)) == 1
    assert changes.count(("/v1/sessions", "main", asked[0])) == 1
    assert changes.count(("/v1/sessions", "main", asked[1])) == 1
    assert (f"{child}/messages", "main", asked[0]) in changes
    own = {(by, call) for path, by, call in changes if path.startswith(f"{child}/turns/")}
    assert own == {("main/child", None)}
    roots = {(by, call) for path, by, call in changes if path.startswith("/v1/sessions/main/turns/")}
    assert roots == {("main", None)}


def test_names_are_encoded_and_end_with_their_block() -> None:
    with api.acting_as("é/b", "1"):
        with api.acting_as(call=""):
            assert api.author() == {api.AGENT: "%C3%A9/b"}
        assert api.author() == {api.AGENT: "%C3%A9/b", api.TOOL_CALL: "1"}
    assert api.author() == {}
