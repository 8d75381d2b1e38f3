"""What the mounts of sessions show, and what may be done there beside a PUT (W3, W5, G9)."""

import asyncio
import time

import pytest

from cfs.wire import SettingsPatch
from cfs_filesystem import OPERATIONS, Grant, Operation
from cfs_server.dav.sessions import SubSessionTree
from cfs_webdav.tree import MountView, Resource
from tests.filesystem.support import grant
from tests.webdav.support import Caller, mount, mounts, sub_mount

TALK = "User: hello\nAssistant: hi\n"
ODD = [
    "a b",
    "ü",
    "%",
    "%41",
    "?",
    "a%2Fb",
    "\\",
    "*",
    "#x",
    "a.b",
    "你好",
    "-",
    "x" * 255,
    "é\u0301",
    "a;b",
]


async def messages(ann: Caller, session: str) -> list[str]:
    """What a session holds once it is settled."""
    return [message.content for message in (await ann.harness.settled(session)).history.messages]


async def test_a_session_looks_as_it_is_now() -> None:
    async with mount() as ann:
        assert (await ann.look("/"), await ann.look("/chat1")) == (Resource("/", collection=True), None)
        session = ann.harness.store.create("chat1", transcript="Assistant: 你好\n")
        for _ in range(2):
            assert await ann.look("/chat1") == Resource(
                "/chat1",
                False,
                len(session.history.text.encode()),
                session.history.changed_at,
                session.etag.strip('"'),
                "text/plain; charset=utf-8",
            )
            assert await ann.bytes_at("/chat1") == session.history.text.encode()
            ann.harness.say("chat1", "more")
            await ann.harness.settled("chat1")


@pytest.mark.parametrize("name", ODD)
async def test_odd_names_are_themselves(name: str) -> None:
    async with mount() as ann:
        await ann.put(f"/{name}", "hello")
        await ann.harness.settled(name)
        assert [session.id for session in ann.harness.store] == [name]
        assert await ann.paths() == [f"/{name}"]
        assert (await ann.look(f"/{name}")) is not None
        await ann.do(lambda tree: tree.delete(f"/{name}"))


@pytest.mark.parametrize("path", ["/a/b", "/" + "x" * 256, "/" + "*" * 200, "/a/b/c", "/new"])
async def test_nothing_is_at_other_paths(path: str) -> None:
    async with mount() as ann:
        ann.harness.store.open("a/b")
        assert await ann.look(path) is None
        sub = ann.by(kind=SubSessionTree)
        assert (await sub.look(path) is not None) == (path == "/a/b")


async def test_ten_thousand_sessions_are_one_look() -> None:
    async with mount() as ann:
        for number in range(10_000):
            ann.harness.store.open(f"s{number}")
        hops = []
        loop = asyncio.get_running_loop()
        carry = loop.call_soon_threadsafe
        tree = ann.tree

        def count(*args: object, **more: object) -> object:
            hops.append(args)
            return carry(*args, **more)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = count  # type: ignore[assignment,method-assign]

        def propfind() -> tuple[int, set[str], float]:
            started = time.thread_time()
            entries = list(tree.members("/"))
            states = {tree.properties(entry.path)["{cfs:}state"] for entry in entries}
            return len(entries), states, time.thread_time() - started

        try:
            number, states, seconds = await asyncio.to_thread(propfind)
        finally:
            del loop.call_soon_threadsafe
        assert (number, states) == (10_000, {"idle"})
        assert len(hops) <= 3, "one for the look, and the executor's own"
        assert seconds < 2.0


async def test_a_session_may_have_a_name_that_editors_use() -> None:
    async with mount() as ann:
        ann.harness.store.open("notes~")
        assert (await ann.look("/notes~") is not None, await ann.paths()) == (True, ["/notes~"])


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_any_right_shows_that_a_session_is_there_and_some_show_what_it_is(operation: Operation) -> None:
    async with mount() as ann:
        session = ann.harness.store.create("chat1", transcript=TALK)
        ann.may(grant("/sessions/chat1", operation))
        entry = await ann.look("/chat1")
        assert entry is not None
        sees = operation in ("list", "file", "read_binary")
        assert (entry.size, entry.etag, entry.modified) == (
            (len(TALK), session.etag.strip('"'), session.history.changed_at) if sees else (0, None, None)
        )
        assert await ann.paths() == (["/chat1"] if operation == "list" else [])
        shown = await ann.do(lambda tree: dict(tree.properties("/chat1")))
        assert ("{cfs:}state" in shown, "{cfs:}temperature" in shown) == (sees, operation == "read_binary")


async def test_without_rights_nothing_is_there() -> None:
    async with mount() as ann:
        ann.harness.store.create("chat1", transcript=TALK)
        ann.harness.store.open("chat1/child")
        ann.may(grant("/sessions/other"))
        for name in ("chat1", "none"):
            path = f"/{name}"
            assert await ann.look(path) is None
            for call in (
                lambda tree, path=path: tree.open(path),
                lambda tree, path=path: tree.make(path),
                lambda tree, path=path: tree.delete(path),
                lambda tree, path=path: tree.move(path, "/other"),
                lambda tree, path=path: tree.copy(path, "/other"),
                lambda tree, path=path: tree.copy(path, "/other~"),
                lambda tree, path=path: tree.set_property(path, "{cfs:}top_k", "1", dry_run=True),
            ):
                assert f"no session '{name}' for you" in await ann.refused(404, call)
            assert not await ann.do(lambda tree, path=path: tree.may_write(path))  # type: ignore[misc]
        sub = ann.by(kind=SubSessionTree)
        assert (await sub.paths(), await sub.look("/chat1"), await sub.paths("/chat1")) == ([], None, [])
        assert await sub.look("/chat1/child") is None


async def test_a_right_that_is_missing_is_named() -> None:
    async with mount() as ann:
        ann.harness.store.create("chat1", transcript=TALK)
        ann.may(grant("/sessions/chat1", "file"), grant("/sessions/own"))
        assert "'delete'" in await ann.refused(403, lambda tree: tree.delete("/chat1"))
        assert "'write'" in await ann.refused(403, lambda tree: tree.make("/chat1"))
        assert "'read_binary'" in await ann.refused(403, lambda tree: tree.open("/chat1"))
        assert "'read_binary'" in await ann.refused(403, lambda tree: tree.move("/chat1", "/own"))
        assert "'read_binary'" in await ann.refused(403, lambda tree: tree.copy("/chat1", "/own"))
        assert "'read_binary'" in await ann.refused(403, lambda tree: tree.move("/chat1", "/own~"))
        ann.may(Grant(prefix="/sessions/chat1", ops=OPERATIONS - {"delete"}), grant("/sessions/own"))
        assert "'delete'" in await ann.refused(403, lambda tree: tree.move("/chat1", "/own"))


async def test_who_may_write_may_write() -> None:
    async with mount() as ann:
        ann.may(grant("/sessions/chat1", "write"), grant("/sessions/chat2", "read"))
        sub = ann.by(kind=SubSessionTree)
        for caller, path, may in [
            (ann, "/chat1", True),
            (ann, "/chat2", False),
            (ann, "/", False),
            (ann, "/a/b", False),
            (ann, "/x~", True),
            (sub, "/chat1", False),
            (sub, "/chat1/child", True),
        ]:
            assert await caller.do(lambda tree, path=path: tree.may_write(path)) == may  # type: ignore[misc]


async def test_a_lock_makes_a_session() -> None:
    async with mount() as ann:
        await ann.do(lambda tree: tree.make("/chat1"))
        assert ann.harness.store.get("chat1").history.text == ""
        before = ann.everything()
        await ann.do(lambda tree: tree.make("/chat1"))
        assert ann.everything() == before
        await ann.refused(422, lambda tree: tree.make("/" + "x" * 256))


async def test_collections_are_neither_made_nor_changed() -> None:
    async with mount() as ann:
        ann.harness.store.open("main/coder")
        sub = ann.by(kind=SubSessionTree)
        for caller in (ann, sub):
            await caller.refused(403, lambda tree: tree.make_collection("/new"))
            await caller.refused(403, lambda tree: tree.delete("/"))
            await caller.refused(404, lambda tree: tree.copy("/a/b/c", "/x/y"))
        await sub.refused(403, lambda tree: tree.delete("/main"))
        await sub.refused(403, lambda tree: tree.move("/main", "/other"))
        await sub.refused(403, lambda tree: tree.copy("/main/coder", "/other"))
        await sub.refused(403, lambda tree: tree.make("/other"))
        await sub.put_refused(403, "/other", "hello")


async def test_deleting_ends_a_session_and_what_is_below() -> None:
    async with mount() as ann:
        ann.harness.store.open("main/coder")
        await ann.do(lambda tree: tree.delete("/main"))
        assert len(ann.harness.store) == 0
        await ann.refused(404, lambda tree: tree.delete("/main"))


async def test_moving_renames() -> None:
    async with mount() as ann:
        session = ann.harness.store.create("chat1", transcript=TALK)
        ann.harness.store.open("chat1/child")
        ann.harness.store.open("chat2")
        await ann.do(lambda tree: tree.move("/chat1", "/a b"))
        assert (ann.harness.store.get("a b"), ann.harness.store.find("chat1")) == (session, None)
        assert ann.harness.store.find("a b/child") is not None
        assert not await ann.do(lambda tree: tree.may_overwrite("/a b", "/chat2"))
        await ann.refused(409, lambda tree: tree.move("/a b", "/chat2"))
        await ann.refused(422, lambda tree: tree.move("/a b", "/" + "x" * 256))
        await ann.refused(404, lambda tree: tree.move("/a b", "/a/b"))


async def test_copying_forks() -> None:
    async with mount() as ann:
        ann.harness.store.create("chat1", SettingsPatch(top_k=3), TALK)
        ann.harness.store.open("there")
        await ann.do(lambda tree: tree.copy("/chat1", "/chat2"))
        copy = ann.harness.store.get("chat2")
        assert (copy.history.text, copy.settings.top_k, ann.harness.engine.requests) == (TALK, 3, [])
        assert not await ann.do(lambda tree: tree.may_overwrite("/chat1", "/there"))
        await ann.refused(409, lambda tree: tree.copy("/chat1", "/there"))


async def test_settings_are_properties() -> None:
    async with mount() as ann:
        ann.harness.store.open("chat1")
        shown = await ann.do(lambda tree: dict(tree.properties("/chat1")))
        assert shown == {
            "{cfs:}state": "idle",
            "{cfs:}queued": "0",
            "{cfs:}max_tokens": "512",
            "{cfs:}temperature": "0.7",
            "{cfs:}top_p": "0.95",
            "{cfs:}top_k": "40",
            "{cfs:}min_p": "0.05",
            "{cfs:}presence_penalty": "0.0",
            "{cfs:}frequency_penalty": "0.0",
            "{cfs:}repeat_penalty": "1.0",
            "{cfs:}repeat_last_n": "64",
            "{cfs:}min_tokens": "0",
            "{cfs:}prompt_style": "auto",
            "{cfs:}driver": "model",
            "{cfs:}paused": "false",
            "{cfs:}reproducible": "false",
            "{cfs:}overflow": "shift",
        }
        changes = {"temperature": "0.2", "seed": "7", "stop": '["a", "ü"]', "system": "be 7", "driver": "agent"}
        changes["overflow"] = "summarize"
        changes["reproducible"] = changes["paused"] = "true"
        for name, value in changes.items():
            before = ann.everything()
            for dry_run in (True, False):
                assert ann.everything() == before

                def change(tree: MountView, name: str = name, value: str = value, *, dry: bool = dry_run) -> bool:
                    return tree.set_property("/chat1", f"{{cfs:}}{name}", value, dry_run=dry)

                assert await ann.do(change)
        settings = ann.harness.store.get("chat1").settings
        assert (settings.temperature, settings.seed, settings.stop) == (0.2, 7, ("a", "ü"))
        assert (settings.system, settings.driver) == ("be 7", "agent")
        shown = await ann.do(lambda tree: dict(tree.properties("/chat1")))
        assert {name: shown[f"{{cfs:}}{name}"] for name in changes} == changes
        for name in changes:
            assert await ann.do(
                lambda tree, name=name: tree.set_property("/chat1", f"{{cfs:}}{name}", None, dry_run=False)  # type: ignore[misc]
            )
        ann.harness.store.open("chat2")
        assert ann.harness.store.get("chat1").settings == ann.harness.store.get("chat2").settings


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "status", "reason"),
    [
        ("colour", "red", 409, "no setting 'colour'"),
        ("colour", None, 409, "no setting"),
        ("temperature", "5.5", 409, "less than or equal to 5"),
        ("temperature", "warm", 409, "temperature"),
        ("temperature", "", 409, "temperature"),
        ("top_k", "1.5", 409, "top_k"),
        ("stop", "User:", 409, "stop"),
        ("stop", '[""]', 409, "stop"),
        ("driver", "me", 409, "driver"),
        ("state", "idle", 403, "cannot be set"),
        ("queued", None, 403, "cannot be set"),
    ],
)
async def test_what_is_no_setting_is_refused(
    name: str, value: str | None, status: int, reason: str, *, dry_run: bool
) -> None:
    async with mount() as ann:
        ann.harness.store.open("chat1")
        told = await ann.refused(
            status, lambda tree: tree.set_property("/chat1", f"{{cfs:}}{name}", value, dry_run=dry_run)
        )
        assert reason in told


async def test_other_properties_are_nobodys() -> None:
    async with mount() as ann:
        ann.harness.store.open("chat1")
        await ann.put("/x~", "x")
        for path, name in (
            ("/chat1", "{http://x}colour"),
            ("/chat1", "{cfs}top_k"),
            ("/x~", "{cfs:}top_k"),
            ("/", "{cfs:}top_k"),
        ):
            assert not await ann.do(lambda tree, p=path, n=name: tree.set_property(p, n, "1", dry_run=False))  # type: ignore[misc]
        assert await ann.do(lambda tree: [dict(tree.properties(path)) for path in ("/", "/x~", "/none")]) == [{}] * 3
        await ann.refused(404, lambda tree: tree.set_property("/none", "{cfs:}top_k", "1", dry_run=True))


async def test_a_change_is_seen_by_the_request_that_made_it() -> None:
    async with mount() as ann:
        ann.harness.store.open("chat1")

        def change(tree: MountView) -> list[str]:
            list(tree.members("/"))
            before = tree.properties("/chat1")["{cfs:}top_k"]
            tree.set_property("/chat1", "{cfs:}top_k", "7", dry_run=False)
            return [before, tree.properties("/chat1")["{cfs:}top_k"]]

        assert await ann.do(change) == ["40", "7"]


async def test_properties_say_what_the_session_does() -> None:
    async with mount() as ann:
        ann.harness.engine.hold()
        for _ in range(3):
            ann.harness.say("chat1", "hi")
        shown = await ann.do(lambda tree: dict(tree.properties("/chat1")))
        assert (shown["{cfs:}state"], shown["{cfs:}queued"]) == ("generating", "2")


async def test_architectures_are_collections() -> None:
    async with sub_mount() as ann:
        for name in ("main/coder/tester", "main/critic", "alone", "a b/c"):
            ann.harness.store.open(name)
        assert await ann.paths() == ["/a b", "/main"]
        assert await ann.paths("/main") == ["/main/coder", "/main/coder.tester", "/main/critic"]
        alone = await ann.look("/alone")
        assert alone is not None
        assert (alone.collection, await ann.paths("/alone")) == (True, [])
        assert (await ann.look("/none"), await ann.look("/main/none"), await ann.look("/main/a..b")) == (None,) * 3
        entry = await ann.look("/main/coder.tester")
        assert entry is not None
        assert (entry.collection, entry.etag) == (False, ann.harness.store.get("main/coder/tester").etag.strip('"'))


async def test_writing_to_a_sub_session_steers_it() -> None:
    async with sub_mount() as ann:
        ann.harness.store.open("main")
        await ann.put("/main/coder.tester", "test it")
        assert await messages(ann, "main/coder/tester") == ["test it", "test it"]
        assert ann.harness.store.find("main/coder") is not None
        assert "letters, digits" in await ann.put_refused(422, "/main/a b", "hello")
        assert "routes" in await ann.put_refused(422, "/main/events", "hello")
        await ann.do(lambda tree: tree.move("/main/coder", "/main/critic"))
        assert await ann.paths("/main") == ["/main/critic", "/main/critic.tester"]
        await ann.refused(409, lambda tree: tree.move("/main/critic", "/main/critic.tester.x"))
        await ann.refused(422, lambda tree: tree.move("/main/critic", "/main/a b"))
        await ann.do(lambda tree: tree.copy("/main/critic.tester", "/main/forked"))
        assert await messages(ann, "main/forked") == ["test it", "test it"]
        await ann.do(lambda tree: tree.delete("/main/critic"))
        assert await ann.paths("/main") == ["/main/forked"]


async def test_a_child_is_reached_without_a_right_to_its_root() -> None:
    async with mounts() as running_server:
        for name in ("main/coder/tester", "main/critic", "other/x"):
            running_server.harness.store.open(name)
        bob = running_server.caller("bob", grant("/sessions/main/coder/tester")).by(kind=SubSessionTree)
        assert (await bob.paths(), await bob.paths("/main")) == (["/main"], ["/main/coder.tester"])
        assert (await bob.look("/main")) is not None
        assert [await bob.look(path) for path in ("/main/coder", "/main/critic", "/other", "/other/x")] == [None] * 4
        await bob.put("/main/coder.tester", "hello")
        await running_server.harness.settled("main/coder/tester")


async def test_a_name_that_can_be_a_sub_session_is_one() -> None:
    async with sub_mount() as ann:
        ann.harness.store.open("main")
        for name in ("4913", "sed123456", "a.swp"):
            await ann.put(f"/main/{name}", "")
            assert ann.harness.store.find(f"main/{name.replace('.', '/')}") is not None
        for path in ("/main/.a.swp", "/main/a~", "/main/#a#", "/.DS_Store"):
            await ann.put(path, "x")
            assert await ann.bytes_at(path) == b"x"
        assert len(ann.harness.store) == 5
        assert "/.DS_Store" in await ann.paths()
        assert "/main/a~" in await ann.paths("/main")
