"""A reply that a crash of the server interrupts is read to its end, and nothing of it twice."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cfs import Session, api
from cfs.errors import NotFound
from tests.fuse.support import mounting, reason_to_skip, until
from tests.server.restarting import Restarting

WORDS = " ".join(f"word{number}" for number in range(30))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Restarting]:
    """A server that takes its time for each word."""
    with ExitStack() as stack:
        yield Restarting(tmp_path, stack, "--scripted-interval", "0.05")


def test_a_stream_of_the_sdk_goes_on_after_a_crash(server: Restarting) -> None:
    """The turn begins again, and the reader sees what it has not seen yet."""
    pieces: list[str] = []
    with Session("talk", url=server.process.url) as session, ThreadPoolExecutor(1) as pool:
        starting = None
        for piece in session.stream(WORDS):
            pieces.append(piece)
            if len(pieces) == 8:
                server.kill()
                starting = pool.submit(server.start)
        assert starting is not None
        starting.result()
        assert "".join(pieces) == WORDS
        assert session.history == [f"User: {WORDS}", f"Assistant: {WORDS}"]


def test_a_reply_that_is_waited_for_comes_after_a_crash(server: Restarting) -> None:
    with Session("talk", url=server.process.url) as session, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(session.send, WORDS)
        until(lambda: _has_begun(server))
        server.kill()
        server.start()
        assert reply.result().content == f"Assistant: {WORDS}"


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"nothing can be mounted here: {reason_to_skip()}")
def test_the_file_of_the_running_turn_goes_on_after_a_crash(server: Restarting, tmp_path: Path) -> None:
    """Whoever reads it gets an error while the server is away, and then reads on."""
    server.direct.call(api.create("talk"))
    with mounting(server.process.url, tmp_path / "mount") as mount:
        until((mount / "talk").exists)
        live = os.open(mount / ".live" / "talk", os.O_RDONLY | os.O_NONBLOCK)
        server.direct.call(api.append("talk", WORDS.encode()))
        text = _read_until(live, "word3")
        server.kill()
        server.start()
        assert text + _read_until(live, "word29") == WORDS
        os.close(live)


def _read_until(file: int, word: str) -> str:
    """Read on until a word has come."""
    text = bytearray()

    def read() -> bool:
        with suppress(OSError):  # nothing new, or no server
            text.extend(os.read(file, 1000))
        return word.encode() in text

    until(read)
    return text.decode()


def _has_begun(server: Restarting) -> bool:
    """Whether the model has said some words."""
    with suppress(NotFound):
        return "word3" in (server.direct.call(api.read("talk")).partial or "")
    return False
