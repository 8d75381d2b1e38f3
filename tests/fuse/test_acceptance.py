"""The commands that the mount was made for, with the embedded model (F1, F5, F6)."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fuse.support import Mount, mounting
from tests.server.support import serving


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """`cfs serve` with the embedded model, mounted."""
    with serving() as server, mounting(server.url, tmp_path_factory.mktemp("mount") / "cfs") as here:
        for name in ("chat1", "a", "b"):
            settings = {"temperature": 0, "max_tokens": 60}
            httpx.post(
                f"{server.url}/v1/sessions", json={"id": name, "settings": settings}, trust_env=False, timeout=60
            )
        yield here


def check(mount: Mount, script: str) -> str:
    """Run a script that must succeed."""
    done = mount.shell(script)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_commands(mount: Mount) -> None:
    """One after the other, as a user would type them."""
    check(mount, 'echo "你好" > $M/chat1; grep -q "Assistant:" $M/chat1')
    assert "Alice" in check(mount, 'echo "我叫Alice" >> $M/chat1; echo "我叫什么？" >> $M/chat1; tail -n 1 $M/chat1')
    check(mount, "echo one > $M/a; echo two > $M/b")
    assert "two" not in check(mount, "head -n 1 $M/a")
    assert check(mount, "head -n 1 $M/b") == "User: two\n"
    live = check(mount, "cat $M/.live/chat1 & echo 'Tell me a joke' >> $M/chat1; wait")
    assert live.strip()
    assert check(mount, "cat $M/chat1").endswith(f"Assistant: {live.strip()}\n")
    check(mount, "setfattr -n user.cfs.temperature -v 0 $M/chat1")
    check(mount, "rm $M/a; test ! -e $M/a")
    assert sorted(Path(mount.path).iterdir()) == [mount / "b", mount / "chat1"]
