"""`cfs acp` with the official client of the protocol, against a real server (A10)."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acp import PROTOCOL_VERSION, RequestError, image_block, resource_link_block, spawn_agent_process, text_block
from acp.client.connection import ClientSideConnection
from acp.connection import StreamDirection, StreamEvent
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    CloseSessionResponse,
    DeniedOutcome,
    EmbeddedResourceContentBlock,
    EnvVariable,
    ForkSessionResponse,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpServerStdio,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
    ResumeSessionResponse,
    SessionNotification,
    SetSessionModeResponse,
    TextResourceContents,
    ToolCallUpdate,
)
from pydantic import BaseModel

from cfs import api
from cfs.transports.http import Client
from cfs.wire import SessionDetail
from pytest_cfs import Reply, ScriptedServer
from tests.agents.mcp.test_tools import ODD
from tests.documentation import block
from tests.fork_server import Program, asyncio_programs, start_variables

RESPONSES: Mapping[str, type[BaseModel]] = {
    "initialize": InitializeResponse,
    "session/new": NewSessionResponse,
    "session/load": LoadSessionResponse,
    "session/resume": ResumeSessionResponse,
    "session/fork": ForkSessionResponse,
    "session/list": ListSessionsResponse,
    "session/prompt": PromptResponse,
    "session/set_mode": SetSessionModeResponse,
    "session/close": CloseSessionResponse,
}
REQUESTS: Mapping[str, type[BaseModel]] = {
    "session/update": SessionNotification,
    "session/request_permission": RequestPermissionRequest,
}


class Editor:
    """Notes updates, and answers permission requests as `choose` says: an option's id, or None to cancel."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.asked: list[tuple[ToolCallUpdate, list[PermissionOption]]] = []
        self.raw: list[dict[str, Any]] = []
        self.methods: dict[int, str] = {}
        self.choose: Callable[[], str | None] = lambda: "yes"
        self.connection: Any = None
        self.process: asyncio.subprocess.Process
        self._changed = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        """Take the connection."""
        self.connection = conn

    def observe(self, event: StreamEvent) -> None:
        """Note a message that comes, and which method each request that goes out calls."""
        if event.direction is StreamDirection.INCOMING:
            self.raw.append(event.message)
        elif "id" in event.message and "method" in event.message:
            self.methods[event.message["id"]] = event.message["method"]

    async def session_update(self, update: Any, **_: Any) -> None:
        """Note an update."""
        self.updates.append(update)
        self._changed.set()

    async def request_permission(
        self, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        """Answer at once."""
        self.asked.append((tool_call, options))
        self._changed.set()
        chosen = self.choose()
        if chosen == "never":
            await asyncio.Event().wait()
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, which is looked at after each update and question."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def of(self, kind: str) -> list[Any]:
        """All updates of a kind."""
        return [update for update in self.updates if update.session_update == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """The joined text of all chunks of a kind."""
        return "".join(update.content.text for update in self.of(kind))

    def forget(self) -> None:
        """Forget the updates so far."""
        self.updates.clear()

    def check(self) -> None:
        """Check every message that came against the protocol's models, which must keep all of it."""
        for message in self.raw:
            assert message["jsonrpc"] == "2.0"
            if "method" in message:
                same(REQUESTS[message["method"]], message["params"])
            elif "result" in message:
                same(RESPONSES.get(self.methods[message["id"]], BaseModel), message["result"])
            else:
                assert set(message["error"]) == {"code", "message", "data"}


def same(model: type[BaseModel], value: dict[str, Any]) -> None:
    """The models drop what they do not know and repair what is wrong: so a valid value is one that stays equal."""
    again = model.model_validate(value).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert again == value


@asynccontextmanager
async def editor(
    state: Path, *options: str, url: str | None = None, status: int = 0
) -> AsyncIterator[tuple[Editor, ClientSideConnection]]:
    """Start `cfs acp` as an editor does, and check at its end that it has ended well and kept to the protocol."""
    mine = Editor()
    env = {"CFS_URL": url or os.environ["CFS_URL"], "XDG_STATE_HOME": str(state), "HOME": str(state)}
    env |= start_variables(os.environ)
    command = [sys.executable, "-m", "cfs", "acp", *options]
    with (state / "stderr").open("ab") as errors, asyncio_programs():
        async with spawn_agent_process(
            mine,  # type: ignore[arg-type]  # a client needs only the methods of what it can do
            *command,
            env=env,
            observers=[mine.observe],
            use_unstable_protocol=True,
            transport_kwargs={"stderr": errors, "shutdown_timeout": 30},
        ) as (connection, process):
            mine.process = process
            await connection.initialize(PROTOCOL_VERSION, ClientCapabilities())
            yield mine, connection
    assert process.returncode == status
    assert "Traceback" not in (state / "stderr").read_text()
    mine.check()


async def ask(connection: ClientSideConnection, session: str, text: str) -> PromptResponse:
    """Send a prompt and wait for the end of its turn."""
    return await connection.prompt(session_id=session, prompt=[text_block(text)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that is open in the editor."""
    made = tmp_path / "My Site"
    made.mkdir()
    (made / "notes.txt").write_text("one\ntwo\n")
    return made


def calls(name: str, **arguments: Any) -> Reply:
    """A reply that calls a tool."""
    return Reply(calls=[(name, arguments)])


def runs(command: str) -> Reply:
    """A reply that runs a command."""
    return calls("execute_command", command=command)


def read(session: str) -> SessionDetail:
    """The session as the server has it, when it is settled."""
    with Client(os.environ["CFS_URL"]) as client:
        return client.call(api.read(session, 10))


@pytest.mark.feature("agent-client-protocol", "cfs acp", "chat", "stream", "tools", "usage")
async def test_a_prompt_edits_a_file_of_the_folder_and_every_step_is_seen(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply(
        Reply("I look first.", thinking="What is in it?", calls=[("read_file", {"path": "notes.txt"})]),
        calls("edit_file", path="notes.txt", old="two", new="2"),
        calls("write_file", path="/workspace/new/a.txt", content="hello"),
        "Both are done.",
    )
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        done = await ask(connection, session, "Change notes.txt")
        assert done.stop_reason == "end_turn"
        assert done.usage is not None
        assert done.usage.input_tokens > 0
        assert mine.text() == "I look first.Both are done."
        assert mine.text("agent_thought_chunk") == "What is in it?"
        begun, ended = mine.of("tool_call"), mine.of("tool_call_update")
        assert [(call.kind, call.title, call.status) for call in begun] == [
            ("read", "Read notes.txt", "in_progress"),
            ("edit", "Edit notes.txt", "in_progress"),
            ("edit", "Write new/a.txt", "in_progress"),
        ]
        assert [call.tool_call_id for call in ended] == [call.tool_call_id for call in begun]
        assert {call.status for call in ended} == {"completed"}
        notes = str(folder / "notes.txt")
        assert [call.locations[0].path for call in begun] == [notes, notes, str(folder / "new/a.txt")]
        edit, write = (call.content[0] for call in ended[1:])
        assert (edit.type, edit.path, edit.old_text, edit.new_text) == ("diff", notes, "one\ntwo\n", "one\n2\n")
        assert (write.old_text, write.new_text) == (None, "hello")
        assert ended[1].locations[0].line == 2
        assert mine.of("usage_update")[-1].size == 32_768
        assert mine.of("session_info_update")[-1].title == "Change notes.txt"
    assert (folder / "notes.txt").read_text() == "one\n2\n"

    history = read(session).history
    assert [message.role for message in history] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert history[-1].content == "Both are done."
    assert session.startswith("acp-my-site-")


async def test_a_plan_is_an_update_now_and_when_the_session_is_loaded(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    steps = [{"text": "read it", "status": "completed"}, {"text": "test it", "status": "in_progress"}]
    cfs_server.reply(calls("update_plan", steps=steps), calls("update_plan", steps=[{"text": ""}]), "Planned.")
    expected = [("read it", "completed", "medium"), ("test it", "in_progress", "medium")]
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        await ask(connection, session, "Plan it")
        (plan,) = mine.of("plan")
        assert [(entry.content, entry.status, entry.priority) for entry in plan.entries] == expected
    async with editor(tmp_path) as (mine, connection):
        await connection.load_session(cwd=str(folder), session_id=session)
        (plan,) = mine.of("plan")
        assert [(entry.content, entry.status, entry.priority) for entry in plan.entries] == expected


@pytest.mark.external
def test_the_agent_leaves_nothing_of_its_own_in_the_folder(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    """Long output of commands, for example, goes elsewhere, where the agent can read it."""
    cfs_server.reply(runs("seq 20000"), calls("list_directory", path="/storage/commands"), "ok")

    async def work() -> None:
        async with editor(tmp_path, "--commands", "host") as (mine, connection):
            session = (await connection.new_session(cwd=str(folder))).session_id
            await ask(connection, session, "Count")
            assert [update.status for update in mine.of("tool_call_update")] == ["completed"] * 2

    asyncio.run(work())
    assert [each.name for each in folder.iterdir()] == ["notes.txt"]


async def test_the_session_grows_on_the_server_while_the_agent_works(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    """It is an ordinary session: what the editor sees is there at the same time."""
    cfs_server.reply(calls("list_directory", path="."), "one two three")
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        prompt = asyncio.create_task(ask(connection, session, "What is here?"))
        await mine.until(lambda: bool(mine.of("tool_call_update")))
        await prompt
        detail = await asyncio.to_thread(read, session)
        assert detail.history[1].tool_calls[0].name == "list_directory"
        assert detail.settings.driver == "agent"


async def test_a_second_prompt_continues_the_conversation(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply("Noted.", "Alice.")
    async with editor(tmp_path) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        await ask(connection, session, "I am Alice.")
        await ask(connection, session, "Who am I?")
    system, *said = cfs_server.asked[-1].messages
    assert [message.content for message in said] == ["I am Alice.", "Noted.", "Who am I?"]
    assert str(folder) in system.content


async def test_files_of_a_prompt_get_the_paths_of_the_agent(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply("ok")
    inside = TextResourceContents(uri=(folder / "a b.py").as_uri(), text="x = 1")
    async with editor(tmp_path) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        blocks: list[Any] = [
            text_block("Compare "),
            resource_link_block("notes.txt", (folder / "notes.txt").as_uri()),
            EmbeddedResourceContentBlock(type="resource", resource=inside),
        ]
        await connection.prompt(session_id=session, prompt=blocks)
    said = cfs_server.asked[-1].messages[-1].content
    assert said == 'Compare /workspace/notes.txt\n<file path="/workspace/a b.py">\nx = 1\n</file>'


async def test_a_failed_call_is_a_failed_update_and_links_out_of_the_folder_are_not_followed(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    cfs_server.reply(calls("write_file", path="out", content="x"), calls("read_file", path="/etc/passwd"), "No.")
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        assert (await ask(connection, session, "Read what is outside")).stop_reason == "end_turn"
        assert [call.status for call in mine.of("tool_call_update")] == ["in_progress", "failed", "failed"]
        ((asked, _),) = mine.asked  # a write through a link that leads out is asked about, and refused all the same
        assert str(asked.title).startswith("write_file")
        mine.forget()
        await connection.load_session(cwd=str(folder), session_id=session)
        assert [call.status for call in mine.of("tool_call_update")] == ["failed", "failed"]
        assert "diff" not in str(mine.of("tool_call_update"))
    assert (tmp_path / "secret").read_text() == "secret"


async def test_the_limit_of_steps_is_a_stop_reason(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    cfs_server.reply(calls("list_directory", path="."))
    async with editor(tmp_path, "--steps", "1") as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        assert (await ask(connection, session, "Look")).stop_reason == "max_turn_requests"


@pytest.mark.feature("agent-client-protocol", "cfs acp", "error")
async def test_a_failure_of_the_model_is_an_error_of_the_prompt(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.always_reply("")
    async with editor(tmp_path) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        with pytest.raises(RequestError, match="reply was empty") as raised:
            await ask(connection, session, "Hello")
        assert raised.value.code == -32603
        cfs_server.always_reply("Now.")
        assert (await ask(connection, session, "Again")).stop_reason == "end_turn"


async def worked(cfs_server: ScriptedServer, folder: Path, state: Path) -> str:
    """A session in which a file was written, from an editor that has ended."""
    reply = Reply("I write.", thinking="Easy.", calls=[("write_file", {"path": "a.txt", "content": "hello"})])
    cfs_server.reply(reply, "Written.")
    async with editor(state) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        await ask(connection, session, "Write a.txt")
    return session


@pytest.mark.feature("agent-client-protocol", "cfs acp", "resume")
async def test_a_loaded_session_shows_what_was_said(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    session = await worked(cfs_server, folder, tmp_path)
    cfs_server.reply("A file.")
    async with editor(tmp_path) as (mine, connection):
        await connection.load_session(cwd=str(folder), session_id=session)
        kinds = [update.session_update for update in mine.updates]
        thought = ["agent_thought_chunk"] * ("agent_thought_chunk" in kinds)
        assert kinds == [
            "user_message_chunk",
            *thought,
            *["agent_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk"],
        ]
        assert mine.text("user_message_chunk") == "Write a.txt"
        assert mine.of("tool_call_update")[0].content[0].new_text == "hello"
        mine.forget()
        await ask(connection, session, "What was it?")
        assert mine.text() == "A file."
    assert [message.role for message in cfs_server.asked[-1].messages[1:]] == [
        *["user", "assistant", "tool", "assistant", "user"]
    ]


async def test_a_resumed_session_continues_without_showing_it(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    session = await worked(cfs_server, folder, tmp_path)
    cfs_server.reply("A file.")
    async with editor(tmp_path) as (mine, connection):
        await connection.resume_session(cwd=str(folder), session_id=session)
        assert mine.updates == []
        await ask(connection, session, "What was it?")
    assert len(cfs_server.asked[-1].messages) == 6


async def test_a_fork_has_the_conversation_and_leaves_the_original(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    session = await worked(cfs_server, folder, tmp_path)
    with Client(cfs_server.url) as client:
        client.call(api.create("chat", transcript="User: hi\nAssistant: ho\n"))
    async with editor(tmp_path) as (_, connection):
        copy = (await connection.fork_session(cwd=str(folder), session_id=session)).session_id
        cfs_server.reply("In the copy.", "Of the chat.")
        await ask(connection, copy, "Go on")
        chat = (await connection.fork_session(cwd=str(folder), session_id="chat")).session_id
        await ask(connection, chat, "Go on")
    assert len(read(session).history) == 4
    assert read(copy).history[-1].content == "In the copy."
    assert [message.content for message in read(chat).history] == ["hi", "ho", "Go on", "Of the chat."]


async def test_sessions_are_listed_by_folder(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    """Those of other machines and other programs are not: their folder is not known here."""
    session = await worked(cfs_server, folder, tmp_path)
    with Client(cfs_server.url) as client:
        client.call(api.create("acp-elsewhere"))
        client.call(api.create("main"))
    async with editor(tmp_path) as (_, connection):
        other = (await connection.new_session(cwd=str(tmp_path))).session_id
        everything = await connection.list_sessions()
        assert {info.session_id for info in everything.sessions} == {session, other}
        (only,) = (await connection.list_sessions(cwd=str(folder))).sessions
        assert (only.session_id, only.cwd, only.title) == (session, str(folder), "Write a.txt")
        assert only.updated_at is not None


async def test_a_message_from_elsewhere_is_answered_before_the_prompt(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply("To the browser.", "To the editor.")
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        with Client(cfs_server.url) as client:
            client.call(api.append(session, b"From the browser"))
        assert (await ask(connection, session, "From the editor")).stop_reason == "end_turn"
        assert mine.text("user_message_chunk") == "From the browser"
    assert [message.content for message in read(session).history] == [
        *["From the browser", "To the browser.", "From the editor", "To the editor."]
    ]


@pytest.mark.feature("agent-client-protocol", "cfs acp", "cancel")
async def test_a_cancelled_prompt_ends_as_cancelled_and_the_next_one_works(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply("one two three", "Go.")
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        cfs_server.hold()
        prompt = asyncio.create_task(ask(connection, session, "Count"))
        await asyncio.to_thread(until_asked, cfs_server)
        cfs_server.step(1)
        await mine.until(lambda: mine.text() == "one")
        await connection.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled"
        cancelled = await asyncio.to_thread(read, session)
        assert (cancelled.state, cancelled.history[-1].content) == ("idle", "one [Cancelled]")
        cfs_server.release()
        assert (await ask(connection, session, "Go on")).stop_reason == "end_turn"


def until_asked(server: ScriptedServer) -> None:
    """Wait until the model has a request."""
    with Client(server.url) as client:
        while not server.asked:
            client.call(api.list_sessions())


def until_called(server: ScriptedServer, session: str) -> None:
    """Wait until the server has a call of the agent."""
    with Client(server.url) as client:
        while not any(message.tool_calls for message in client.call(api.read(session)).history):
            pass


async def test_a_cancel_ends_a_running_command(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    cfs_server.reply(runs("touch begun; sleep 1000"), "ok")
    async with editor(tmp_path, "--commands", "host") as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        prompt = asyncio.create_task(ask(connection, session, "Sleep"))
        await mine.until(lambda: bool(mine.of("tool_call")))
        await connection.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled"
        assert mine.of("tool_call_update")[-1].status == "failed"
        assert (await ask(connection, session, "And now?")).stop_reason == "end_turn"
    call, result, end, _ = cfs_server.asked[-1].messages[2:]
    assert (result.tool_call_id, result.content) == (call.tool_calls[0].id, "[No result: it was cancelled]")
    assert end.content == "[Cancelled]"


@pytest.mark.parametrize("by", ["editor", "server"])
async def test_a_cancel_while_a_call_waits_for_permission_stores_each_text_once(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path, by: str
) -> None:
    """And whoever loads the session sees that the call has failed."""
    write = ("write_file", {"path": "a.txt", "content": "x"})
    cfs_server.reply(Reply("I try.", calls=[("execute_command", {"command": "touch made"}), write]), "Go.")
    async with editor(tmp_path) as (mine, connection):
        mine.choose = lambda: "never"
        session = (await connection.new_session(cwd=str(folder))).session_id
        prompt = asyncio.create_task(ask(connection, session, "Do it"))
        await mine.until(lambda: bool(mine.asked))
        await asyncio.to_thread(until_called, cfs_server, session)
        if by == "editor":
            await connection.cancel(session_id=session)
        else:
            with Client(cfs_server.url) as client:
                client.call(api.cancel(session))
        assert (await prompt).stop_reason == "cancelled"
        history = (await asyncio.to_thread(read, session)).history
        texts = [message.content for message in history if message.role == "assistant"]
        assert texts == ["I try.", "[Cancelled]"]
        mine.forget()
        await connection.close_session(session_id=session)
        await connection.load_session(cwd=str(folder), session_id=session)
        assert mine.text() == "I try.[Cancelled]"
        assert [update.status for update in mine.of("tool_call_update")] == ["failed", "failed"]
        assert "diff" not in str(mine.of("tool_call_update"))
        assert (await ask(connection, session, "Go on")).stop_reason == "end_turn"
    assert not (folder / "made").exists()


async def test_a_cancel_on_the_server_is_one_for_the_editor(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply("one two three")
    async with editor(tmp_path) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        cfs_server.hold()
        prompt = asyncio.create_task(ask(connection, session, "Count"))
        await asyncio.to_thread(until_asked, cfs_server)
        with Client(cfs_server.url) as client:
            client.call(api.cancel(session))
        assert (await prompt).stop_reason == "cancelled"


async def test_the_end_of_the_input_ends_the_turn_too(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    cfs_server.reply("one two three")
    async with editor(tmp_path) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        cfs_server.hold()
        prompt = asyncio.create_task(ask(connection, session, "Count"))
        await asyncio.to_thread(until_asked, cfs_server)
    with pytest.raises(ConnectionError):
        await prompt
    assert read(session).state == "idle"


async def test_a_prompt_whose_agent_was_killed_does_not_begin_again(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    """The server would give its turn to the next agent: the person at the editor has not asked for that."""
    cfs_server.reply(runs("sleep 1000"), "ok")
    async with editor(tmp_path, "--commands", "host", status=-9) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        prompt = asyncio.create_task(ask(connection, session, "Sleep"))
        await mine.until(lambda: bool(mine.of("tool_call")))
        await asyncio.to_thread(until_called, cfs_server, session)
        mine.process.kill()
        with pytest.raises(ConnectionError):
            await prompt
    async with editor(tmp_path, "--commands", "host") as (mine, connection):
        await connection.load_session(cwd=str(folder), session_id=session)
        assert mine.text() == "[Cancelled]"
        assert [update.status for update in mine.of("tool_call_update")] == ["failed"]
        mine.forget()
        assert (await ask(connection, session, "And now?")).stop_reason == "end_turn"
        assert mine.text() == "ok"


async def test_a_command_runs_after_the_editor_has_allowed_it(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply(runs("cat notes.txt; touch made"), "ok")
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        await ask(connection, session, "Run it")
        ((call, options),) = mine.asked
        assert call.title == "cat notes.txt; touch made"
        assert [option.kind for option in options] == ["allow_once", "allow_always", "allow_always", "reject_once"]
        assert options[2].name == "Always execute_command(cat:*), execute_command(touch:*)"
        (begun,) = mine.of("tool_call")
        assert call.tool_call_id == begun.tool_call_id
        assert [update.status for update in (begun, *mine.of("tool_call_update"))] == [
            *["pending", "in_progress", "completed"]
        ]
        assert mine.of("tool_call_update")[-1].content[0].content.text == "one\ntwo\n"
    assert (folder / "made").exists()


@pytest.mark.parametrize("choice", ["no", None])
async def test_a_rejected_command_does_not_run(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path, choice: str | None
) -> None:
    cfs_server.reply(runs("touch made"), "I did not.")
    async with editor(tmp_path) as (mine, connection):
        mine.choose = lambda: choice
        session = (await connection.new_session(cwd=str(folder))).session_id
        assert (await ask(connection, session, "Run it")).stop_reason == "end_turn"
        assert mine.of("tool_call_update")[-1].status == "failed"
        mine.forget()
        await connection.load_session(cwd=str(folder), session_id=session)
        assert [update.status for update in mine.of("tool_call_update")] == ["failed"]
    assert not (folder / "made").exists()
    assert "did not allow" in cfs_server.asked[-1].messages[-1].content


async def test_always_holds_for_the_same_command_only(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    cfs_server.reply(runs("true"), runs("true"), runs("echo other"), "ok")
    async with editor(tmp_path) as (mine, connection):
        mine.choose = lambda: "always"
        session = (await connection.new_session(cwd=str(folder))).session_id
        await ask(connection, session, "Run them")
        assert [call.title for call, _ in mine.asked] == ["true", "echo other"]


async def test_a_pattern_holds_for_what_it_covers(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    cfs_server.reply(runs("ls"), runs("ls -a"), runs("make"), "ok")
    async with editor(tmp_path) as (mine, connection):
        mine.choose = lambda: "pattern"
        session = (await connection.new_session(cwd=str(folder))).session_id
        await ask(connection, session, "Run them")
        assert [call.title for call, _ in mine.asked] == ["ls", "make"]
        assert "pattern" not in [option.option_id for option in mine.asked[1][1]]


async def test_a_tool_of_a_server_of_the_editor_is_called_after_permission(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    """And the instructions of the project are in the prompt."""
    (folder / "AGENTS.md").write_text("Use tabs.")
    cfs_server.reply(calls("mcp__odd__add", a=17, b=25), "ok")
    program = McpServerStdio(
        name="odd",
        command=sys.executable,
        args=[str(ODD), str(tmp_path)],
        env=[EnvVariable(name="LEVEL", value="info")],
    )
    gone = McpServerStdio(name="gone", command="no-such-program", args=[], env=[])
    async with editor(tmp_path) as (mine, connection):
        session = (await connection.new_session(cwd=str(folder), mcp_servers=[program, gone])).session_id
        await ask(connection, session, "Add them")
        ((call, _),) = mine.asked
        assert call.title == 'mcp(odd/add) {"a": 17, "b": 25}'
        assert mine.of("tool_call_update")[-1].content[0].content.text == "42"
    assert "<project>\nUse tabs.\n</project>" in cfs_server.asked[0].messages[0].content
    assert "there is no program 'no-such-program'" in (tmp_path / "stderr").read_text()


async def test_the_question_can_be_answered_on_the_server(
    cfs_server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    cfs_server.reply(runs("touch made"), "ok")
    async with editor(tmp_path) as (mine, connection):
        mine.choose = lambda: "never"
        session = (await connection.new_session(cwd=str(folder))).session_id
        prompt = asyncio.create_task(ask(connection, session, "Run it"))
        await asyncio.to_thread(answer, session, "allow")
        assert (await prompt).stop_reason == "end_turn"
    assert (folder / "made").exists()


def answer(session: str, choice: str) -> None:
    """Answer the next question of a session."""
    with Client(os.environ["CFS_URL"]) as client:
        while not (questions := client.call(api.questions(session))):
            client.call(api.read(session))
        client.call(api.answer(session, questions[0].id, choice))


async def test_modes_say_whether_commands_run(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    cfs_server.reply("No tool.", runs("touch made"), "ok")
    async with editor(tmp_path, "--commands", "none") as (mine, connection):
        new = await connection.new_session(cwd=str(folder))
        assert new.modes is not None
        assert new.modes.current_mode_id == "none"
        assert {"none", "ask", "host"} <= {mode.id for mode in new.modes.available_modes}
        await ask(connection, new.session_id, "Run it")
        assert "execute_command" not in cfs_server.asked[-1].tools
        await connection.set_session_mode(session_id=new.session_id, mode_id="host")
        await ask(connection, new.session_id, "Run it now")
        assert mine.asked == []
        with pytest.raises(RequestError, match="there is no mode 'all'"):
            await connection.set_session_mode(session_id=new.session_id, mode_id="all")
    assert (folder / "made").exists()


async def test_wrong_requests_get_errors_of_json_rpc(cfs_server: ScriptedServer, folder: Path, tmp_path: Path) -> None:
    async with editor(tmp_path) as (_, connection):
        session = (await connection.new_session(cwd=str(folder))).session_id
        with Client(cfs_server.url) as client:
            client.call(api.create("chat"))

        async def code(work: Any) -> tuple[int, str]:
            with pytest.raises(RequestError) as raised:
                await work
            return raised.value.code, str(raised.value)

        assert (await code(ask(connection, "nothing", "x")))[0] == -32002
        assert (await code(connection.load_session(cwd=str(folder), session_id="nothing")))[0] == -32002
        assert (await code(connection.new_session(cwd="relative")))[0] == -32602
        assert (await code(connection.new_session(cwd=str(folder / "missing"))))[0] == -32602
        assert (await code(ask(connection, session, " ")))[0] == -32602
        image = connection.prompt(session_id=session, prompt=[image_block("aGk=", "image/png")])
        assert await code(image) == (-32602, "only text can be read, and a part of the prompt is of the type 'image'")
        assert "fork it" in (await code(connection.load_session(cwd=str(folder), session_id="chat")))[1]
        assert (await code(connection.authenticate(method_id="x")))[0] == -32601
        await connection.cancel(session_id="nothing")  # a notification has no answer


@pytest.mark.external
async def test_without_a_server_the_error_says_so(tmp_path: Path, folder: Path) -> None:
    async with editor(tmp_path, url="http://127.0.0.1:9") as (_, connection):
        with pytest.raises(RequestError, match="no server answers") as raised:
            await connection.new_session(cwd=str(folder))
        assert raised.value.data == {"type": "Unreachable"}


def test_broken_lines_get_an_error_and_the_rest_is_answered(cfs_server: ScriptedServer, tmp_path: Path) -> None:
    """On standard output there is nothing but messages of the protocol."""
    lines = [
        b"{broken",
        b"[1, 2]",
        b'{"jsonrpc": "2.0", "id": 5, "method": 7}',
        b"\xff\xfe",
        b'{"jsonrpc": "2.0", "id": 1, "method": "nonsense"}',
        b'{"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": 5}}',
        b'{"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {"protocolVersion": 99}}',
    ]
    command = [sys.executable, "-m", "cfs", "acp"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with Program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n".join(lines) + b"\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in lines]
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait() == 0
    refused = [answer["error"]["code"] for answer in answers if answer["id"] is None]
    assert refused == [-32700, -32600, -32600, -32700]
    by_id = {answer["id"]: answer for answer in answers if answer["id"] is not None}
    assert (by_id[1]["error"]["code"], by_id[2]["error"]["code"]) == (-32601, -32602)
    assert by_id[3]["result"]["protocolVersion"] == 1


@pytest.mark.external
def test_the_settings_of_the_page_start_the_command(tmp_path: Path) -> None:
    """What the page tells users of Zed to write is valid, and `cfs` has that command."""
    (server,) = json.loads(block("docs/acp.md", "zed"))["agent_servers"].values()
    assert set(server) == {"type", "command", "args", "env"}
    command = [sys.executable, "-m", server["command"], *server["args"]]
    done = subprocess.run(command, env={**os.environ, **server["env"]}, input=b"", capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.external
def test_the_help_does_not_import_the_protocol() -> None:
    script = "import sys, cfs_acp.cli; print([name for name in sys.modules if name.split('.')[0] in ('acp', 'httpx')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
