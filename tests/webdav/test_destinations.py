"""MOVE, COPY and DELETE of anything to anywhere: the whole of it has happened, or nothing has (W1, W3, S14)."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disks import Mount, mount  # noqa: F401 - a fixture
from tests.server.support import running_server
from tests.webdav.wire import LOCK, Dav

MOUNT = "/dav/workspaces"
Files = dict[str, bytes | None]
"""Contents by path; None for a folder."""
FILES: Files = {
    "w": None,
    "w/a": None,
    "w/a/f": b"1",
    "w/a/g": None,
    "w/a/g/h": b"2",
    "w/b": None,
    "w/b/f": b"3",
    "w/x": b"4",
    "w/y": b"5",
    "v": None,
    "v/z": b"6",
}
SOURCES = ("w", "w/a", "w/a/g", "w/a/f", "w/x", "w/none", "")
TARGETS = (
    "",
    "w",
    "w/a",
    "w/a/g",
    "w/a/f",
    "w/a/new",
    "w/b",
    "w/x",
    "w/x/new",
    "w/new",
    "w/none/new",
    "v",
    "v/z",
    "new",
)
ELSEWHERE = ("/dav/sessions/new", "/dav", "/", "/v1/files/new", "http://elsewhere.example/dav/workspaces/w/new")


def snapshot(root: Path) -> Files:
    """Everything on the disk of the server."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def plant(root: Path) -> None:
    """Let there be the files again."""
    for old in list(root.iterdir()):  # the server has opened the folder itself
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for path, content in FILES.items():
        (root / path).mkdir() if content is None else (root / path).write_bytes(content)


def contains(path: str, other: str) -> bool:
    return path == "" or other == path or other.startswith(path + "/")


def expected(method: str, source: str, target: str, *, overwrite: bool, depth: str) -> tuple[int, Files]:
    """What RFC 4918 wants (9.8, 9.9), where this server carries a request out at all; 0 for any refusal."""
    folder = FILES.get(source, b"") is None
    if source == "" or source not in FILES or contains(source, target) or contains(target, source):
        return 0, FILES
    parent = target.rpartition("/")[0]
    if (parent and FILES.get(parent, b"") is not None) or (not folder and not parent):
        return 0, FILES
    if target in FILES and not overwrite:
        return 412, FILES
    if method == "MOVE" and folder and depth == "0":
        return 400, FILES
    after = {path: content for path, content in FILES.items() if not contains(target, path)}
    for path, content in FILES.items():
        if path == source or (depth != "0" and contains(source, path)):
            after[target + path.removeprefix(source)] = content
    if method == "MOVE":
        after = {path: content for path, content in after.items() if not contains(source, path)}
    return 204 if target in FILES else 201, dict(sorted(after.items()))


_HEADERS: list[dict[str, str]] = [{}, {"overwrite": "F"}, {"depth": "0"}, {"depth": "infinity", "overwrite": "T"}, {}]


def forms() -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Each pair by each method, in turn with other headers, with and without a slash at either end."""
    turn = 0
    for method in ("MOVE", "COPY"):
        for source in SOURCES:
            for target in TARGETS:
                for _ in range(2):
                    turn += 1
                    slashes = "/" * (turn // 2 % 2), "/" * (turn // 4 % 2)
                    headers = _HEADERS[turn % len(_HEADERS)]
                    yield method, source + slashes[0] * bool(source), target + slashes[1] * bool(target), headers


async def test_each_pair_of_paths_in_a_workspace(tmp_path: Path) -> None:
    """The disk is compared byte for byte before and after."""
    root = tmp_path / "workspaces"
    async with running_server(data_dir=tmp_path, may_block=True) as server:
        plant(root)
        for method, source, target, headers in forms():
            status, after = expected(
                method,
                *(source.rstrip("/"), target.rstrip("/")),
                overwrite=headers.get("overwrite") != "F",
                depth=headers.get("depth", "infinity"),
            )
            answer = await server.client.request(
                method, f"{MOUNT}/{source}", headers={"destination": f"{MOUNT}/{target}", **headers}
            )
            case = method, source, target, headers, answer.status_code
            assert answer.status_code == status or (status == 0 and 400 <= answer.status_code < 500), case
            assert snapshot(root) == dict(sorted(after.items())), case
            if answer.status_code < 300:
                plant(root)


@pytest.mark.parametrize("method", ["MOVE", "COPY"])
async def test_a_request_that_is_refused_changes_nothing(tmp_path: Path, method: str) -> None:
    """Whatever is odd in it. An odd form of a request that can be carried out is the whole of it."""
    root, new = tmp_path / "workspaces", f"{MOUNT}/w/new"
    refused: list[dict[str, str]] = [
        *({"destination": target} for target in ELSEWHERE),
        *({"destination": target} for target in ("", f"//{MOUNT[1:]}/w/new", f"{MOUNT}//w/new", f"{MOUNT}/w/new//")),
        *({"destination": target} for target in (f"{MOUNT}/w/../v/new", f"{MOUNT}/w%2Fnew", f"{new}?x", f"{new}#x")),
        *({"destination": new, "depth": depth} for depth in ("1", "", "0, infinity", "all")),
        *({"destination": f"{MOUNT}/w/b", "overwrite": value} for value in ("f", "no", "", "T, F")),
        *({"destination": f"{MOUNT}/w/b", "if-match": value} for value in ('"other"', "", "W/*")),
        {"destination": f"{MOUNT}/w/b", "if-none-match": "*"},
        {"destination": f"{MOUNT}/w/b", "if": '(["other"])'},
        {},
    ]
    carried_out = [
        {"destination": server_form.format(new)}
        for server_form in ("{}", "{}/", "{{url}}{}", "HTTPS://{{host}}{}", MOUNT + "/w/%6Eew")
    ]
    async with running_server(data_dir=tmp_path, may_block=True) as server:
        plant(root)
        for path in ("w/a", "w/a/", "w/a/f"):
            for headers in refused:
                if path == "w/a/f" and headers.get("depth") is not None:
                    continue
                answer = await server.client.request(method, f"{MOUNT}/{path}", headers=headers)
                assert answer.status_code >= 400, (path, headers)
                assert answer.headers["content-type"] == "application/problem+json", (path, headers)
                assert snapshot(root) == dict(sorted(FILES.items())), (path, headers, answer.text)
        twice = [("destination", new), ("destination", f"{MOUNT}/w/other")]
        assert (await server.client.request(method, f"{MOUNT}/w/a", headers=twice)).status_code == 400
        for headers in carried_out:
            host = server.url.partition("//")[2]
            headers["destination"] = headers["destination"].format(url=server.url, host=host)
            answer = await server.client.request(method, f"{MOUNT}/w/a", headers=headers)
            assert answer.status_code == 201, (headers, answer.text)
            assert snapshot(root / "w/new") == {"f": b"1", "g": None, "g/h": b"2"}, headers
            plant(root)


async def test_what_is_denied_in_the_middle_is_denied_before_the_beginning(tmp_path: Path) -> None:
    """Locks, quotas and what is not shown, deep in what would be replaced or deleted, or in what is moved."""
    root = tmp_path / "workspaces"
    async with running_server(data_dir=tmp_path, token_bytes=60, may_block=True) as server:
        plant(root)
        dav = Dav(server.client)

        async def refused(status: int, method: str, path: str, **headers: str) -> None:
            before = snapshot(root)
            answer = await dav(method, f"/workspaces/{path}", b"", **headers)
            assert (answer.status_code, snapshot(root)) == (status, before), (method, path, answer.text)

        lock = (await dav("LOCK", "/workspaces/w/b/f", LOCK, depth="0")).headers["lock-token"]
        for method in ("MOVE", "COPY"):
            for source in ("w/a", "w/x"):
                await refused(423, method, source, destination=f"{MOUNT}/w/b")
        await refused(423, "MOVE", "w/b", destination=f"{MOUNT}/w/new")
        for path in ("w/b/f", "w/b", "w/b/", "w"):
            await refused(423, "DELETE", path)
        await dav("UNLOCK", "/workspaces/w/b/f", lock_token=lock)
        (root / "w/a/large").write_bytes(b"x" * 40)
        for target in ("w/b", "w/y", "w/new"):
            await refused(507, "COPY", "w/a", destination=f"{MOUNT}/{target}")
        (root / "w/a/large").unlink()
        (root / "w/b/link").symlink_to(root / "w/x")
        for method in ("MOVE", "COPY"):
            await refused(409, method, "w/a", destination=f"{MOUNT}/w/b")
        for path in ("w/b", "w"):
            await refused(409, "DELETE", path)
        (root / "w/b/link").unlink()
        for path in ("w/b", "w/x"):
            await refused(412, "DELETE", path, if_match='"other"')
        await refused(400, "DELETE", "w/b", depth="0")
        locked = (await dav("LOCK", "/workspaces/w/b/f", LOCK, depth="0")).headers["lock-token"]
        tagged = f"<{server.url}{MOUNT}/w/b/f> ({locked})"
        assert (await dav("DELETE", "/workspaces/w/b", b"", **{"if": tagged})).status_code == 204
        assert "w/b" not in snapshot(root)


async def test_a_full_disk_in_the_middle_of_a_copy(mount: Mount, tmp_path: Path) -> None:  # noqa: F811 - the fixture
    disk = mount("small", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    async with running_server(workspaces=str(disk), may_block=True) as server:
        plant(disk)
        (disk / "w/a/large").write_bytes(b"x" * (600 << 10))
        before = snapshot(disk)
        for target in ("w/b", "w/x", "w/new"):
            answer = await server.client.request("COPY", f"{MOUNT}/w/a", headers={"destination": f"{MOUNT}/{target}"})
            assert (answer.status_code, snapshot(disk)) == (507, before), answer.text


async def test_properties_and_locks_go_with_what_they_belong_to(tmp_path: Path) -> None:
    """Of a folder that is replaced nothing is left, and a refused request leaves them, too."""
    async with running_server(data_dir=tmp_path, may_block=True) as server:
        plant(tmp_path / "workspaces")
        dav = Dav(server.client)
        for path in ("w/a/", "w/a/f", "w/a/g/h", "w/b/", "w/b/f"):
            await dav.set(f"/workspaces/{path}", "{urn:x}of", path)

        async def colours(*paths: str) -> list[str | None]:
            found = [(await dav.find(f"/workspaces/{path}", depth="0")) for path in paths]
            return [next(iter(each.values())).values.get("{urn:x}of") for each in found]

        refused = await dav("MOVE", "/workspaces/w/a", destination=f"{MOUNT}/w")
        assert refused.status_code == 403
        assert await colours("w/a/", "w/a/f", "w/b/") == ["w/a/", "w/a/f", "w/b/"]
        assert (await dav("COPY", "/workspaces/w/a", destination=f"{MOUNT}/w/b")).status_code == 204
        assert await colours("w/a/", "w/b/", "w/b/f", "w/b/g/h") == ["w/a/", "w/a/", "w/a/f", "w/a/g/h"]
        assert (await dav("MOVE", "/workspaces/w/x", destination=f"{MOUNT}/w/b")).status_code == 204
        assert (await dav("MKCOL", "/workspaces/w/new")).status_code == 201
        assert (await dav("MOVE", "/workspaces/w/a", destination=f"{MOUNT}/w/new")).status_code == 204
        assert (await dav("MKCOL", "/workspaces/w/a")).status_code == 201
        assert await colours("w/b", "w/new/", "w/new/f", "w/a/") == [None, "w/a/", "w/a/f", None]


async def test_a_lock_that_cannot_be_makes_no_file(tmp_path: Path) -> None:
    """Its owner is too long, or the folder is locked by somebody else."""
    async with running_server(data_dir=tmp_path, may_block=True) as server:
        plant(tmp_path / "workspaces")
        dav = Dav(server.client)
        before = snapshot(tmp_path / "workspaces")
        long = LOCK.replace(b"somebody", b"x" * 3000)
        assert (await dav("LOCK", "/workspaces/w/new", long, depth="0")).status_code == 413
        assert (await dav("LOCK", "/sessions/new", long, depth="0")).status_code == 413
        assert (await dav("LOCK", "/workspaces/w/b", LOCK, depth="infinity")).status_code == 200
        assert (await dav("LOCK", "/workspaces/w/b/new", LOCK, depth="0")).status_code == 423
        assert snapshot(tmp_path / "workspaces") == before
        assert len(server.store) == 0


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("PROPPATCH", ""),
        ("PROPPATCH", "<D:propertyupdate xmlns:D='DAV:'/>"),
        ("PROPPATCH", "<D:propertyupdate xmlns:D='DAV:'><D:set><D:prop/></D:set></D:propertyupdate>"),
        ("PROPFIND", "<D:propfind xmlns:D='DAV:'/>"),
        ("PROPFIND", "<D:propfind xmlns:D='DAV:'><x/></D:propfind>"),
    ],
)
async def test_a_request_that_names_no_property_is_no_success(method: str, body: str) -> None:
    async with running_server() as server:
        dav = Dav(server.client)
        await dav("MKCOL", "/workspaces/main")
        answer = await dav(method, "/workspaces/main", body.encode(), depth="0")
        assert answer.status_code == 400, answer.text


NAMES = ("/sessions/main", "/sessions/other", "/sessions/notes~", "/sub_sessions/main/coder", "/sub_sessions/main/x")
BESIDE = (
    *NAMES,
    *("/sessions/", "/sessions/new", "/sessions/main/coder", "/sessions/.new.swp", "/sessions/a/b/c"),
    *(
        "/sub_sessions/",
        "/sub_sessions/main",
        "/sub_sessions/main/new",
        "/sub_sessions/main/x.y",
        "/sub_sessions/none/new",
    ),
    *("/workspaces/main", "/workspaces/main/note"),
)


async def test_each_pair_of_session_paths() -> None:
    """A session, a sub-session, a scratch file, a collection: nothing has changed, or all is done and none is lost."""
    async with running_server() as server:
        dav = Dav(server.client)

        def state() -> dict[str, tuple[object, ...]]:
            return {each.id: (each.nonce, each.etag, each.history.text, each.settings) for each in server.store}

        async def plant_sessions() -> None:
            for each in [session.id for session in server.store if "/" not in session.id]:
                await server.client.delete(f"/v1/sessions/{each}")
            for name in ("main", "other", "main/coder", "main/x", "main/coder/tester"):
                await server.create(name)
            for name in ("main", "other", "main/coder"):
                await server.say(name, f"I am {name}")
                await server.text(name)
            await dav("PUT", "/sessions/notes~", b"scratch")
            await dav("DELETE", "/sessions/.new.swp")

        async def scratch() -> bytes:
            return (await dav("GET", "/sessions/notes~")).content

        await plant_sessions()
        turn = done = 0
        for method in ("MOVE", "COPY"):
            for source in (
                "/sessions/main",
                "/sessions/main/",
                "/sub_sessions/main/coder",
                *BESIDE[2:5],
                "/sub_sessions/main/",
            ):
                for target in BESIDE:
                    turn += 1
                    overwrite = "FT"[turn % 2]
                    before, kept = state(), await scratch()
                    answer = await dav(method, source, destination="/dav" + target, overwrite=overwrite)
                    case = method, source, target, overwrite, answer.status_code, answer.text
                    after = state()
                    if answer.status_code >= 300:
                        assert (after, await scratch()) == (before, kept), case
                        continue
                    done += 1
                    lost = {one for one, *_ in before.values()} - {one for one, *_ in after.values()}
                    assert not lost, case
                    for each in before.keys() & after.keys():
                        assert str(after[each][2]).startswith(str(before[each][2])), case
                    await plant_sessions()
        assert done > 10, "some are carried out"


async def test_moves_that_meet_leave_one_of_the_two_orders(tmp_path: Path) -> None:
    """Two folders that replace each other at the same moment: nothing is mixed, and nothing is left over."""
    root = tmp_path / "workspaces"
    async with running_server(data_dir=tmp_path, may_block=True) as server:
        plant(root)
        for _ in range(10):
            answers = await asyncio.gather(
                server.client.request("MOVE", f"{MOUNT}/w/a", headers={"destination": f"{MOUNT}/w/b"}),
                server.client.request("MOVE", f"{MOUNT}/w/b", headers={"destination": f"{MOUNT}/w/a"}),
                server.client.request("COPY", f"{MOUNT}/v", headers={"destination": f"{MOUNT}/w/b"}),
            )
            assert all(answer.status_code in (201, 204, 404, 409) for answer in answers), answers
            for name in ("a", "b"):
                folder = snapshot(root / "w" / name) if (root / "w" / name).exists() else None
                assert folder in (
                    None,
                    {"f": b"1", "g": None, "g/h": b"2"},
                    {"f": b"3"},
                    {"z": b"6"},
                ), folder
            assert not list(root.rglob(".cfs-*"))
            plant(root)
