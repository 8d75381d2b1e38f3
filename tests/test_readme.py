"""The README is one script: a newcomer types every block of it into one shell, from the first to the last (P1)."""

import os
import subprocess
from pathlib import Path

import pytest

from ports import free_port
from tests.documentation import BLOCKS, ROOT, Reader
from tests.fuse import support as fuse
from tests.webdav import davmount

PAGE = "README.md"


def newcomer(home: Path, port: int) -> dict[str, str]:
    """What the shell of a newcomer knows: nothing of CFS, but a port that is free."""
    path = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if ".venv" not in folder)
    return {"PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8", "TERM": "dumb", "PORT": str(port)}


@pytest.mark.external
@pytest.mark.timeout(600)
def test_the_readme_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """With a real server, a real mount and davfs2, where the machine has them; the shell's port is the only change."""
    port, seen = free_port(), []
    skipped = {"mount": fuse.reason_to_skip(), "davfs2": davmount.reason_to_skip()}
    reader = Reader(tmp_path, port, env=newcomer(tmp_path, port))
    try:
        reader.type(f"cd {ROOT}")
        for block in (block for block in BLOCKS if block.page == PAGE and block.mark):
            name = block.mark.removeprefix("tested").removeprefix(": ") if block.mark else ""
            if skipped.get(name):
                continue
            text = block.text.partition("\n")[2] if name == "end" and skipped["mount"] else block.text
            reader.follow(block._replace(text=text, mark="tested"))
            seen.append(reader.shown)
    finally:
        davmount.unmount(tmp_path / "dav")
        fuse.unmount(tmp_path / "cfs")
        subprocess.run(
            [ROOT / ".venv/bin/cfs", "down"],
            env=newcomer(tmp_path, port) | {"CFS_URL": f"http://localhost:{port}"},
            check=False,
        )
        reader.leave()
    shown = "".join(seen)
    assert f"CFS is ready on http://localhost:{port} " in shown
    assert "event: turn.finished\n" in shown
    assert skipped["mount"] or f"{tmp_path}/cfs/chat1\n" in shown
    assert f"http://localhost:{port}/#conversation/chat1\n" in shown
    assert "  writer_2 " in shown
    assert "a.txt <==\nhello" in shown
    assert list((tmp_path / ".local/share/cfs").rglob("sessions.db")), "the sessions stay"


def test_the_readme_is_short_and_in_one_shell() -> None:
    """It shows each face once, and the rest of the documentation is behind links."""
    assert len((ROOT / PAGE).read_text(encoding="utf-8").splitlines()) <= 150
    assert all(block.language in ("sh", "text", "python") for block in BLOCKS if block.page == PAGE)
    assert all((block.mark or "").startswith("tested") for block in BLOCKS if block.page == PAGE)
