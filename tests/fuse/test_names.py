"""A name has one state on all interfaces, and no two sessions have names that look alike (S1, F1)."""

import errno
import unicodedata
from urllib.parse import quote

import pytest

from cfs import LooksAlike, Session
from tests.fuse.support import Mount, Stage, names, until

OLD = "User: old\nAssistant: old\n"
SCRATCH = ["4913", "note~", "a.swp", "a.swx", "#a#", "sedAb12Cd", "a.partial", "Thumbs.db", "desktop.ini"]


def over_dav(stage: Stage, name: str) -> str | None:
    """Read what WebDAV has under a name."""
    answer = stage.client.get(f"/dav/sessions/{quote(name)}")
    return answer.text if answer.status_code == 200 else None


def over_http(stage: Stage, name: str) -> str | None:
    """Read what HTTP has under a name."""
    answer = stage.client.get(f"/v1/sessions/{quote(name)}", headers={"Accept": "text/plain"}, params={"wait": 20})
    return answer.text if answer.status_code == 200 else None


def states(mount: Mount, stage: Stage, name: str) -> set[str | None]:
    """Read what each interface has under a name."""
    listed = {name in names(mount.path), name in stage.client.get("/dav/sessions/").text.splitlines()}
    assert len(listed) == 1, "one interface lists the name and another one does not"
    here = (mount / name).read_text() if (mount / name).exists() else None
    sdk = Session(name, mount=mount.path).read() if (mount / name).exists() else None
    return {here, sdk, over_dav(stage, name), over_http(stage, name)}


@pytest.fixture
def odd(request: pytest.FixtureRequest, stage: Stage, mount: Mount) -> str:
    """A name that programs use for files of their own; nothing has it."""
    name: str = request.param
    if name in stage.sessions():
        stage.client.delete(f"/v1/sessions/{quote(name)}")
    until(lambda: not (mount / name).exists())
    return name


@pytest.mark.parametrize("odd", SCRATCH, indirect=True)
def test_a_session_first(mount: Mount, stage: Stage, odd: str) -> None:
    """A session of this name is the same file everywhere: read, written, renamed and deleted."""
    stage.make(odd, OLD)
    assert states(mount, stage, odd) == {OLD}
    with (mount / odd).open("a") as file:
        file.write("new\n")
    assert stage.asked(odd) == ["old", "new"]
    assert states(mount, stage, odd) == {f"{OLD}User: new\nAssistant: new\n"}
    (mount / odd).rename(mount / "renamed")
    assert states(mount, stage, odd) == {None}
    (mount / "renamed").unlink()


@pytest.mark.parametrize("odd", SCRATCH, indirect=True)
def test_a_scratch_file_first(mount: Mount, stage: Stage, odd: str) -> None:
    """A program's file belongs to its mount, until a session gets the name: then it is gone, also afterwards."""
    (mount / odd).write_bytes(b"\0binary")
    assert stage.client.put(f"/dav/sessions/{quote(odd)}", content=b"\0other").status_code == 201
    assert (mount / odd).read_bytes() == b"\0binary"
    assert odd not in stage.sessions()
    stage.client.post("/v1/sessions", json={"id": odd, "transcript": OLD})
    until(lambda: (mount / odd).stat().st_size == len(OLD))
    assert states(mount, stage, odd) == {OLD}
    stage.client.delete(f"/v1/sessions/{quote(odd)}")
    until(lambda: not (mount / odd).exists())
    assert states(mount, stage, odd) == {None}


@pytest.mark.parametrize("odd", SCRATCH, indirect=True)
def test_a_scratch_file_then_a_rename(mount: Mount, stage: Stage, odd: str) -> None:
    """Renamed to another name it is a session; renamed to the name of a session it is a save."""
    (mount / odd).write_text(f"{OLD}User: new\n")
    (mount / odd).rename(mount / "published")
    assert states(mount, stage, odd) == {None}
    assert states(mount, stage, "published") == {f"{OLD}User: new\nAssistant: new\n"}
    with pytest.raises(PermissionError):
        (mount / "published").rename(mount / odd)
    stage.client.post("/v1/sessions/published/rename", json={"id": odd})
    until((mount / odd).exists)
    assert states(mount, stage, odd) == {f"{OLD}User: new\nAssistant: new\n"}
    stage.client.delete(f"/v1/sessions/{quote(odd)}")


def test_an_open_scratch_file_survives_the_session(mount: Mount, stage: Stage, name: str) -> None:
    """A program that has the file open keeps its bytes, as after an unlink."""
    with (mount / f"{name}~").open("w+") as file:
        file.write("mine")
        file.flush()
        stage.make(f"{name}~", OLD)
        until(lambda: (mount / f"{name}~").stat().st_size == len(OLD))
        file.seek(0)
        assert file.read() == "mine"
    assert stage.text(f"{name}~") == OLD


@pytest.mark.parametrize(
    "change",
    [
        lambda name: unicodedata.normalize("NFD", name),
        lambda name: name.replace(" ", "\N{NO-BREAK SPACE}"),
        lambda name: name.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}"),
        lambda name: f"{name}\N{ZERO WIDTH SPACE}",
    ],
)
def test_a_name_that_looks_like_another_one_is_refused(mount: Mount, stage: Stage, change: object) -> None:
    """ENOTUNIQ, and the log names the session that is there; what exists opens under its exact name."""
    name = "été d'Ann"
    other = change(name)  # type: ignore[operator]
    (mount / name).write_text("hi\n")
    with pytest.raises(OSError, match="not unique") as caught:
        (mount / other).write_text("ho\n")
    assert caught.value.errno == errno.ENOTUNIQ
    until(lambda: any(name in line and "looks like" in line for line in mount.log))
    with pytest.raises(LooksAlike):
        Session(other, mount=mount.path).send("ho")
    with pytest.raises(FileNotFoundError):
        (mount / other).read_text()
    (mount / "plain").write_text("x\n")
    with pytest.raises(OSError, match="not unique"):
        (mount / "plain").rename(mount / other)
    assert (mount / name).read_text() == "User: hi\nAssistant: hi\n"
    stage.client.post("/v1/sessions", json={"id": other}, params={"look_alike": "allow"})
    until((mount / other).exists)
    (mount / other).write_text("ho\n")
    assert (mount / other).read_text() == "User: ho\nAssistant: ho\n"
    for made in (name, other, "plain"):
        (mount / made).unlink()
