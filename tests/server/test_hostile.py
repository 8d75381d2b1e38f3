"""Strings that try to get out, in or around, at every place of the REST API that takes a name (G1, G9, H5).

Each is sent as it stands, and percent-encoded once, twice and with its slashes. What comes back is a problem, or the
success of just the entry that the URL names; nothing outside of the workspaces is read or touched, and no answer names
a place of the disk.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

import pytest

from cfs.contract.route_words import ROUTE_WORDS
from cfs.errors import InvalidIdentifier
from cfs_filesystem import InvalidPathError, validate_path
from cfs_server.domain.ids import path_of
from tests.filesystem.hostile_paths import ALL as HOSTILE
from tests.filesystem.hostile_paths import SOME
from tests.server.support import ServerHarness, running_server
from tests.server.test_errors import ROUTES
from tests.server.wire import Reply, Wire

HIDDEN = "what nobody may read"
PROBLEM = b"content-type: application/problem+json"
ATTACKER = Path(__file__).parent.parent / "filesystem" / "swapping_attacker.py"


def raw(text: str) -> bytes:
    """As it stands, be it no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def once(text: str) -> bytes:
    """Percent-encoded but for the slashes."""
    return quote_from_bytes(raw(text)).encode()


def twice(text: str) -> bytes:
    """Percent-encoded, and that again."""
    return quote(quote_from_bytes(raw(text))).encode()


def wholly(text: str) -> bytes:
    """Percent-encoded with the slashes."""
    return quote_from_bytes(raw(text), safe="").encode()


ENCODINGS: dict[str, Callable[[str], bytes]] = {"raw": raw, "once": once, "twice": twice, "wholly": wholly}
WHOLE = (raw, once)
"""The encodings in which a place gets the whole list."""
encodings = pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)


def named(target: bytes) -> str | None:
    """What a target names, by RFC 3986 and nothing else; None if it is no text, or hides a slash.

    A space or a line break ends it: what is behind that is not part of the target.
    """
    path = re.split(rb"[?# ]|\r?\n", target, maxsplit=1)[0]
    if re.search(rb"%(?![0-9A-Fa-f]{2})|%2f", path, re.IGNORECASE):
        return None
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x1f\x7f]", text) else text


def prefix_in(query: bytes) -> str:
    """The value of the one parameter of a query, by the same rules."""
    return unquote_to_bytes(re.split(rb"[&# ]|\r?\n", query, maxsplit=1)[0].replace(b"+", b" ")).decode()


def is_uri(target: bytes) -> bool:
    """Whether a target is one that an HTTP server must take: of legal characters, and not too long."""
    return len(target) < 65_536 and re.fullmatch(rb"[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]+", target) is not None


@pytest.fixture
def some(request: pytest.FixtureRequest) -> list[str]:
    """`SOME`; with --slow all."""
    return HOSTILE if request.config.getoption("--slow") else SOME


class Disk(NamedTuple):
    """The folder of a test, with the data of a server and secrets beside them."""

    folder: Path

    @property
    def root(self) -> Path:
        """Where the workspaces are."""
        return self.folder / "data" / "workspaces"

    def inside(self) -> dict[str, bytes]:
        """The files of the workspaces, by their place."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def clear(self) -> None:
        """Take the empty folders away that deleted files leave."""
        for place in self.root.iterdir():
            shutil.rmtree(place)

    def outside(self) -> list[tuple[str, int, int, bytes]]:
        """All else with its times, without the server's own databases of versions and of words."""
        data = self.folder / "data"
        return sorted(
            (
                str(path),
                0 if path == data else path.lstat().st_mtime_ns,
                path.lstat().st_mode,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in self.folder.rglob("*")
            if not path.is_relative_to(self.root) and not path.name.startswith(("files.db", "versions.db"))
        )


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(tmp_path / "a-place-of-the-disk")
    disk.root.mkdir(parents=True)
    for place in (disk.folder, disk.folder / "data", disk.folder / "etc"):
        place.mkdir(exist_ok=True)
        for name in ("secret", "passwd", "a", "ws"):
            (place / name).write_text(HIDDEN)
    return disk


@dataclass(frozen=True, slots=True)
class Siege:
    """A server, a connection to it, and the disk that it works on."""

    server: ServerHarness
    wire: Wire
    disk: Disk

    async def ask(self, method: str, target: bytes, body: bytes = b"", **fields: str) -> Reply:
        """Ask, and see that the answer tells nothing that it must not."""
        answer = await self.wire.ask(method, target, body, **fields)
        told = answer.head + answer.body
        assert HIDDEN.encode() not in told, target
        assert not any(word in told for word in (b"a-place-of-the-disk", b"Errno", b"Traceback")), told
        return answer


@pytest.fixture
async def siege(disk: Disk) -> AsyncIterator[Siege]:
    before = disk.outside()
    async with running_server(may_block=True, data_dir=disk.folder / "data") as server, Wire(server.url) as wire:
        yield Siege(server, wire, disk)
        assert (await server.client.get("/healthz")).status_code == 200
    assert disk.outside() == before


def refused(answer: Reply, target: bytes) -> bool:
    """Whether this is a problem; for what is no target at all the word of the HTTP server will do."""
    if answer.says(PROBLEM):
        return 400 <= answer.status < 500 and json.loads(answer.body)["status"] == answer.status
    return answer.status == 400 and not is_uri(target)


# -- files ------------------------------------------------------------------------------------------------------------


def file_named(target: bytes) -> str | None:
    """The logical path that a target below /v1/files names, if it can be one in a workspace."""
    text = named(target)
    if text is None or not text.startswith("/v1/files/"):
        return None
    try:
        path = validate_path(text.removeprefix("/v1/files"), ["/workspaces/", "/sessions/"])
    except InvalidPathError:
        return None
    return path if path.startswith("/workspaces/") and path.count("/") > 2 else None


@pytest.mark.parametrize(
    ("place", "encode"), [*(("/workspaces/ws", encode) for encode in ENCODINGS.values()), ("/workspaces", once)]
)
async def test_a_file_is_the_one_that_the_url_names_or_none(
    siege: Siege, some: list[str], place: str, encode: Callable[[str], bytes]
) -> None:
    wrong: list[object] = []
    made = 0
    for hostile in HOSTILE if encode in WHOLE else some:
        target = f"/v1/files{place}".encode() + encode(hostile if hostile.startswith("/") else "/" + hostile)
        path = file_named(target)
        put = await siege.ask("PUT", target, b"content of " + raw(hostile)[:200])
        if path is None or not 200 <= put.status < 300:
            others = [await siege.ask(method, target) for method in ("GET", "HEAD", "DELETE")]
            if not all(refused(each, target) for each in (put, others[0], others[2])) or others[1].status < 400:
                wrong.append((target[:80], put))
            if siege.disk.inside() or (path is not None and is_uri(target)):
                wrong.append((target[:80], put, siege.disk.inside()))
            continue
        made += 1
        inside = {path.removeprefix("/workspaces/"): b"content of " + raw(hostile)[:200]}
        got = await siege.ask("GET", target)
        listed = (await siege.server.client.get("/v1/files", params={"prefix": path})).json()["files"]
        if siege.disk.inside() != inside or got.body != inside[path.removeprefix("/workspaces/")]:
            wrong.append((target[:80], put, siege.disk.inside()))
        if [file["path"] for file in listed] != [path] or json.loads(put.body)["path"] != path:
            wrong.append((target[:80], put, listed))
        if (await siege.ask("DELETE", target)).status != 204 or siege.disk.inside():
            wrong.append((target[:80], "is still there"))
        siege.disk.clear()
    assert wrong == [], "\n".join(map(repr, wrong[:20]))
    assert made >= (0 if encode is wholly else 20 if encode in WHOLE else 4)
    assert len(siege.server.store) == 0


@encodings
async def test_what_is_below_no_place_of_files_is_none(
    siege: Siege, some: list[str], encode: Callable[[str], bytes]
) -> None:
    wrong = []
    for hostile in HOSTILE if encode is once else some:
        target = b"/v1/files" + encode(hostile if hostile.startswith("/") else "/" + hostile)
        answers = [await siege.ask(method, target) for method in ("GET", "PUT", "DELETE")]
        wrong += [(target[:80], answer) for answer in answers if not refused(answer, target)]
    assert wrong == [], "\n".join(map(repr, wrong[:20]))
    assert (siege.disk.inside(), len(siege.server.store)) == ({}, 0)


@encodings
@pytest.mark.parametrize("place", ["", "/workspaces/ws"])
async def test_a_listing_is_of_the_prefix_that_it_names_or_refused(
    siege: Siege, some: list[str], encode: Callable[[str], bytes], place: str
) -> None:
    (siege.disk.root / "ws").mkdir()
    (siege.disk.root / "ws" / "kept").write_text("inside")
    wrong = []
    for hostile in HOSTILE if encode is once else some:
        prefix = encode(place + hostile)
        answer = await siege.ask("GET", b"/v1/files?prefix=" + prefix)
        if answer.status != 200:
            if not refused(answer, prefix):
                wrong.append((prefix[:80], answer))
            continue
        said = prefix_in(prefix)
        found = [file["path"] for file in json.loads(answer.body)["files"]]
        if found != [path for path in ("/workspaces/ws/kept",) if path.startswith(said)]:
            wrong.append((prefix[:80], answer))
    assert wrong == [], "\n".join(map(repr, wrong[:20]))


# -- sessions ---------------------------------------------------------------------------------------------------------


def is_id(text: str) -> bool:
    """Whether a text can be the id of a session that the gate opens."""
    try:
        path_of(text)
    except InvalidIdentifier:
        return False
    return True


def session_named(target: bytes, base: str, end: str) -> str | None:
    """The session that a target names for a route, if it can be one."""
    text = named(target)
    if text is None or not (text.startswith(f"{base}/") and text.endswith(end)):
        return None
    session_id = text.removeprefix(f"{base}/").removesuffix(end)
    return session_id if is_id(session_id) else None


SESSION_ROUTES = [(method, path) for method, path in ROUTES if "{id}" in path]
BODIES: dict[str, bytes] = {
    "/transcript": b"User: x\n",
    "/rename": b'{"id": "x"}',
    "/rewind": b'{"to": 0}',
    "/update": b'{"claim": "x"}',
    "/finish": b'{"claim": "x"}',
    "/questions": b'{"claim": "x", "text": "x"}',
    "/questions/q": b'{"answer": "x"}',
    "/messages": b"x",
    "/items": b'{"items": [{"role": "user", "content": "x"}]}',
}
MAIN_ROUTES = ("/v1/sessions/{id}", "/v1/sessions/{id}/messages")
"""Their URLs are tried in all encodings; those of the others are read by the same code."""


@pytest.mark.parametrize(
    ("method", "path", "encode"),
    [
        pytest.param(method, path, encode, marks=() if encode is once or path in MAIN_ROUTES else pytest.mark.slow)
        for method, path in SESSION_ROUTES
        for encode in ENCODINGS.values()
        if encode in (raw, once) or path in MAIN_ROUTES
    ],
)
async def test_a_session_is_the_one_that_the_url_names_or_none(
    siege: Siege, some: list[str], method: str, path: str, encode: Callable[[str], bytes]
) -> None:
    base, _, end = path.partition("/{id}")
    end = end.format(turn="x", question="q", item="i")
    body = next((body for word, body in BODIES.items() if end.endswith(word)), b"") if method != "GET" else b""
    media = "text/plain" if end in ("/messages", "/transcript") else "application/json"
    wrong: list[object] = []
    for hostile in HOSTILE if path in MAIN_ROUTES and encode in WHOLE else some:
        target = base.encode() + encode(hostile if hostile.startswith("/") else "/" + hostile) + end.encode()
        session_id = session_named(target, base, end)
        answer = await siege.ask(method, target, body, If_Match="*" if end == "/transcript" else "", Content_Type=media)
        made = [session.id for session in siege.server.store]
        if end == "/messages" and session_id is not None and answer.status == 412:
            answer = await siege.ask(method, target, body, Content_Type=media)
            made = [session.id for session in siege.server.store]
            wanted = session_id.split("/")
            family = ["/".join(wanted[:depth]) for depth in range(1, len(wanted) + 1)]
            if (answer.status, made) != (202, family) or json.loads(answer.body)["session"] != session_id:
                wrong.append((target[:80], answer, made))
            siege.server.store.delete(wanted[0])
        elif made or not refused(answer, target):
            wrong.append((target[:80], answer, made))
        elif session_id is not None and is_uri(target) and answer.status != 404:
            wrong.append((target[:80], answer))
    assert wrong == [], "\n".join(map(repr, wrong[:20]))


def in_json(text: str) -> list[str]:
    """The ways in which a text is put into a body."""
    bare = text.removeprefix("/")
    return list(dict.fromkeys([text, bare, once(text).decode(), once(bare).decode(), twice(bare).decode()]))


NAMING = {
    "create": ("/v1/sessions", 201),
    "fork": ("/v1/sessions/source/fork", 201),
    "rename": ("/v1/sessions/source/rename", 200),
}


@pytest.mark.parametrize("act", NAMING)
async def test_a_session_gets_the_name_that_the_body_gives_it_or_none(siege: Siege, some: list[str], act: str) -> None:
    store, (url, success) = siege.server.store, NAMING[act]
    wrong: list[object] = []
    for hostile in HOSTILE if act == "create" else some:
        for name in in_json(hostile):
            store.open("source")
            body = json.dumps({"id": name}).encode()
            answer = await siege.ask("POST", url.encode(), body, Content_Type="application/json")
            made = {session.id for session in store} - {"source"}
            if is_id(name):
                parts = name.split("/")
                family = {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
                if (answer.status, made) != (success, family) or json.loads(answer.body)["id"] != name:
                    wrong.append((name[:80], answer, made))
                store.delete(parts[0])
            elif made or not answer.says(PROBLEM) or not 400 <= answer.status < 500:
                wrong.append((name[:80], answer, made))
    assert wrong == [], "\n".join(map(repr, wrong[:20]))


@encodings
async def test_a_page_of_sessions_has_the_prefix_that_was_asked_for(
    siege: Siege, some: list[str], encode: Callable[[str], bytes]
) -> None:
    siege.server.store.open("a/b")
    wrong = []
    for hostile in HOSTILE if encode is once else some:
        for text in (hostile, hostile.removeprefix("/")):
            target = b"/v1/sessions?prefix=" + encode(text)
            answer = await siege.ask("GET", target)
            if answer.status != 200:
                if not refused(answer, target):
                    wrong.append((target[:80], answer))
                continue
            said = prefix_in(encode(text))
            found = [session["id"] for session in json.loads(answer.body)["sessions"]]
            if found != [name for name in ("a", "a/b") if name.startswith(said) and ("/" in name) == ("/" in said)]:
                wrong.append((target[:80], answer))
    assert wrong == [], "\n".join(map(repr, wrong[:20]))


@encodings
async def test_turns_and_cursors_are_no_places_for_names(
    siege: Siege, some: list[str], encode: Callable[[str], bytes]
) -> None:
    await siege.server.create("a", driver="agent")
    await siege.server.say("a", "hello")
    before = siege.server.store.bus.log.last
    wrong = []
    for hostile in HOSTILE if encode is once else some:
        text = encode(hostile.removeprefix("/"))
        targets = [
            ("POST", b"/v1/sessions/a/turns/" + text + b"/update"),
            ("POST", b"/v1/sessions/a/turns/" + text + b"/finish"),
            ("GET", b"/v1/events?after=x" + text),
            ("GET", b"/v1/sessions/a/events?after=x" + text),
        ]
        answers = [
            (target, await siege.ask(method, target, b'{"claim": "x"}', Content_Type="application/json"))
            for method, target in targets
        ]
        wrong += [(target[:80], answer) for target, answer in answers if not refused(answer, target)]
    assert wrong == [], "\n".join(map(repr, wrong[:20]))
    assert siege.server.store.bus.log.last == before


async def test_the_words_of_routes_are_no_names(siege: Siege) -> None:
    for word in sorted(ROUTE_WORDS):
        answer = await siege.ask("POST", f"/v1/sessions/a/{word}/messages".encode(), b"x")
        assert 400 <= answer.status < 500, (word, answer)
        made = await siege.ask(
            "POST", b"/v1/sessions", json.dumps({"id": f"a/{word}"}).encode(), Content_Type="application/json"
        )
        assert made.status == 422
    assert len(siege.server.store) == 0


# -- what is on the disk ----------------------------------------------------------------------------------------------


async def test_what_is_no_plain_file_is_neither_listed_nor_read_nor_written(siege: Siege) -> None:
    """Links to files and folders, hard links, pipes, sockets' places and devices, planted in a workspace."""
    outside, place = siege.disk.folder / "etc", siege.disk.root / "ws"
    place.mkdir()
    (place / "kept").write_text("inside")
    (place / "link").symlink_to(outside / "secret")
    (place / "dangling").symlink_to(outside / "not-there-yet")
    (place / "door").symlink_to(outside)
    (place / "up").symlink_to("../..")
    (place / "loop").symlink_to("loop")
    os.mkfifo(place / "pipe")
    (siege.disk.root / "whole").symlink_to(siege.disk.folder)
    planted = [
        "link",
        "dangling",
        "door",
        "door/secret",
        "door/new",
        "up",
        "up/secret",
        "up/data/secret",
        "loop",
        "pipe",
    ]
    targets = [f"ws/{name}" for name in planted] + ["whole", "whole/secret", "whole/new/file", "pipe/../kept"]
    for name in targets:
        target = f"/v1/files/workspaces/{name}".encode()
        for view in ("bytes", "text", "meta", "matches&pattern=."):
            answer = await siege.ask("GET", target + f"?view={view}".encode())
            assert answer.status in (400, 404), (name, view, answer)
        assert (await siege.ask("PUT", target, b"new")).status in (400, 409), name
        assert (await siege.ask("PUT", target, b"new", If_None_Match="*")).status in (400, 409), name
        assert (await siege.ask("DELETE", target)).status in (400, 404, 409), name
        assert (
            json.loads((await siege.ask("GET", f"/v1/files?prefix=/workspaces/{name}".encode())).body).get("files", [])
            == []
        )
    listed = await siege.ask("GET", b"/v1/files")
    assert [file["path"] for file in json.loads(listed.body)["files"]] == ["/workspaces/ws/kept"]
    assert siege.disk.inside() == {"ws/kept": b"inside"}


async def test_a_file_with_another_name_outside_is_refused(disk: Disk) -> None:
    (disk.root / "ws").mkdir()
    (disk.root / "ws" / "hard").hardlink_to(disk.folder / "etc" / "secret")
    async with running_server(may_block=True, data_dir=disk.folder / "data") as server, Wire(server.url) as wire:
        siege = Siege(server, wire, disk)
        for method in ("GET", "PUT", "DELETE"):
            answer = await siege.ask(method, b"/v1/files/workspaces/ws/hard", b"new")
            assert (answer.status, json.loads(answer.body)["type"]) == (400, "urn:cfs:error:invalid-path"), answer
        listed = await siege.ask("GET", b"/v1/files")
        assert json.loads(listed.body)["files"] == []
    assert (disk.folder / "etc" / "secret").read_text() == HIDDEN


async def test_a_folder_swapped_for_a_link_while_requests_run(siege: Siege) -> None:
    """However often a name is exchanged between check and use: it is the inside or a problem, never the outside."""
    place, outside = siege.disk.root / "ws", siege.disk.folder / "etc"
    (place / "door").mkdir(parents=True)
    (place / "door" / "secret").write_text("inside")
    (place / "leaf").write_text("inside")
    at = b"/v1/files/workspaces/ws/"
    seen: Counter[str] = Counter()
    with subprocess.Popen(  # noqa: ASYNC220 - it takes no time
        [sys.executable, str(ATTACKER), str(place), str(outside)], stdout=subprocess.PIPE
    ) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.read(1) == b"x"
            while min(seen["GET ok"], seen["PUT ok"], seen["refused"]) < 20:
                for method, name in (
                    ("GET", b"door/secret"),
                    ("GET", b"leaf"),
                    ("PUT", b"door/secret"),
                    ("PUT", b"door/new"),
                    ("DELETE", b"door/new"),
                ):
                    answer = await siege.ask(method, at + name, b"inside")
                    if answer.status < 300:
                        seen[f"{method} ok"] += 1
                        assert method != "GET" or answer.body == b"inside", answer
                    else:
                        assert answer.status in (400, 404, 409), answer
                        seen["refused"] += answer.status == 400
                listed = json.loads((await siege.ask("GET", b"/v1/files?prefix=/workspaces/ws")).body)["files"]
                assert {file["size"] for file in listed} <= {0, len("inside")}
        finally:
            attacker.kill()
