"""What coding agents send as responses of OpenAI besides functions and texts: all of it is read, or said (H8)."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from tests.protocols.scripts import PARAMETERS
from tests.server.openai_client import speaking
from tests.server.support import ServerHarness, running_server

GRAMMAR = 'start: "*** Begin Patch" /.+/'
TOOLS: list[Any] = [
    {"type": "function", "name": "plain", "parameters": PARAMETERS, "defer_loading": True},
    {
        "type": "namespace",
        "name": "mcp__weather",
        "description": "Tools of a server.",
        "tools": [
            {"type": "function", "name": "forecast", "parameters": PARAMETERS, "strict": False},
            {"type": "custom", "name": "note"},
        ],
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Change files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
    },
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
    {"type": "image_generation"},
    {"type": "tool_search", "execution": "client"},
]
NAMES = ["plain", "mcp__weather__forecast", "mcp__weather__note", "apply_patch"]
LEFT_OUT = (
    "tools that OpenAI's service runs are not here, and were left out: web_search, local_shell, image_generation, "
    "tool_search"
)


def calling(request: GenerationRequest) -> Iterator[Delta]:
    """Call all tools that the last message names, in two pieces each; without any, answer."""
    offered = set(map(tool_name, request.options.tools))
    names = [name for name in request.messages[-1].content.split() if name in offered]
    for index, name in enumerate(names):
        text = '{"input": "*** Begin\\nPatch"}' if name in ("apply_patch", "mcp__weather__note") else '{"city": "Oslo"}'
        yield Delta("", 1, calls=(CallDelta(index, f"call_{index}", name, text[:9]),))
        yield Delta("", 1, calls=(CallDelta(index, arguments=text[9:]),))
    if not names:
        yield Delta("Done.", 1)


def tool_name(tool: Any) -> str:
    return str(tool["function"]["name"])


@pytest.fixture
async def server() -> AsyncIterator[ServerHarness]:
    async with running_server(calling, may_block=True) as here:
        yield here


@pytest.fixture
async def client(server: ServerHarness) -> AsyncIterator[AsyncOpenAI]:
    async with speaking(server.url) as here:
        yield here


def said(request: GenerationRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.messages]


# -- tools ------------------------------------------------------------------------------------------------------------


async def test_tools_of_all_kinds_are_functions_of_the_model_and_calls_have_the_clients_names(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    """A namespace is flattened, a custom tool takes one text, and what OpenAI runs is left out and said."""
    async with client.responses.stream(model="x", input=" ".join(NAMES), tools=TOOLS) as stream:
        events: list[Any] = [event async for event in stream]
    final: Any = events[-1].response
    (request,) = server.engine.requests
    assert [tool_name(tool) for tool in request.options.tools] == NAMES
    patch = request.options.tools[3]["function"]
    assert patch["description"] == f"Change files.\n\n`input` follows this grammar (lark):\n{GRAMMAR}"
    assert patch["parameters"]["required"] == ["input"]
    calls = [(item.type, item.name, getattr(item, "namespace", None)) for item in final.output]
    assert calls == [
        ("function_call", "plain", None),
        ("function_call", "forecast", "mcp__weather"),
        ("custom_tool_call", "note", "mcp__weather"),
        ("custom_tool_call", "apply_patch", None),
    ]
    assert (final.output[1].arguments, final.output[3].input) == ('{"city": "Oslo"}', "*** Begin\nPatch")
    assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == [
        "*** Begin\nPatch"
    ] * 2
    assert final.warnings == [LEFT_OUT]
    assert [tool.type for tool in final.tools] == ["function", "namespace", "custom"]


async def test_a_response_that_is_not_stored_says_what_was_left_out(client: AsyncOpenAI) -> None:
    found: Any = await client.responses.create(model="x", input="a", tools=TOOLS, store=False)
    assert found.warnings == [LEFT_OUT]


async def test_what_a_client_sends_back_is_the_history_that_its_session_has(
    server: ServerHarness, client: AsyncOpenAI
) -> None:
    """Calls by the client's names, with and without their namespace's marks, are those that the model has made."""
    items: list[Any] = [{"role": "user", "content": " ".join(NAMES)}]
    first: Any = await client.responses.create(model="x", input=items, tools=TOOLS)
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items += [
        {"type": "function_call_output", "call_id": "call_0", "output": "0"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "2"},
        {"type": "custom_tool_call_output", "call_id": "call_3", "output": "patched"},
    ]
    second: Any = await client.responses.create(model="x", input=items, tools=TOOLS)
    assert (second.cfs["session"], second.output_text) == (first.cfs["session"], "Done.")
    history = server.store.get(first.cfs["session"]).history
    assert history.version == len(history) == 7  # nothing was replaced
    assert [call.name for call in history.messages[1].tool_calls] == NAMES
    assert history.messages[1].tool_calls[3].arguments == {"input": "*** Begin\nPatch"}


@pytest.mark.parametrize(
    ("choice", "names", "required"),
    [
        ({"type": "custom", "name": "apply_patch"}, ["apply_patch"], "required"),
        ({"type": "function", "name": "forecast", "namespace": "mcp__weather"}, ["mcp__weather__forecast"], "required"),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}],
            },
            ["apply_patch"],
            "auto",
        ),
    ],
)
async def test_tools_of_all_kinds_can_be_chosen(
    server: ServerHarness, client: AsyncOpenAI, choice: Any, names: list[str], required: str
) -> None:
    await client.responses.create(model="x", input="a", tools=TOOLS, tool_choice=choice, store=False)
    (request,) = server.engine.requests
    assert ([tool_name(tool) for tool in request.options.tools], request.options.tool_choice) == (names, required)


async def test_a_choice_that_cannot_be_carried_out_is_refused(server: ServerHarness) -> None:
    """A tool that OpenAI runs cannot be forced, nor a call if no tool is left."""
    for members in (
        {"tools": TOOLS, "tool_choice": {"type": "web_search"}},
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        {"tools": [{"type": "web_search"}], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
    ):
        answer = await server.client.post("/v1/responses", json={"input": "a", **members})
        assert (answer.status_code, answer.json()["error"]["param"].split(".")[0]) == (400, "tool_choice"), members
    assert server.engine.requests == []


async def test_long_names_in_namespaces_fit_and_stay_apart(server: ServerHarness, client: AsyncOpenAI) -> None:
    """OpenAI's limit for the name of a function is 64 characters; namespaces of MCP servers make longer ones."""
    long = "mcp__" + "a" * 50
    inner: Any = [{"type": "function", "name": "tool_" + "b" * 30 + end} for end in "xy"]
    tools: Any = [{"type": "namespace", "name": long, "tools": inner}]
    choice: Any = {"type": "function", "name": inner[1]["name"], "namespace": long}
    await client.responses.create(model="x", input="a", tools=tools, store=False)
    await client.responses.create(model="x", input="a", tools=tools, tool_choice=choice, store=False)
    names = [tool_name(tool) for tool in server.engine.requests[0].options.tools]
    assert len(set(names)) == 2
    assert max(map(len, names)) == 64
    assert [tool_name(tool) for tool in server.engine.requests[1].options.tools] == [names[1]]


# -- items ------------------------------------------------------------------------------------------------------------


async def test_items_of_tools_that_the_client_runs_are_calls_and_results(server: ServerHarness) -> None:
    items = [
        {"role": "user", "content": "a"},
        {
            "type": "local_shell_call",
            "call_id": "1",
            "action": {"type": "exec", "command": ["ls"]},
            "status": "completed",
        },
        {"type": "local_shell_call_output", "call_id": "1", "output": "file"},
        {"type": "apply_patch_call", "call_id": "2", "operation": {"type": "delete_file", "path": "x"}},
        {"type": "apply_patch_call_output", "call_id": "2", "output": {"ok": True}},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "reasoning", "encrypted_content": "AAAA", "summary": []},
        {"role": "user", "content": "b"},
    ]
    answer = await server.client.post("/v1/responses", json={"input": items, "store": False})
    (request,) = server.engine.requests
    assert said(request) == [
        ("user", "a"),
        ("assistant", ""),
        ("tool", "file"),
        ("assistant", ""),
        ("tool", '{"ok": true}'),
        ("assistant", ""),
        ("user", "b"),
    ]
    calls = [call for message in request.messages for call in message.tool_calls]
    assert [(call.name, call.arguments["type"]) for call in calls] == [
        ("local_shell", "exec"),
        ("apply_patch", "delete_file"),
    ]
    assert answer.json()["warnings"] == [
        "items that OpenAI's service runs are not here, and were left out: web_search_call"
    ]


async def test_items_that_are_all_left_out_are_refused(server: ServerHarness) -> None:
    await server.create("talk")
    items = [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]
    for path, member in (("/v1/responses", "input"), ("/v1/conversations/talk/items", "items")):
        answer = await server.client.post(path, json={member: items})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, member)


async def test_pictures_of_a_tool_have_a_text_in_their_place(server: ServerHarness) -> None:
    """Codex sends the result of `view_image` with every later request: a refusal would end the conversation."""
    items = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "1", "name": "view_image", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [{"type": "input_text", "text": "It is: "}, {"type": "input_image", "image_url": "data:,x"}],
        },
    ]
    answer = await server.client.post("/v1/responses", json={"input": items, "store": False})
    assert answer.status_code == 200
    assert server.engine.requests[0].messages[-1].content == "It is: [A picture, which is not read here]"


async def test_an_encrypted_summary_is_refused_with_what_to_do(server: ServerHarness) -> None:
    """Without it the conversation would go on without its beginning."""
    items = [{"type": "compaction", "encrypted_content": "AAAA"}, {"role": "user", "content": "a"}]
    answer = await server.client.post("/v1/responses", json={"input": items})
    assert answer.status_code == 400
    assert "begin a new conversation" in answer.json()["error"]["message"]


# -- references -------------------------------------------------------------------------------------------------------


def thinking(request: GenerationRequest) -> Iterable[Delta]:
    """Think, speak, think and speak again, and call a tool if there is one."""
    yield Delta("", 1, thinking="hm ")
    yield Delta("one ", 1)
    yield Delta("", 1, thinking="again")
    yield Delta(f"two {len(request.messages)}", 1)
    if request.options.tools:
        yield Delta("", 1, calls=(CallDelta(0, "c1", "plain", '{"city": "Oslo"}'),))


async def test_references_stand_for_the_items_that_this_server_gave() -> None:
    """As the AI SDK sends them by default: each item of an earlier response by its id."""
    async with running_server(thinking, may_block=True) as server:
        user = {"role": "user", "content": "a"}
        first = (await server.client.post("/v1/responses", json={"input": [user], "tools": TOOLS[:1]})).json()
        kinds = ["reasoning", "message", "reasoning", "message", "function_call"]
        assert [item["type"] for item in first["output"]] == kinds
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        result = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
        second = (await server.client.post("/v1/responses", json={"input": [user, *references, result]})).json()
        session = second["cfs"]["session"]
        assert session == first["cfs"]["session"]
        history = server.store.get(session).history
        assert history.version == len(history) == 4
        assert server.engine.requests[1].messages[:2] == history.messages[:2]
        stored = (await server.client.get(f"/v1/responses/{first['id']}")).json()
        assert stored["output"] == first["output"]
        listed = (await server.client.get(f"/v1/conversations/{session}/items?order=asc&limit=1")).json()["data"]
        given = (await server.client.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
        assert given == listed
        third = {"input": [{"id": given[0]["id"]}, {"role": "user", "content": "b"}], "store": False}
        assert (await server.client.post("/v1/responses", json=third)).status_code == 200
        assert said(server.engine.requests[2]) == [("user", "a"), ("user", "b")]


@pytest.mark.parametrize(
    "name", ["msg_x", "msg_" + "0" * 32 + "_1_0", "rs_" + "0" * 32, "msg_SESSION_9_0", "fc_SESSION_1_7"]
)
async def test_a_reference_to_nothing_is_an_error(server: ServerHarness, client: AsyncOpenAI, name: str) -> None:
    first: Any = await client.responses.create(model="x", input="a")
    key = server.store.get(first.cfs["session"]).key
    items = [{"type": "item_reference", "id": name.replace("SESSION", key)}, {"role": "user", "content": "b"}]
    answer = await server.client.post("/v1/responses", json={"input": items})
    assert (answer.status_code, len(server.store)) == (404, 1)
    assert "there is no item" in answer.json()["error"]["message"]


async def test_an_item_is_referred_to_once(server: ServerHarness, client: AsyncOpenAI) -> None:
    """As at OpenAI; else a short request could be a conversation of any length."""
    first: Any = await client.responses.create(model="x", input="a")
    reference = {"type": "item_reference", "id": first.output[0].id}
    answer = await server.client.post("/v1/responses", json={"input": [reference, reference, user("b")]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


# -- unnamed conversations --------------------------------------------------------------------------------------------


async def respond(client: httpx.AsyncClient, items: list[Any], **members: Any) -> dict[str, Any]:
    answer = await client.post("/v1/responses", json={"input": items, **members})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def reply(response: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": response["output"][-1]["content"][0]["text"]}


async def test_unnamed_responses_that_continue_each_other_are_one_session(server: ServerHarness) -> None:
    """What goes on otherwise, or begins anew, has a session of its own."""
    first = await respond(server.client, [user("a")])
    second = await respond(server.client, [user("a"), reply(first), user("b")])
    third = await respond(server.client, [user("a"), reply(first), user("b"), reply(second), user("c")])
    assert first["cfs"]["session"] == second["cfs"]["session"] == third["cfs"]["session"]
    branch = await respond(server.client, [user("a"), reply(first), user("other")])
    anew = await respond(server.client, [user("a")])
    assert len({third["cfs"]["session"], branch["cfs"]["session"], anew["cfs"]["session"]}) == 3
    again = await respond(server.client, [user("a"), reply(anew), user("d")])
    assert again["cfs"]["session"] == anew["cfs"]["session"]
    assert (await server.text(first["cfs"]["session"])).count("User: ") == 3


async def test_a_turn_that_was_cancelled_is_left_out_or_repeated_in_the_same_session(server: ServerHarness) -> None:
    """The client has no reply of it, or the part that came."""
    first = await respond(server.client, [user("a")])
    server.engine.hold()
    running = await respond(server.client, [user("a"), reply(first), user("b")], background=True)
    assert running["cfs"]["session"] == first["cfs"]["session"]
    await server.client.post(f"/v1/responses/{running['id']}/cancel")
    server.engine.release()
    after = await respond(server.client, [user("a"), reply(first), user("b"), user("c")])
    assert after["cfs"]["session"] == first["cfs"]["session"]
    assert "[Cancelled]" not in await server.text(first["cfs"]["session"])


async def test_a_request_that_failed_is_repeated_in_its_session() -> None:
    """As clients do on their own; here the turn began with the result of a call."""
    failures = iter((False, True, False))

    def failing_once(request: GenerationRequest) -> Iterator[Delta]:
        if next(failures):
            raise EngineError("the engine broke")
        yield from calling(request)

    async with running_server(failing_once, may_block=True) as server:
        first = await respond(server.client, [user("plain")], tools=TOOLS[:1])
        items = [user("plain"), *first["output"], {"type": "function_call_output", "call_id": "call_0", "output": "x"}]
        assert (await server.client.post("/v1/responses", json={"input": items})).status_code == 502
        again = await respond(server.client, items)
        assert (again["cfs"]["session"], len(server.store)) == (first["cfs"]["session"], 1)
        assert "[Error" not in await server.text(first["cfs"]["session"])


async def test_a_busy_session_is_not_continued_twice(server: ServerHarness) -> None:
    first = await respond(server.client, [user("a")])
    server.engine.hold()
    items = [user("a"), reply(first), user("b")]
    one, two = [await respond(server.client, items, background=True) for _ in range(2)]
    assert one["cfs"]["session"] == first["cfs"]["session"] != two["cfs"]["session"]
    server.engine.release()
    assert await server.text(two["cfs"]["session"]) == await server.text(one["cfs"]["session"])


@pytest.mark.parametrize("kind", [[], {}, 5, None, ["function"]])
async def test_a_type_that_is_no_text_is_refused(server: ServerHarness, kind: Any) -> None:
    for members in (
        {"input": [{"type": kind, "role": "user", "content": "a"}]},
        {"tools": [{"type": kind, "name": "x"}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": kind, "name": "x"}]}]},
        {"tool_choice": {"type": kind, "name": "x"}},
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": kind, "name": "x"}]}},
    ):
        answer = await server.client.post("/v1/responses", json={"input": "a", **members})
        assert answer.status_code == 400, (members, answer.text)
    assert server.engine.requests == []
