"""`.versions` on the mount: the past as directories that can be read and not changed (F5)."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cfs_filesystem import Grant, Operation
from cfs_server.access.tokens import Token, digest
from tests.documentation import block
from tests.fuse.support import Mount, Stage, mounting, names, staging
from tests.server.support import ServerHarness

NAME = re.compile(r"@[0-9]{5}_[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}\.[0-9]{2}\.[0-9]{2}Z_local\.py")


def write(stage: Stage, path: str, data: bytes) -> int:
    """Write a file of a workspace; return the number of the change."""
    assert stage.client.put(f"/v1/files/workspaces/{path}", content=data).status_code in (200, 201)
    return newest(stage, path.partition("/")[0])["number"]


def newest(stage: Stage, workspace: str) -> dict[str, int]:
    """Return the newest change of a workspace."""
    page = stage.client.get(f"/v1/versions/workspaces/{workspace}", params={"limit": 1}).json()
    change: dict[str, int] = page["changes"][0]
    return change


def test_a_file_is_a_directory_of_its_versions(mount: Mount, stage: Stage, name: str) -> None:
    one, two = write(stage, f"{name}/src/a.py", b"one\n"), write(stage, f"{name}/src/a.py", b"one\ntwo\n")
    at = newest(stage, name)["at"]
    folder = mount / ".versions/workspaces" / name / "src/a.py"
    versions = names(folder)
    assert all(NAME.fullmatch(version) for version in versions), versions
    assert [int(version[1:6]) for version in versions] == [one, two]
    assert names(folder.parent) == ["a.py"], "the versions of a folder can be named: see below"
    done = mount.shell(
        f'cd "{folder}" && cat @{one} && diff @{one} {versions[1]}; cat ../@{one}/a.py ../../@{two}/src/a.py'
    )
    assert done.stdout == "one\n1a2\n> two\none\none\ntwo\n"
    assert done.stderr == ""
    status = (folder / versions[1]).stat()
    assert (status.st_size, status.st_mode & 0o777) == (8, 0o444)
    assert abs(status.st_mtime - at) < 0.001
    shown = mount.shell(f'TZ=UTC ls -l --time-style=+%s "{folder}"').stdout.splitlines()
    assert shown[-1].split()[5:] == [str(int(at)), versions[1]]


def test_the_whole_tree_as_it_was_can_be_copied(mount: Mount, stage: Stage, name: str, tmp_path: Path) -> None:
    """Contents and times are those of then; what was deleted is there, and can be named by a time as well."""
    first = write(stage, f"{name}/src/a.py", b"one")
    at = newest(stage, name)["at"]
    last = write(stage, f"{name}/gone.txt", b"gone")
    then = datetime.fromtimestamp(newest(stage, name)["at"] + 0.001, UTC)
    stage.client.delete(f"/v1/files/workspaces/{name}/gone.txt")
    write(stage, f"{name}/src/a.py", b"later")
    past = mount / ".versions/workspaces" / name
    assert {"src", "gone.txt"} < set(names(past)), "also what was deleted"
    assert names(past / f"@{last}") == ["gone.txt", "src"]
    assert names(past / f"@{first}") == ["src"]
    assert (
        mount.shell(
            f'cp -a "{past}/@{last}" "{tmp_path}/copy" && diff -r "{past}/@{last}" "{tmp_path}/copy"'
        ).returncode
        == 0
    )
    assert (tmp_path / "copy/src/a.py").read_bytes() == b"one"
    assert abs((tmp_path / "copy/src/a.py").stat().st_mtime - at) < 0.001
    listed = [version for version in names(past) if version.startswith("@")]
    assert [int(version[1:6]) for version in listed] == list(range(1, last + 3))
    assert (past / listed[last - 1] / "gone.txt").read_bytes() == b"gone"
    tomorrow = datetime.fromtimestamp(then.timestamp() + 86_400, UTC)
    assert (past / f"@{tomorrow:%Y-%m-%d}" / "src/a.py").read_bytes() == b"later"
    assert not (past / "@2001-01-01" / "src").exists()
    for wrong in (f"@{last + 99}", "@x", "@2026-99-01", "none", "src/none", "src/a.py/@99999"):
        with pytest.raises(FileNotFoundError):
            (past / wrong).stat()


def test_a_transcript_is_a_directory_of_its_versions(mount: Mount, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    stage.say(name, "two")
    stage.make(f"{name}/coder", "User: x\n")
    past = mount / ".versions/sessions" / name
    versions = names(past)
    assert [version.partition("Z_")[2] for version in versions] == ["local", "local", "model", "local", "model"]
    assert (past / "@2").read_text() == "User: one\nAssistant: one\n"
    assert (past / versions[-1]).read_text() == (mount / name).read_text()
    for version in versions:
        assert len((past / version).read_bytes()) == (past / version).stat().st_size
    times = [version["at"] for version in stage.client.get(f"/v1/sessions/{name}/versions").json()["versions"]]
    assert [(past / version).stat().st_mtime for version in versions] == pytest.approx(times, abs=0.001)
    assert f"{name}%2Fcoder" in names(past.parent)
    assert (past.parent / f"{name}%2Fcoder" / "@0").read_text() == "User: x\n"


def test_a_large_file_is_read_in_pieces(mount: Mount, stage: Stage, name: str) -> None:
    data = os.urandom(9 << 20)
    number = write(stage, f"{name}/large", data)
    write(stage, f"{name}/large", b"")
    path = mount / ".versions/workspaces" / name / f"large/@{number}"
    assert path.read_bytes() == data
    with path.open("rb") as file:
        file.seek((8 << 20) - 3)
        assert file.read(6) == data[(8 << 20) - 3 : (8 << 20) + 3]
    assert (path.parent / f"@{number + 1}").read_bytes() == b""


def test_the_past_is_not_listed_and_not_searched(mount: Mount, stage: Stage, name: str) -> None:
    """`du`, `find`, `grep -r` and `cp -r` of the mount leave it out, as `.zfs` and `.snapshot` are left out."""
    write(stage, f"{name}/a.txt", b"quite a rare word: zyzzyva")
    write(stage, f"{name}/a.txt", b"nothing")
    assert ".versions" not in names(mount.path)
    assert "zyzzyva" in mount.shell(f"cat $M/.versions/workspaces/{name}/a.txt/@1").stdout
    before = newest(stage, name)
    assert mount.shell("find $M -name .versions; du -a $M | grep -F .versions").stdout == ""
    assert newest(stage, name) == before, "reading the past is no change"
    assert names(mount / ".versions") == ["sessions", "workspaces"]
    assert name in names(mount / ".versions/workspaces")


def test_the_page_about_the_past_is_true(mount: Mount, stage: Stage, name: str, tmp_path: Path) -> None:
    stage.say(name, "one")
    for data in (b"one\n", b"two\n"):
        write(stage, f"{name}/notes.txt", data)
    commands = (
        block("docs/fuse.md", "past")
        .replace("~/cfs", '"$M"')
        .replace("/main", f"/{name}")
        .replace(" copy", f" {tmp_path}/copy")
    )
    done = mount.shell(commands)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nUser: one\n" in done.stdout
    assert done.stdout.endswith("1c1\n< one\n---\n> two\n")
    assert (tmp_path / "copy/notes.txt").read_text() == "one\n"


SEE: frozenset[Operation] = frozenset({"list", "file", "read_binary"})
WRITES = {
    "write": "echo x > {}/@1",
    "append": "echo x >> {}/@1",
    "create": "touch {}/new",
    "mkdir": "mkdir {}/new",
    "delete": "rm -f {}/@1",
    "delete all": "rm -rf {}",
    "rmdir": "rmdir {}",
    "rename": "mv {}/@1 {}/x",
    "move out": "mv {}/@1 $M/moved",
    "move in": "echo hi > $M/moved; mv -f $M/moved {}/x",
    "link": "ln -s x {}/x",
    "mode": "chmod 600 {}/@1",
    "time": "touch -d 2001-01-01 {}/@1",
    "truncate": "truncate -s 0 {}/@1",
    "attribute": "setfattr -n user.cfs.seed -v 1 {}/@1",
    "top": "mkdir $M/.versions/x; touch $M/.versions/y",
}


@pytest.mark.parametrize("how", WRITES)
def test_nothing_can_be_changed(mount: Mount, stage: Stage, name: str, how: str) -> None:
    write(stage, f"{name}/a", b"one")
    folder = f"'{mount.path}/.versions/workspaces/{name}/a'"
    done = mount.shell(WRITES[how].replace("{}", folder))
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr, done.stderr
    assert (mount / ".versions/workspaces" / name / "a/@1").read_bytes() == b"one"
    mount.shell("rm -f $M/moved")


def test_the_rights_of_the_present_hold(tmp_path: Path) -> None:
    """A token sees the versions of what it may read now, and no others."""
    with staging() as stage:
        for path in ("mine/a.txt", "other/b.txt"):
            write(stage, path, b"x")
        for session in ("mine", "other"):
            stage.make(session)
        stage.do(lambda: let_in(stage.server))
        with mounting(stage.url, tmp_path / "mount", CFS_TOKEN="cfs_guest") as mount:  # noqa: S106
            past = mount / ".versions"
            assert names(past / "workspaces") == ["mine"]
            assert names(past / "sessions") == ["mine"]
            assert (past / "workspaces/mine/a.txt/@1").read_bytes() == b"x"
            assert (past / "sessions/mine/@0").read_bytes() == b""
            for hidden in ("workspaces/other", "workspaces/other/@1", "workspaces/other/b.txt/@1", "sessions/other/@0"):
                with pytest.raises((FileNotFoundError, PermissionError)):
                    (past / hidden).stat()


def let_in(server: ServerHarness) -> None:
    """Let a guest in who may read one session and its workspace."""
    server.parts.principals.use({"guest": Token(hash=digest("cfs_guest"))})
    guest = server.parts.principals.authenticate("Bearer cfs_guest")
    assert guest is not None
    guest.handle.grants = [
        Grant(prefix="/workspaces/mine/", ops=SEE),
        Grant(prefix="/sessions/mine", ops=SEE),
    ]
