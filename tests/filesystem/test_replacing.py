"""Directories that are replaced, copied or removed on a disk: all of it has happened, or nothing (G6, S14)."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cfs_filesystem import ConflictError, DiskFileSystem, FsHandle, NotFoundError
from tests.disks import Mount, mount  # noqa: F401 - a fixture
from tests.filesystem.place import Place
from tests.filesystem.support import everything

HERE = Path(__file__).parent
CALLS: dict[str, Callable[[FsHandle], object]] = {
    "move a directory over it": lambda handle: handle.move("/a", "/d", overwrite=True, replace_directories=True),
    "move a file over it": lambda handle: handle.move("/x", "/d", overwrite=True, replace_directories=True),
    "copy a directory over it": lambda handle: handle.copy("/a", "/d", overwrite=True),
    "copy a file over it": lambda handle: handle.copy("/x", "/d", overwrite=True),
    "remove it": lambda handle: handle.remove_tree("/d"),
}


def plant(handle: FsHandle) -> None:
    """Let there be a directory that is to be replaced, and what replaces it."""
    for path in ("/a/f", "/a/g/h", "/d/f", "/d/e/deep", "/x"):
        handle.write(path, f"this is {path}")


def snapshot(root: Path) -> dict[str, object]:
    """Everything below a root, shown or not: contents, and where links lead."""
    return {
        str(path.relative_to(root)): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("kind", ["link", "pipe", "second name", "name"])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_shown_is_not_removed(place: Place, call: str, kind: str) -> None:
    """A directory with it deep inside stays, and so does everything that is shown in it."""
    plant(place.handle)
    hidden = place.root / "d/e" / ("a*b" if kind == "name" else "hidden")
    match kind:
        case "link":
            hidden.symlink_to(place.outside)
        case "pipe":
            os.mkfifo(hidden)
        case "second name":
            hidden.hardlink_to(place.outside / "secret")
        case "name":
            hidden.write_text("not shown")
    before = snapshot(place.root)
    with pytest.raises(ConflictError, match="not shown"):
        CALLS[call](place.handle)
    assert snapshot(place.root) == before


def test_a_copy_has_what_is_shown(place: Place) -> None:
    """Links and the like are left out, as they cannot be read."""
    plant(place.handle)
    (place.root / "d/e/link").symlink_to(place.outside)
    place.handle.make_directory("/d/empty")
    place.handle.copy("/d", "/copy")
    assert snapshot(place.root / "copy") == {
        "e": False,
        "e/deep": b"this is /d/e/deep",
        "empty": False,
        "f": b"this is /d/f",
    }


def test_a_process_that_is_killed_at_any_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    """After the next start, of each operation: exactly the state before or the state after it, and no leftover."""
    program = [sys.executable, str(HERE / "killed_movers.py"), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["wrong"] == []
    assert sum(seen["steps"].values()) > 100, "each step was tried"


def test_a_full_disk_leaves_what_was_to_be_replaced(mount: Mount) -> None:  # noqa: F811 - the fixture
    root = mount("small", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    handle = everything(DiskFileSystem(root, durable=True))
    plant(handle)
    handle.write("/a/large", b"x" * (600 << 10))
    before = snapshot(root)
    for target in ("/d", "/x", "/new"):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is what counts
            handle.copy("/a", target, overwrite=True)
        assert caught.value.errno == errno.ENOSPC
        assert snapshot(root) == before


@pytest.mark.parametrize("call", CALLS)
def test_what_the_system_does_not_let_us_remove_stays_whole(tmp_path: Path, call: str) -> None:
    """A directory that this process cannot empty is found before anything is removed. Root may empty all of them."""
    root = tmp_path / "root"
    plant(everything(DiskFileSystem(root)))
    (root / "d/e").chmod(0o555)
    user = 65_534 if os.geteuid() == 0 else os.geteuid()
    for path in (root, *root.rglob("*")):
        os.chown(path, user, -1)
    program = (
        "import os, sys; from cfs_filesystem import *; from tests.filesystem.test_replacing import CALLS;"
        "root = os.open(sys.argv[1], os.O_RDONLY); os.setuid(int(sys.argv[2]));"
        "handle = DiskFileSystem(root).create_handle([Grant(prefix='/', ops=OPERATIONS)])\n"
        "try: CALLS[sys.argv[3]](handle)\n"
        "except AccessDeniedError as error: print(error.detail)"
    )
    before = snapshot(root)
    done = subprocess.run(
        [sys.executable, "-c", program, str(root), str(user), call], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the operating system denies access to '/d/e'\n"), done.stderr
    assert snapshot(root) == before


def test_a_directory_as_deep_as_a_path_is_removed_and_replaced(place: Place) -> None:
    """What commands have nested deeper has no path, so it is not shown, and stays."""
    path = "/d" + "/e" * 125
    for _ in range(2):
        place.handle.write(path + "/x", "deep")
        place.handle.remove_tree("/d")
        assert list(place.root.iterdir()) == []
    place.handle.write(path + "/x", "deep")
    place.handle.write("/a", "x")
    place.handle.move("/a", "/d", overwrite=True, replace_directories=True)
    assert snapshot(place.root) == {"d": b"x"}
    place.handle.write("/f" + "/e" * 126, "x")
    (place.root / ("f" + "/e" * 125) / "e").unlink()
    (place.root / ("f" + "/e" * 140)).mkdir(parents=True)
    before = snapshot(place.root)
    with pytest.raises(ConflictError, match="not shown"):
        place.handle.remove_tree("/f")
    assert snapshot(place.root) == before


def test_a_directory_knows_what_it_contains_by_any_name(place: Place) -> None:
    """On a disk that folds case, two paths can be one directory: names do not tell."""
    plant(place.handle)
    place.handle.make_directory("/other")
    tree = place.disk._tree
    with tree.directory([]) as root, tree.directory(["d", "e"]) as inner, tree.directory(["d"]) as here:
        assert tree.contains(root, "d", inner)
        assert tree.contains(root, "d", here)
        assert not tree.contains(root, "d", root)
        assert not tree.contains(root, "other", inner)


def test_the_hooks_check_what_has_changed_since_the_handle_looked(place: Place) -> None:
    """What another program has removed is a conflict, and nothing else changes."""
    plant(place.handle)
    before = snapshot(place.root)
    acts: list[Callable[[], object]] = [
        lambda: place.disk._move_over_impl("/none", "/d"),
        lambda: place.disk._copy_impl("/none", "/d", members=True, overwrite=True),
        lambda: place.disk._copy_impl("/a", "/d", members=True, overwrite=False),
        lambda: place.disk._remove_tree_impl("/none"),
        lambda: place.disk._move_over_impl("/a", "/none/d"),
    ]
    for act in acts:
        with pytest.raises((ConflictError, NotFoundError)):
            act()
        assert snapshot(place.root) == before
