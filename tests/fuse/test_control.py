"""Control files and settings: hidden, and there (F5, F6)."""

import contextlib
import errno
import json
import os
from itertools import islice
from pathlib import Path

import pytest

from tests.fuse.support import GUARD_SECONDS, Mount, Stage, append, names, until


def test_control_directories_are_hidden(mount: Mount, stage: Stage, name: str) -> None:
    """`ls -a` does not show them, so `grep -r` and `find` do not go there; who knows them can look into them."""
    stage.make(name)
    until((mount / name).exists)
    assert not {entry for entry in names(mount.path) if entry.startswith(".")} & {".live", ".status", ".events"}
    assert name in names(mount / ".live")
    assert (mount / ".live").is_dir()


def test_live_shows_the_tokens_of_the_next_turn(mount: Mount, stage: Stage, name: str) -> None:
    """Opened before a turn begins it waits; then each token comes as it is made, and the end of the turn ends it."""
    stage.make(name)
    until((mount / name).exists)
    with stage.held(), (mount / ".live" / name).open("rb", buffering=0) as live:
        append(mount / name, "a b c")
        stage.step()
        assert live.read(100) == b"a"
        stage.step()
        assert live.read(100) == b" b"
        stage.release()
        assert live.read(100) == b" c"
        assert live.read(100) == b""
        assert live.read(100) == b""
    stage.text(name)


def test_live_of_a_running_turn_begins_with_the_turn(mount: Mount, stage: Stage, name: str) -> None:
    """Who comes late has missed nothing."""
    with stage.held():
        stage.say(name, "a b c", wait=False)
        stage.step(2)
        until(lambda: stage.client.get(f"/v1/sessions/{name}").json()["partial"] == "a b")
        until((mount / name).exists)
        late = (mount / ".live" / name).open()
    with late:
        assert late.read() == "a b c"


def test_live_without_patience(mount: Mount, stage: Stage, name: str) -> None:
    """O_NONBLOCK: EAGAIN while there is nothing new."""
    stage.make(name)
    until((mount / name).exists)
    descriptor = os.open(mount / ".live" / name, os.O_RDONLY | os.O_NONBLOCK)
    with stage.held():
        with pytest.raises(BlockingIOError):
            os.read(descriptor, 10)
        stage.say(name, "a b", wait=False)
        stage.step()
        got = b""

        def look() -> bytes:
            nonlocal got
            with contextlib.suppress(BlockingIOError):
                got += os.read(descriptor, 10)
            return got

        until(look)
        assert got == b"a"
        with pytest.raises(BlockingIOError):
            os.read(descriptor, 10)
    os.close(descriptor)
    stage.text(name)


def test_live_tells_of_a_cancel(mount: Mount, stage: Stage, name: str) -> None:
    """The mark of the transcript comes at the end, too."""
    stage.make(name)
    until((mount / name).exists)
    with stage.held():
        process = mount.start("cat", str(mount / ".live" / name))
        until(lambda: "3" in names(Path(f"/proc/{process.pid}/fd")))
        append(mount / name, "a b c")
        stage.step()
        until(lambda: stage.client.get(f"/v1/sessions/{name}").json()["partial"] == "a")
        os.setxattr(mount / name, "user.cfs.cancel", b"1")
        assert process.communicate(timeout=GUARD_SECONDS)[0] == "a [Cancelled]"


def test_status(mount: Mount, stage: Stage, name: str) -> None:
    """What a session does, as JSON."""
    with stage.held():
        stage.say(name, "a", wait=False)
        stage.say(name, "b", wait=False)
        until(lambda: json.loads((mount / ".status" / name).read_text())["queued"] == 1)
        found = json.loads((mount / ".status" / name).read_text())
        assert (found["id"], found["state"], found["settled"], found["messages"]) == (name, "generating", False, 1)
    stage.text(name)
    until(lambda: json.loads((mount / ".status" / name).read_text())["settled"])
    size = (mount / ".status" / name).stat().st_size
    assert size == len((mount / ".status" / name).read_bytes())


def test_events(mount: Mount, stage: Stage, name: str) -> None:
    """Everything that happened, then what happens, each a line of JSON, without a hole; the deletion is the end."""
    stage.say(name, "a b")
    until((mount / name).exists)
    process = mount.start("cat", str(mount / ".events" / name))
    assert process.stdout is not None
    past = [json.loads(line) for line in islice(process.stdout, 9)]
    assert past[0]["type"] == "session.created"
    assert past[-1]["type"] == "state.changed"
    stage.say(name, "c")
    stage.client.delete(f"/v1/sessions/{name}").raise_for_status()
    rest = [json.loads(line) for line in process.communicate(timeout=GUARD_SECONDS)[0].splitlines()]
    assert [event["number"] for event in past + rest] == list(range(1, 10 + len(rest)))
    assert rest[-1]["type"] == "session.deleted"
    assert [event["data"]["text"] for event in past + rest if event["type"] == "token"] == ["a", " b", "c"]


def test_sub_sessions(mount: Mount, stage: Stage, name: str) -> None:
    """Each root has a directory of what is below it, any depth; reading is reading, writing steers."""
    stage.say("root/coder/tester", "x")
    stage.say("root/coder", "y")
    below = mount / ".sub_sessions" / "root"
    until(lambda: below.exists() and sorted(names(below)) == ["coder", "coder.tester"])
    assert "root" in names(mount / ".sub_sessions")
    assert "coder" not in names(mount.path)
    assert (below / "coder.tester").read_text() == "User: x\nAssistant: x\n"
    append(below / "coder", "steer\n")
    assert stage.asked("root/coder") == ["y", "steer"]
    (below / "helper").write_text("hi\n")
    assert stage.asked("root/helper") == ["hi"]
    (below / "coder").unlink()
    assert names(below) == ["helper"]
    with pytest.raises(OSError, match=r".*"):
        (below / "not allowed").write_text("x")


def test_control_files_cannot_be_written(mount: Mount, stage: Stage, name: str) -> None:
    """They show, and that is all."""
    stage.make(name)
    until((mount / name).exists)
    for kind in (".live", ".status", ".events"):
        with pytest.raises(PermissionError):
            (mount / kind / name).write_text("x")
        with pytest.raises(PermissionError):
            (mount / kind / name).unlink()
        with pytest.raises(PermissionError):
            (mount / name).rename(mount / kind / "x")
    with pytest.raises(PermissionError):
        (mount / name).rename(mount / ".hidden")


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("temperature", "0.2", 0.2),
        ("temperature", "0", 0.0),
        ("max_tokens", "7", 7),
        ("stop", '["END", "你"]', ["END", "你"]),
        ("system", "be kind", "be kind"),
        ("prompt_style", "chat", "chat"),
        ("overflow", "summarize", "summarize"),
        ("seed", "3", 3),
        ("reproducible", "true", True),
        ("paused", "true", True),
    ],
)
def test_settings_are_attributes(mount: Mount, stage: Stage, name: str, key: str, value: str, stored: object) -> None:
    """What is set here is set everywhere, and reads back as it was written; text is plain, the rest is JSON."""
    name = f"settings-{key}-{len(value)}"
    stage.make(name)
    until((mount / name).exists)
    os.setxattr(mount / name, f"user.cfs.{key}", value.encode())
    assert stage.client.get(f"/v1/sessions/{name}/settings").json()[key] == stored
    seen = os.getxattr(mount / name, f"user.cfs.{key}").decode()
    assert (seen if isinstance(stored, str) else json.loads(seen)) == stored
    os.removexattr(mount / name, f"user.cfs.{key}")
    default = stage.client.get("/v1/sessions/" + name + "/settings").json()[key]
    assert default != stored


def test_settings_are_listed(mount: Mount, stage: Stage, name: str) -> None:
    """`getfattr -d` shows all that have a value; a change on another face is seen."""
    stage.make(name, seed=5)
    until((mount / name).exists)
    names = set(os.listxattr(mount / name))
    assert {"user.cfs.temperature", "user.cfs.seed", "user.cfs.driver"} <= names
    assert "user.cfs.system" not in names
    stage.client.patch(f"/v1/sessions/{name}/settings", json={"system": "x"}).raise_for_status()
    until(lambda: "user.cfs.system" in os.listxattr(mount / name))
    assert os.listxattr(mount.path) == []


@pytest.mark.parametrize(
    ("key", "value", "number"),
    [
        ("user.cfs.temperature", b"hot", errno.EINVAL),
        ("user.cfs.temperature", b"99", errno.EINVAL),
        ("user.cfs.prompt_style", b"odd", errno.EINVAL),
        ("user.cfs.overflow", b"explode", errno.EINVAL),
        ("user.cfs.nonsense", b"1", errno.EINVAL),
        ("user.cfs.system", b"\xff", errno.EINVAL),
        ("user.cfs.cancel", b"maybe", errno.EINVAL),
        ("user.other", b"1", errno.EOPNOTSUPP),
        ("system.posix_acl_access", b"\2\0\0\0", errno.EOPNOTSUPP),
    ],
)
def test_wrong_values_are_refused(mount: Mount, stage: Stage, name: str, key: str, value: bytes, number: int) -> None:
    """EINVAL, with the reason in the bridge's log."""
    name = "wrong-values"
    (mount / name).touch()
    with pytest.raises(OSError, match=r".*") as failure:
        os.setxattr(mount / name, key, value)
    assert failure.value.errno == number
    if number == errno.EINVAL:
        until(lambda: any(key in line and name in line for line in mount.log))


@pytest.mark.parametrize("key", ["user.cfs.nonsense", "user.other", "security.selinux", "user.cfs.system"])
def test_unknown_attributes_are_no_data(mount: Mount, stage: Stage, key: str) -> None:
    """ENODATA, which every tool understands."""
    (mount / "no-data").touch()
    for call in (os.getxattr, os.removexattr):
        if key.startswith("security") and call is os.removexattr:
            continue
        with pytest.raises(OSError, match=r".*") as failure:
            call(mount / "no-data", key)
        assert failure.value.errno == errno.ENODATA


def test_searches_are_files(mount: Mount, stage: Stage, name: str) -> None:
    """`cat .search/WORDS` prints where they occur; the directory is hidden, and other dot names are temporary files."""
    stage.make(name)
    until((mount / name).exists)
    append(mount / name, f"the quick brown fox of {name}")
    stage.text(name)
    found = (mount / ".search" / f'"quick brown" {name}').read_text(encoding="utf-8")
    assert f"{name} #0 user: the quick brown fox of {name}\n" in found
    assert all(line.startswith(f"{name} ") for line in found.splitlines())
    assert (mount / ".search" / f"nothing{name}").read_bytes() == b""
    assert names(mount / ".search") == []
    assert ".search" not in names(mount.path)
    assert (mount / ".search").is_dir()
    for act in (
        lambda: (mount / ".search" / "fox").write_text("x"),
        lambda: (mount / ".search" / "fox").unlink(),
        lambda: (mount / ".search").rename(mount / ".other"),
    ):
        with pytest.raises(PermissionError):
            act()
    with pytest.raises(OSError, match="Invalid argument"):
        (mount / ".search" / "***").read_bytes()
    (mount / ".searches").write_text("scratch", encoding="utf-8")
    assert (mount / ".searches").read_text(encoding="utf-8") == "scratch"
    (mount / ".searches").unlink()
