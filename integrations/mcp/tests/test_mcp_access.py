"""Tokens, grants and hostile input: the MCP server shows a caller nothing that the CFS server would not (H9)."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mcp import MCPError
from mcp.types import TextContent

from cfs_mcp import callers
from cfs_server.access import tokens
from cfs_server.access.tokens import TokenGrant
from pytest_cfs import ScriptedServer
from tests.fork_server import Program
from tests.fork_server import run as run_program
from tests.server.support import running_server

from .conftest import COMMAND, by_http, by_stdio, environment, http_program

pytestmark = pytest.mark.external

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Guarded:
    """A CFS server with tokens, and an MCP server in front of it."""

    def __init__(self, url: str, cfs_url: str, secrets: dict[str, str], file: Path) -> None:
        self.url = url
        self.cfs_url = cfs_url
        self.secrets = secrets
        self.file = file


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Guarded]:
    """Serve with tokens: alice and bob have their own sessions and files, and reader may only read alice's."""
    file = folder / "tokens.toml"
    everything = ("list", "file", "read", "write", "delete")
    grants = {
        name: [TokenGrant(prefix=f"/{place}/{name}", ops=everything) for place in ("sessions", "workspaces")]
        for name in ("alice", "bob")
    }
    grants["reader"] = [TokenGrant(prefix="/sessions/alice", ops=("list", "file", "read"))]
    secrets = {name: tokens.create(file, name, granted) for name, granted in grants.items()}
    async with running_server(tokens=file, may_block=True) as server:
        program = http_program(server.url)
        url = await asyncio.to_thread(program.__enter__)
        try:
            yield Guarded(url, server.url, secrets, file)
        finally:
            await asyncio.to_thread(program.__exit__, None, None, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    """Both servers for the tests that leave the tokens as they are."""
    async with guarded(tmp_path_factory.mktemp("shared")) as server:
        yield server


async def words(client: Any, tool: str, **arguments: Any) -> str:
    """Call a tool and return its text."""
    (content,) = (await client.call_tool(tool, arguments)).content
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.asyncio(loop_scope="module")
async def test_callers_over_http_have_the_rights_of_their_own_tokens(shared: Guarded) -> None:
    async with (
        by_http(shared.url, shared.secrets["alice"]) as alice,
        by_http(shared.url, shared.secrets["bob"], mode="legacy") as bob,
        by_http(shared.url, shared.secrets["reader"]) as reader,
    ):
        assert '"finished":true' in await words(alice, "send_message", session="alice", message="Hello.")
        assert '"created":true' in await words(alice, "write_file", path="/workspaces/alice/a", content="secret")
        assert "Not found" in await words(bob, "read_session", session="alice")
        assert "Not found" in await words(bob, "send_message", session="alice", message="Hello.")
        assert "Not found" in await words(bob, "read_file", path="/workspaces/alice/a")
        assert (await words(bob, "search", words="Hello")) == '{"results":[],"truncated":false}'
        assert (await bob.list_resources()).resources == []
        with pytest.raises(MCPError):
            await bob.read_resource("cfs:///sessions/alice")
        assert '"content":"Hello."' in await words(reader, "read_session", session="alice")
        assert "Forbidden" in await words(reader, "send_message", session="alice", message="Hello.")
        assert "Not found" in await words(reader, "read_file", path="/workspaces/alice/a")
        with pytest.raises(MCPError):
            await bob.get_prompt("summarize_session", {"session": "alice"})


@pytest.mark.asyncio(loop_scope="module")
async def test_a_connection_belongs_to_the_token_that_opened_it(shared: Guarded) -> None:
    """Another caller cannot use its id, or receive what it has subscribed to."""
    async with httpx2.AsyncClient(headers=HEADERS, trust_env=False) as http:
        alice, bob = ({"Authorization": f"Bearer {shared.secrets[name]}"} for name in ("alice", "bob"))
        opened = await http.post(shared.url, json=INITIALIZE, headers=alice)
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-11-25"}
        assert (await http.post(shared.url, json=HELLO, headers=alice | session)).status_code == 200
        assert (await http.post(shared.url, json=HELLO, headers=bob | session)).status_code == 404
        assert (await http.get(shared.url, headers=bob | session)).status_code == 404


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer a b", "Basic YTpi", "Bearer a b\u00e4"])
async def test_who_has_no_valid_token_is_refused_before_the_protocol(shared: Guarded, header: str | None) -> None:
    async with httpx2.AsyncClient(headers=HEADERS, trust_env=False) as http:
        headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
        answer = await http.post(shared.url, json=INITIALIZE, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["type"] == "urn:cfs:error:unauthorized"


async def test_a_revoked_token_is_refused_at_once(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, by_http(server.url, server.secrets["alice"]) as alice:
        assert "sessions" in await words(alice, "list_sessions")
        tokens.revoke(server.file, "alice")
        while "Unauthorized" not in await words(alice, "list_sessions"):  # noqa: ASYNC110 - the server looks by and by
            await asyncio.sleep(0.05)


async def test_the_subscriptions_of_a_revoked_token_end(tmp_path: Path) -> None:
    """A client whose stream ends subscribes again, and is then refused."""
    async with guarded(tmp_path) as server, by_http(server.url, server.secrets["alice"]) as alice:
        async with alice.listen(resources_list_changed=True) as changes:
            tokens.revoke(server.file, "alice")
            assert [event async for event in changes] == []
        with pytest.raises(MCPError):
            async with alice.listen(resources_list_changed=True):
                pass


async def test_callers_that_are_idle_make_room_and_busy_ones_stay(
    cfs_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MAX_CALLERS", 2)
    known = callers.CallerClients(cfs_server.url)
    async with known.calling("busy") as busy:
        async with known.calling("idle") as idle:
            pass
        async with known.calling("new") as new:
            assert idle.client._http.is_closed
            assert (await busy.client.call(callers.whoami())).name == (await new.client.call(callers.whoami())).name
        async with known.calling("busy") as again:
            assert again is busy
    await known.close()
    assert busy.client._http.is_closed


@pytest.mark.asyncio(loop_scope="module")
async def test_the_token_of_the_program_is_for_stdio_only(shared: Guarded) -> None:
    async with by_stdio(shared.cfs_url, shared.secrets["alice"]) as alice:
        assert '"finished":true' in await words(alice, "send_message", session="alice", message="Hello.")
    async with by_stdio(shared.cfs_url) as unknown:
        assert "Unauthorized" in await words(unknown, "list_sessions")


async def test_hostile_requests_over_http_are_refused(cfs_server: ScriptedServer, http_url: str) -> None:
    modern = {"Mcp-Protocol-Version": "2026-07-28"}
    async with httpx2.AsyncClient(headers=HEADERS, trust_env=False) as http:

        async def status(content: bytes = b"{}", **headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await http.post(http_url, content=content, headers=named)).status_code

        assert await status(Host="evil.example") == 421
        assert await status(Origin="http://evil.example") == 403
        assert await status(Content_Type="text/plain") == 400
        assert await status(b"x" * 5_000_000) == 413
        for version in ({}, modern):
            for content in (b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"jsonrpc":"2.0","id":1,"method":7}'):
                assert 400 <= await status(content, **{"Mcp-Protocol-Version": "2026-07-28"} if version else {}) < 500
        assert (await http.put(http_url, json=HELLO)).status_code == 405
        assert (await http.post(http_url.replace("/mcp", "/v1/sessions"), json=HELLO)).status_code == 404
    async with by_http(http_url) as client:
        assert "sessions" in await words(client, "list_sessions")


def test_hostile_lines_over_stdio_do_not_end_it(cfs_server: ScriptedServer) -> None:
    """Each line that is no message is answered or ignored, and the next request is served."""
    lines: list[object] = [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    raw = [b"nonsense", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"jsonrpc":"2.0","id":5,"method":"tools/call"}']
    wrong: tuple[object, ...] = (7, [], {})
    raw += [json.dumps({**HELLO, "id": 6, "method": "tools/call", "params": params}).encode() for params in wrong]
    call = {"name": "read_session", "arguments": {"session": "x" * 1_000_000}}
    raw.append(json.dumps({**HELLO, "id": 7, "method": "tools/call", "params": call}).encode())
    last = json.dumps({**HELLO, "id": 99}).encode()
    sent = b"\n".join([*(json.dumps(line).encode() for line in lines), *raw, last, b""])
    with Program(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(CFS_URL=cfs_server.url)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(sent)
        process.stdin.flush()
        answers = {}
        for line in process.stdout:
            answer = json.loads(line)
            answers[answer.get("id")] = answer
            if {7, 99} <= set(answers):
                break
        process.stdin.close()
        assert process.wait(30) == 0
    assert "tools" in answers[99]["result"]
    assert answers[7]["result"]["isError"]
    assert answers[5]["error"]["code"] == -32602


def test_a_client_that_reads_no_answers_ends_it_without_an_error(cfs_server: ScriptedServer) -> None:
    """As a shell sees it, with `cfs mcp | head -0`: the exit code of a program without a reader, and no words."""
    reads, writes = os.pipe()
    os.close(reads)
    sent = json.dumps(INITIALIZE).encode() + b"\n"
    done = run_program(COMMAND, data=sent, timeout=60, stdout=writes, env=environment(CFS_URL=cfs_server.url))
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, b"")


def exchanged(url: str, sent: bytes) -> list[dict[str, Any]]:
    """Send lines and close the input at once. Return the answers up to the end of the program."""
    done = run_program(COMMAND, data=sent, timeout=60, env=environment(CFS_URL=url))
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_was_read_is_answered_after_the_end_of_the_input(cfs_server: ScriptedServer) -> None:
    """`echo ... | cfs mcp`: a turn of the model is waited for, a subscription is not, and nothing is dropped."""
    call = {"name": "send_message", "arguments": {"session": "eof", "message": "hello"}}
    lines = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {**HELLO, "id": 2, "method": "tools/call", "params": call},
        {**HELLO, "id": 3, "method": "tools/list"},
    ]
    answers = {
        each["id"]: each
        for each in exchanged(cfs_server.url, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    }
    assert set(answers) == {INITIALIZE["id"], 2, 3}
    assert not answers[2]["result"].get("isError"), answers[2]


def test_a_line_that_is_no_message_is_answered_with_the_error_of_the_protocol(cfs_server: ScriptedServer) -> None:
    """JSON-RPC 2.0, section 5.1: -32700 without an id for what is no JSON, -32600 for what is no request."""
    lines = [b"nonsense", b"{", b"", b"[]", b"7", b'{"id": 4}', b'{"jsonrpc": "2.0", "id": "x", "method": 5}']
    answers = exchanged(cfs_server.url, b"\n".join([*lines, b""]))
    found = [(each["id"], each["error"]["code"]) for each in answers]
    assert found == [(None, -32700)] * 2 + [(None, -32600)] * 2 + [(4, -32600), ("x", -32600)]


def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run `cfs` after some Python."""
    code = f"import sys\n{before}\nsys.argv[1:] = {list(arguments)!r}\nfrom cfs.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False, input=""
    )


WITHOUT_MCP = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "mcp":
            raise ModuleNotFoundError("No module named 'mcp'", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_without_its_package_the_command_says_what_to_install() -> None:
    found = run("mcp", before=WITHOUT_MCP)
    assert found.returncode == 1
    assert found.stderr == "cfs: this command needs mcp, which is not installed: pip install 'cfs-local[mcp]'\n"


def test_the_help_of_the_program_does_not_import_the_package() -> None:
    found = run("--help", before="import atexit\natexit.register(lambda: print('mcp' in sys.modules))")
    assert found.returncode == 0
    assert "Give sessions and files to editors" in " ".join(found.stdout.split())
    assert found.stdout.endswith("False\n")


def test_an_open_server_is_served_on_loopback_only(cfs_server: ScriptedServer) -> None:
    found = run("mcp", "--http", "--host", "0.0.0.0", "--port", "0", "--url", cfs_server.url)  # noqa: S104
    assert found.returncode == 1
    assert "requires no tokens" in found.stderr
    assert found.stderr.count("\n") == 1


async def test_a_signal_ends_it_although_subscriptions_are_open(cfs_server: ScriptedServer) -> None:
    program = http_program(cfs_server.url)
    url = await asyncio.to_thread(program.__enter__)
    async with by_http(url) as client, client.listen(resources_list_changed=True):
        await asyncio.to_thread(program.__exit__, None, None, None)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--url", "ftp://x"], 2, "is not the URL of a server"),
        (["--http", "--host", "0.0.0.0", "--url", "http://127.0.0.1:9"], 3, "no server answers"),  # noqa: S104
        (["--http", "--host", "192.0.2.1", "--url", "http://127.0.0.1:9"], 3, "no server answers"),
        (["--http", "--token-file", "x"], 2, "cannot be combined"),
        (["--token-file", "/nonexistent"], 2, "No such file"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], code: int, words: str) -> None:
    found = run_program([*COMMAND, *arguments], timeout=60, data="", text=True, env=environment())
    assert found.returncode == code
    assert words in found.stderr
    assert "Traceback" not in found.stderr


async def test_a_server_that_is_away_is_an_error_of_the_call(cfs_server: ScriptedServer) -> None:
    """An editor may start the MCP server before the CFS server."""
    async with by_stdio("http://127.0.0.1:9") as client:
        assert "no server answers at http://127.0.0.1:9" in await words(client, "list_sessions")
        assert len((await client.list_tools()).tools) > 5
