"""Disks that tests make, fill and break: tmpfs, and ext4 on a loop device. They need root."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts file systems for the test."""
    if os.geteuid() != 0 or shutil.which("mount") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("making a disk needs root, mount and mkfs.ext4")
    places: list[Path] = []

    def make(name: str, *arguments: str | Path) -> Path:
        place = tmp_path / name
        place.mkdir()
        made = subprocess.run(["mount", *arguments, place], capture_output=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"no disk can be mounted here: {made.stderr.decode().strip()}")
        places.append(place)
        return place

    yield make
    for place in reversed(places):
        subprocess.run(["umount", "--lazy", place], check=True)


def ext4(mount: Mount, image: Path, megabytes: int) -> Path:
    """Mount a new ext4 file system in a sparse file."""
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-E", "nodiscard", image], check=True)
    return mount("ext4", "-o", "loop,errors=remount-ro", image)


def break_disk(disk: Path) -> None:
    """Let ext4 find an error: it becomes read-only."""
    device = subprocess.run(["findmnt", "-n", "-o", "SOURCE", disk], capture_output=True, text=True, check=True)
    trigger = Path("/sys/fs/ext4") / Path(device.stdout.strip()).name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("the kernel cannot simulate an error of ext4")
    trigger.write_text("1")


def fill(folder: Path, name: str = "filler") -> Path:
    """Use all space of a disk."""
    filler = folder / name
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return filler
