"""`cfs mcp` with the official client of the protocol, over both transports, against a real CFS server (H9)."""

import asyncio
import base64
import json
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.types import (
    BlobResourceContents,
    EmbeddedResource,
    PromptReference,
    ResourceListChangedNotification,
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    TextContent,
    TextResourceContents,
)

from cfs import api
from cfs.transports.http import Client as CfsClient
from cfs.wire import NewMessage
from pytest_cfs import Reply, ScriptedServer
from tests.server.restarting import Restarting

from .conftest import Connect, by_http, by_stdio

pytestmark = [pytest.mark.external, pytest.mark.asyncio(loop_scope="module")]

TOOLS = {
    "list_sessions",
    "read_session",
    "send_message",
    "wait",
    "fork",
    "merge",
    "list_versions",
    "rewind",
    "redo",
    "cancel",
    "search",
    "watch_tree",
    "list_files",
    "read_file",
    "write_file",
}
MAIN = "cfs:///sessions/main"


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool that must succeed; return its result. Its text says the same, and the client checks its schema."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    assert json.loads(content.text) == result.structured_content
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that must fail; return what the model reads."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.is_error
    assert result.meta is not None
    assert result.meta["cfs/problem"]["detail"] in content.text
    return content.text


async def transcript(client: Client, uri: str = MAIN) -> str:
    """Read a resource that is a text."""
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


def post(server: ScriptedServer, session: str, text: str) -> None:
    """Send a message from another program, and do not wait for the reply."""
    with CfsClient(server.url) as client:
        client.call(api.post(session, NewMessage(content=text)))


async def test_each_tool_has_schemas_and_says_what_it_changes(connect: Connect) -> None:
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.description
    reads = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
    assert {"send_message", "fork", "merge", "rewind", "redo", "cancel", "write_file"} == TOOLS - reads
    assert tools["send_message"].input_schema["required"] == ["session", "message"]


@pytest.mark.feature("mcp", "stdio", "chat", "stream", "usage", "resume")
@pytest.mark.feature("mcp", "HTTP", "chat", "stream", "usage", "resume")
async def test_a_message_gets_its_reply_with_progress_and_the_session_stays(
    connect: Connect, cfs_server: ScriptedServer
) -> None:
    reported: list[tuple[float, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, message))

    cfs_server.reply("one two three", "four")
    async with connect() as client:
        arguments = {"session": "main", "message": "Count.", "settings": {"temperature": 0}}
        result = await client.call_tool("send_message", arguments, progress_callback=report)
        sent = result.structured_content
    assert (sent["reply"], sent["finished"], sent["finish_reason"]) == ("one two three", True, "stop")
    assert sent["usage"]["completion_tokens"] == 3
    assert reported == [(1, "one"), (2, " two"), (3, " three")]
    assert cfs_server.asked[0].settings.temperature == 0
    async with connect() as client:
        assert (await ask(client, "send_message", session="main", message="Go on."))["reply"] == "four"
        assert await transcript(client) == "User: Count.\nAssistant: one two three\nUser: Go on.\nAssistant: four\n"


async def test_a_session_goes_back_and_forward(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.reply("Blue.", "Red.")
    async with connect() as client:
        for message in ("A color?", "Another?"):
            await ask(client, "send_message", session="main", message=message)
        listed = await ask(client, "list_versions", session="main", limit=2)
        assert ([each["text"] for each in listed["versions"]], listed["before"]) == (["Another?", "Red."], 3)
        planned = await ask(client, "rewind", session="main", to=2, dry_run=True)
        done = await ask(client, "rewind", session="main", to=2)
        assert planned["sessions"][0]["removed"] == done["sessions"][0]["removed"]
        assert await transcript(client) == "User: A color?\nAssistant: Blue.\n"
        await ask(client, "redo", session="main")
        assert "Red." in await transcript(client)
        assert "nothing to redo" in await refused(client, "redo", session="main")


async def test_the_files_of_a_copy_are_merged_back(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.reply("Blue.")
    async with connect() as client:
        await ask(client, "send_message", session="main", message="A color?")
        await ask(client, "write_file", path="/workspaces/main/a.txt", content="1\n2\n3\n")
        copy = (await ask(client, "fork", session="main"))["session"]
        await ask(client, "write_file", path=f"/workspaces/{copy}/a.txt", content="one\n2\n3\n")
        await ask(client, "write_file", path="/workspaces/main/a.txt", content="1\n2\nthree\n")
        planned = await ask(client, "merge", source=copy, target="main", dry_run=True)
        done = await ask(client, "merge", source=copy, target="main")
        assert (planned["number"], planned["files"]) == (None, done["files"])
        assert (done["files"], done["conflicts"]) == ([{"path": "a.txt", "change": "merged"}], [])
        assert (await ask(client, "read_file", path="/workspaces/main/a.txt"))["content"] == "one\n2\nthree\n"
        assert "no workspace 'nowhere'" in await refused(client, "merge", source=copy, target="nowhere")


async def test_a_session_is_listed_read_copied_and_searched(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.reply("Blue.", "Red.")
    async with connect() as client:
        for message in ("A color?", "Another?"):
            await ask(client, "send_message", session="main", message=message)
        rows = await ask(client, "list_sessions", prefix="ma")
        assert [(row["session"], row["title"], row["messages"]) for row in rows["sessions"]] == [
            ("main", "A color?", 4)
        ]
        read = await ask(client, "read_session", session="main", last=2)
        assert read["total"] == 4
        assert [(each["index"], each["role"], each["content"]) for each in read["messages"]] == [
            (2, "user", "Another?"),
            (3, "assistant", "Red."),
        ]
        copy = await ask(client, "fork", session="main", messages=2)
        name = copy["session"]  # the first that is free: folders of other tests' copies are still there
        assert (name.startswith("main-"), copy["messages"]) == (True, 2)
        assert copy["origin"] == {"session": "main", "messages": 2}
        (found,) = (await ask(client, "search", words="red"))["results"]
        assert (found["session"], found["index"], found["text"]) == ("main", 3, "Red.")
        assert (await ask(client, "list_sessions", active=True))["sessions"] == []
        first = await ask(client, "list_sessions", limit=1)
        second = await ask(client, "list_sessions", limit=1, after=first["next"])
        assert [first["sessions"][0]["session"], second["sessions"][0]["session"]] == ["main", name]


async def test_a_long_reply_goes_on_and_can_be_waited_for(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.reply("one two")
    cfs_server.hold()
    async with connect() as client:
        sent = await ask(client, "send_message", session="main", message="Count.", wait_seconds=0)
        assert (sent["finished"], sent["reply"]) == (False, "")
        assert not (await ask(client, "wait", session="main", timeout_seconds=0.05))["settled"]
        cfs_server.release()
        waited = await ask(client, "wait", session="main")
        assert (waited["settled"], waited["state"], waited["messages"]) == (True, "idle", 2)
        read = await ask(client, "read_session", session="main", first=1)
        assert [each["content"] for each in read["messages"]] == ["one two"]


async def test_a_reply_that_does_not_come_in_time_is_not_lost(connect: Connect, cfs_server: ScriptedServer) -> None:
    """The call returns what there is, and the turn goes on."""
    cfs_server.reply("one two")
    cfs_server.hold()
    cfs_server.step()
    async with connect() as client:
        sent = await ask(client, "send_message", session="main", message="Count.", wait_seconds=1)
        assert (sent["finished"], sent["reply"]) == (False, "one")
        cfs_server.release()
        read = await ask(client, "read_session", session="main", wait_seconds=30)
        assert [each["content"] for each in read["messages"]] == ["Count.", "one two"]


@pytest.mark.feature("mcp", "stdio", "cancel")
@pytest.mark.feature("mcp", "HTTP", "cancel")
async def test_a_cancelled_call_cancels_its_turn(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.reply("one two three")
    cfs_server.hold()
    cfs_server.step()
    begun = anyio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with connect() as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            arguments = {"session": "main", "message": "Count."}
            await client.call_tool("send_message", arguments, progress_callback=report)

        tasks.start_soon(call)
        await begun.wait()
        tasks.cancel_scope.cancel()
    with CfsClient(cfs_server.url) as other:
        other.call(api.wait("main", 30))
        assert other.call(api.transcript("main")).text == "User: Count.\nAssistant: one [Cancelled]\n"


async def test_cancel_is_also_a_tool(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.hold()
    async with connect() as client:
        for _ in range(2):
            await ask(client, "send_message", session="main", message="Hello.", wait_seconds=0)
        assert await ask(client, "cancel", session="main", queued=True) == {"running": 1, "queued": 1}
        assert (await ask(client, "wait", session="main"))["settled"]


async def test_the_same_key_sends_once(connect: Connect, cfs_server: ScriptedServer) -> None:
    key = uuid.uuid4().hex
    async with connect() as client:
        for _ in range(2):
            sent = await ask(client, "send_message", session="main", message="Hello.", idempotency_key=key)
            assert sent["reply"] == "Hello."
    assert len(cfs_server.asked) == 1


async def test_a_tree_is_watched(connect: Connect, cfs_server: ScriptedServer) -> None:
    """The second call returns when something changes below the session, and not for others."""
    for session in ("main", "main/coder", "other"):
        cfs_server.session(session).reopen()
    async with connect() as client:
        before = await ask(client, "watch_tree", session="main")
        assert [row["session"] for row in before["sessions"]] == ["main", "main/coder"]
        assert before["changed"]
        same = await ask(client, "watch_tree", session="main", seen=before["version"], wait_seconds=0.05)
        assert (same["changed"], same["version"]) == (False, before["version"])
        async with anyio.create_task_group() as tasks:
            changed: list[Any] = []

            async def watch() -> None:
                changed.append(await ask(client, "watch_tree", session="main", seen=before["version"]))

            tasks.start_soon(watch)
            await asyncio.to_thread(post, cfs_server, "other", "Hello.")
            await asyncio.to_thread(post, cfs_server, "main/coder", "Hello.")
    assert changed[0]["changed"]
    assert {row["session"]: row["messages"] > 0 for row in changed[0]["sessions"]} == {
        "main": False,
        "main/coder": True,
    }


async def test_files_are_written_read_and_listed(connect: Connect, cfs_server: ScriptedServer) -> None:
    path = "/workspaces/main/notes/ä b.md"
    async with connect() as client:
        written = await ask(client, "write_file", path=path, content="äöü", new=True)
        assert (written["size"], written["created"]) == (6, True)
        read = await ask(client, "read_file", path=path)
        assert (read["content"], read["encoding"], read["version"]) == ("äöü", "utf-8", written["version"])
        part = await ask(client, "read_file", path=path, size=3)
        assert (part["content"], part["next"], part["size"]) == ("ä", 2, 6)
        rest = await ask(client, "read_file", path=path, offset=2)
        assert (rest["content"], rest["next"]) == ("öü", None)
        data = base64.b64encode(b"\xff\x00").decode()
        await ask(client, "write_file", path="/workspaces/main/data", content=data, encoding="base64")
        assert (await ask(client, "read_file", path="/workspaces/main/data"))["content"] == data
        await ask(client, "write_file", path="/workspaces/main/empty", content="")
        assert (await ask(client, "read_file", path="/workspaces/main/empty"))["content"] == ""
        files = await ask(client, "list_files", prefix="/workspaces/main/")
        assert [file["path"] for file in files["files"]] == ["/workspaces/main/data", "/workspaces/main/empty", path]


async def test_a_version_protects_what_others_have_written(connect: Connect, cfs_server: ScriptedServer) -> None:
    path = "/workspaces/main/plan.md"
    async with connect() as client:
        first = (await ask(client, "write_file", path=path, content="one"))["version"]
        second = (await ask(client, "write_file", path=path, content="two", version=first))["version"]
        assert "Precondition failed" in await refused(client, "write_file", path=path, content="three", version=first)
        assert "Precondition failed" in await refused(client, "write_file", path=path, content="three", new=True)
        read = await ask(client, "read_file", path=path)
        assert (read["content"], read["version"]) == ("two", second)


@pytest.mark.feature("mcp", "stdio", "error")
@pytest.mark.feature("mcp", "HTTP", "error")
async def test_errors_are_results_that_a_model_can_read(connect: Connect, cfs_server: ScriptedServer) -> None:
    cfs_server.reply(Reply("Half", error="out of memory"))
    async with connect() as client:
        assert "there is no session 'none'" in await refused(client, "read_session", session="none")
        assert "out of memory" in await refused(client, "send_message", session="main", message="Hello.")
        assert "sesion: Extra inputs" in await refused(client, "read_session", session="main", sesion="main")
        assert "message: Field required" in await refused(client, "send_message", session="main")
        assert "settings.temperature" in await refused(
            client, "send_message", session="main", message="a", settings={"temperature": 9}
        )
        assert "must not begin" in await refused(client, "send_message", session="../etc", message="a")
        assert "path" in await refused(client, "write_file", path="/sessions/main", content="a")
        assert "path" in await refused(client, "read_file", path="/workspaces/main/../../etc/passwd")
        assert "content" in await refused(
            client, "write_file", path="/workspaces/main/a", content="?", encoding="base64"
        )
        with pytest.raises(MCPError, match="there is no tool 'rm'"):
            await client.call_tool("rm", {})
        assert len((await ask(client, "list_sessions"))["sessions"]) == 1


async def test_transcripts_and_files_are_resources(connect: Connect, cfs_server: ScriptedServer) -> None:
    async with connect() as client:
        await ask(client, "send_message", session="a b?", message="Hello.")
        await ask(client, "write_file", path="/workspaces/main/ä.md", content="text")
        await ask(client, "write_file", path="/workspaces/main/x.png", content="iVA=", encoding="base64")
        sessions = await client.list_resources()
        files = await client.list_resources(cursor=sessions.next_cursor)
        assert files.next_cursor is None
        found = [(each.uri, each.mime_type) for each in sessions.resources + files.resources]
        assert found == [
            ("cfs:///sessions/a%20b%3F", "text/plain"),
            ("cfs:///workspaces/main/x.png", "image/png"),
            ("cfs:///workspaces/main/%C3%A4.md", "text/markdown"),
        ]
        assert await transcript(client, found[0][0]) == "User: Hello.\nAssistant: Hello.\n"
        (picture,) = (await client.read_resource(found[1][0])).contents
        assert isinstance(picture, BlobResourceContents)
        assert (picture.blob, picture.mime_type) == ("iVA=", "image/png")
        assert await transcript(client, found[2][0]) == "text"
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == [
            "cfs:///sessions/{+session}",
            "cfs:///workspaces/{+path}",
        ]


@pytest.mark.parametrize(
    "uri",
    [
        "cfs:///sessions/none",
        "cfs:///sessions/..%2Fetc",
        "cfs:///workspaces/main/none",
        "cfs:///workspaces/main/..%2F..%2Fetc/passwd",
        "cfs://elsewhere/sessions/main",
        "cfs:///sessions/main?wait=1",
        "cfs:///sessions/%ff",
        "file:///etc/passwd",
        "nonsense",
        "",
    ],
)
async def test_what_is_no_resource_is_an_error_about_the_parameters(
    cfs_server: ScriptedServer, http_url: str, uri: str
) -> None:
    async with by_http(http_url) as client:
        with pytest.raises(MCPError) as raised:
            await client.read_resource(uri)
        assert raised.value.code == -32602
        with pytest.raises(MCPError):
            await client.list_resources(cursor="nonsense")


async def test_a_subscription_reports_growth_and_new_sessions(connect: Connect, cfs_server: ScriptedServer) -> None:
    """The client reads the transcript while the reply grows, and hears of a session that another program makes."""
    cfs_server.session("main").reopen()
    cfs_server.hold()
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            heard.put_nowait(message.params.uri)
        elif isinstance(message, ResourceListChangedNotification):
            heard.put_nowait("list")

    async def until(word: str) -> None:
        while await heard.get() != word:
            pass

    async def play(client: Client) -> None:
        await asyncio.to_thread(post, cfs_server, "main", "one two")
        await until(MAIN)
        while "one" not in await transcript(client):
            cfs_server.step()
            await until(MAIN)
        assert "two" not in (await transcript(client)).partition("Assistant:")[2]
        cfs_server.release()
        while not (await transcript(client)).endswith("Assistant: one two\n"):
            await until(MAIN)
        await asyncio.to_thread(cfs_server.session("new").reopen)
        await until("list")
        assert "cfs:///sessions/new" in [each.uri for each in (await client.list_resources()).resources]

    async with connect(message_handler=hear) as client:
        if client.protocol_version < "2026":
            await client.list_resources()
            with pytest.warns(MCPDeprecationWarning):
                await client.subscribe_resource(MAIN)
            await play(client)
            with pytest.warns(MCPDeprecationWarning):
                await client.unsubscribe_resource(MAIN)
            with pytest.warns(MCPDeprecationWarning), pytest.raises(MCPError, match="only transcripts"):
                await client.subscribe_resource("cfs:///workspaces/main/a")
            return
        uris = [MAIN, "cfs:///workspaces/main/a"]
        async with client.listen(resources_list_changed=True, resource_subscriptions=uris) as changes:
            assert changes.honored.resource_subscriptions == [MAIN]

            async def pass_on() -> None:
                async for event in changes:
                    if isinstance(event, ResourceUpdated):
                        heard.put_nowait(event.uri)
                    elif isinstance(event, ResourcesListChanged):
                        heard.put_nowait("list")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pass_on)
                await play(client)
                tasks.cancel_scope.cancel()


async def test_a_subscription_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    """What happened meanwhile is reported after it."""
    with ExitStack() as stack:
        server = await asyncio.to_thread(Restarting, tmp_path, stack)
        url = server.process.url
        async with by_stdio(url) as client, client.listen(resource_subscriptions=[MAIN]) as changes:
            await ask(client, "send_message", session="main", message="one")
            assert await anext(changes) == ResourceUpdated(MAIN)
            server.kill()
            await asyncio.to_thread(server.start)
            await ask(client, "send_message", session="main", message="two")
            while "Assistant: two" not in await transcript(client):
                assert await anext(changes) == ResourceUpdated(MAIN)
            assert await anext(changes) == ResourceUpdated(MAIN)


async def test_names_are_completed(connect: Connect, cfs_server: ScriptedServer) -> None:
    for session in ("main", "main/coder", "other"):
        cfs_server.session(session).reopen()
    async with connect() as client:
        await ask(client, "write_file", path="/workspaces/main/notes/a.md", content="")
        template = ResourceTemplateReference(uri="cfs:///workspaces/{+path}")
        found = await client.complete(template, {"name": "path", "value": "main/no"})
        assert found.completion.values == ["main/notes/a.md"]
        prompt = PromptReference(name="summarize_session")
        found = await client.complete(prompt, {"name": "session", "value": "ma"})
        assert found.completion.values == ["main"]
        found = await client.complete(prompt, {"name": "session", "value": "main/"})
        assert found.completion.values == ["main/coder"]


async def test_prompts_hold_the_transcript(connect: Connect, cfs_server: ScriptedServer) -> None:
    async with connect() as client:
        await ask(client, "send_message", session="main", message="Hello.")
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert set(prompts) == {"continue_session", "summarize_session", "report_on_agents"}
        for name in prompts:
            got = await client.get_prompt(name, {"session": "main"})
            resource, words = (message.content for message in got.messages)
            assert isinstance(resource, EmbeddedResource)
            assert isinstance(resource.resource, TextResourceContents)
            assert resource.resource.text == "User: Hello.\nAssistant: Hello.\n"
            assert isinstance(words, TextContent)
            assert "'main'" in words.text
        got = await client.get_prompt("continue_session", {"session": "main", "message": "Go on."})
        assert isinstance(got.messages[1].content, TextContent)
        assert got.messages[1].content.text.endswith("Go on.")
        for arguments in ({}, {"session": "none"}, {"session": "main", "foucs": "x"}):
            with pytest.raises(MCPError) as raised:
                await client.get_prompt("summarize_session", arguments)
            assert raised.value.code == -32602
        with pytest.raises(MCPError, match="there is no prompt"):
            await client.get_prompt("none", {"session": "main"})
