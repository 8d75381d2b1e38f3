"""Search in the text files of workspaces: each change by the server is seen at once, and rights are respected (G9)."""

from pathlib import Path

import httpx

from cfs.wire import SearchResults
from tests.filesystem.support import grant
from tests.fuse.support import until
from tests.server.guests import guests
from tests.server.support import ServerHarness, serving
from tests.server.test_search import find


async def places(client: httpx.AsyncClient, words: str, **params: str) -> list[tuple[str, str | None, int]]:
    """Return workspace, path and line of the files with some words."""
    found = await find(client, words, **params)
    return sorted((match.session, match.path, match.index) for match in found.results if match.kind == "file")


async def put(client: httpx.AsyncClient, path: str, content: bytes) -> None:
    assert (await client.put(f"/v1/files/workspaces/{path}", content=content)).status_code in (200, 201)


async def test_files_are_found_as_they_are_now(server: ServerHarness) -> None:
    client = server.client
    await put(client, "main/notes.txt", b"first line\nthe quick brown fox\n")
    await put(client, "other/src/四.py", "# 四川盆地 fox\n".encode())
    await put(client, "main/binary", b"fox \0 fox")
    await put(client, "main/latin", b"fox \xff")
    await put(client, "main/large", b"fox " * 300_000)
    assert await places(client, '"brown fox"') == [("main", "notes.txt", 2)]
    assert await places(client, "fox") == [("main", "notes.txt", 2), ("other", "src/四.py", 1)]
    assert await places(client, "四川") == [("other", "src/四.py", 1)]
    assert await places(client, "fox", **{"in": "main"}) == [("main", "notes.txt", 2)]
    assert await places(client, "fox", role="user") == []
    await put(client, "main/notes.txt", b"a badger")
    assert await places(client, "fox") == [("other", "src/四.py", 1)]
    moved = await client.request(
        "MOVE", "/dav/workspaces/main/notes.txt", headers={"Destination": "/dav/workspaces/main/moved.txt"}
    )
    assert moved.status_code in (201, 204), moved.text
    assert await places(client, "badger") == [("main", "moved.txt", 1)]
    assert (await client.delete("/dav/workspaces/other")).status_code == 204
    assert await places(client, "fox") == []


async def test_a_tenant_finds_its_own_files_only(server: ServerHarness) -> None:
    mine = {
        "alice": [grant("/sessions/alice"), grant("/workspaces/alice")],
        "bob": [grant("/workspaces/bob/open")],
        "admin": [grant("/workspaces")],
    }
    async with guests(server, **mine) as who:
        await put(who["alice"].client, "alice/secret", b"a secret plan")
        await put(who["admin"].client, "bob/open/a", b"a secret of bob")
        await put(who["admin"].client, "bob/closed/a", b"a secret not for bob")
        assert await places(who["alice"].client, "secret") == [("alice", "secret", 1)]
        assert await places(who["bob"].client, "secret") == [("bob", "open/a", 1)]
        assert len(await places(who["admin"].client, "secret")) == 3


def search(url: str, words: str) -> list[str]:
    answer = httpx.get(f"{url}/v1/search", params={"q": words}, timeout=30)
    return sorted(match.path or "" for match in SearchResults.model_validate_json(answer.content).results)


def test_a_start_finds_what_has_changed_meanwhile(tmp_path: Path) -> None:
    """After a kill too; and no word of a deleted file stays on the disk."""
    flags = ("--engine", "scripted", "--data-dir", str(tmp_path))
    with serving(*flags) as server:
        for name in ("kept", "edited", "removed"):
            body = f"apple {name}secret"
            assert httpx.put(f"{server.url}/v1/files/workspaces/main/{name}", content=body, timeout=30).is_success
        assert search(server.url, "apple") == ["edited", "kept", "removed"]
        server.process.kill()
        server.process.wait()
    folder = tmp_path / "workspaces" / "main"
    (folder / "edited").write_text("a pear, longer than before", encoding="utf-8")
    (folder / "removed").unlink()
    (folder / "added").write_text("apple pie", encoding="utf-8")
    with serving(*flags) as server:
        until(lambda: search(server.url, "apple") == ["added", "kept"])
        assert search(server.url, "pear") == ["edited"]
    assert (tmp_path / "files.db").stat().st_mode & 0o777 == 0o600
    stored = (tmp_path / "files.db").read_bytes()
    assert b"keptsecret" in stored
    assert b"removedsecret" not in stored
    assert b"editedsecret" not in stored
