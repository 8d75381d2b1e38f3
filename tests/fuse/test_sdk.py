"""The SDK's own tests of a session, through a real mount (C1): files and HTTP are two ways to one thing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfs import AsyncSession, Gone, Session
from tests.client.async_conformance import AsyncConformance
from tests.client.conformance import Conformance
from tests.client.harness import ClientHarness, HttpHarness
from tests.fuse.support import Mount, mounting, names, reason_to_skip, until

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")


class MountHarness(HttpHarness):
    """A server, reached through its mount."""

    mount: Mount

    @property
    def where(self) -> dict[str, Any]:
        """The directory."""
        return {"mount": self.mount.path}

    def write(self, session: str, message: str) -> None:
        """Append to the file."""
        with (self.mount / session).open("a") as file:
            file.write(message)

    def renew(self) -> None:
        """Forget all sessions, here and in the mount."""
        super().renew()
        until(lambda: names(self.mount.path) == [])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountHarness]:
    """A server and its mount, in which no first turn waits for a rename."""
    place = tmp_path_factory.mktemp("mount") / "cfs"
    with MountHarness() as harness, mounting(harness.url, place, "--rename-wait", "0") as mount:
        harness.mount = mount
        yield harness


@pytest.fixture
def harness(opened: MountHarness) -> ClientHarness:
    """The mount, empty."""
    opened.renew()
    return opened


class TestOverMount(Conformance):
    """`Session`."""


class TestAsyncOverMount(AsyncConformance):
    """`AsyncSession`."""


def test_root_is_a_mount(opened: MountHarness) -> None:
    """The SDK sees by the hidden directories that it may rely on what only a mount of ours does."""
    assert Path(opened.mount.path, ".live").is_dir()


@pytest.mark.parametrize("way", ["url", "mount"])
@pytest.mark.parametrize("anew", [True, False])
async def test_a_session_that_was_deleted_or_made_anew_is_gone(harness: MountHarness, way: str, *, anew: bool) -> None:
    """What was read of one is never added to another, and no empty one is begun, until `reopen` says so."""
    place = harness.where if way == "mount" else {"url": harness.url}
    with Session("a", **place, timeout=60) as session:
        assert session.send("one").text == "one"
        reason = "has been deleted" if way == "url" else "not there any more as you knew it"
        async with AsyncSession("a", **place, timeout=60) as twin:
            await twin.read()
            harness.do(lambda: harness.server.store.delete("a"))
            if anew:
                harness.do(lambda: harness.server.store.create("a", transcript="User: other\nAssistant: talk\n"))
            until(lambda: names(harness.mount.path) == ["a"] * anew)
            for _ in range(2):
                with pytest.raises(Gone, match=reason):
                    session.send("two")
                with pytest.raises(Gone, match=reason):
                    await twin.send("two")
                with pytest.raises(Gone):
                    list(session.stream("two"))
                with pytest.raises(Gone):
                    session.read()
            assert [each.id for each in harness.server.store] == ["a"] * anew
            await twin.reopen()
            assert (await twin.send("three")).text == "three"
        session.reopen()
        assert session.send("four").text == "four"
        assert [line for line in session.history if "two" in line] == []
