"""Simulates a mount in a plain directory, for tests of programs that use sessions as files (C1).

    with AnsweringDirectory(path) as directory:
        assert Session("chat1", mount=path).send("hello").text == "hello"

It behaves like the mount as far as plain files can: appended text becomes a message, its reply grows in the file, and
settings and `user.cfs.cancel` are extended attributes. A session takes one message at a time: wait for its reply before
you write the next one. A new file that already contains a conversation is continued; if it ends with a user's message,
that message is answered.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cfs.contract.errors import CfsError, EngineError
from cfs.contract.transcript import PREFIXES, TranscriptMessage, parse, render
from cfs.transports.attributes import CANCEL, read_settings
from cfs.transports.disk import read_attributes, write_attribute

Script = Callable[[Sequence[TranscriptMessage]], Iterable[str]]
"""Gives the pieces of a reply to a history; may raise `EngineError`, at once or between pieces, to fail the turn."""

_LOOK_SECONDS = 0.002


def echo(turns: Sequence[TranscriptMessage]) -> Iterable[str]:
    """Answer with the words of the last message."""
    words = turns[-1].content.split()
    return [word if index == 0 else " " + word for index, word in enumerate(words)]


class AnsweringDirectory:
    """Answers what is appended to the files of a directory, by a script and in a thread of its own.

    While `hold` is in force nothing is said; `step` lets a number of pieces pass and `release` all that follow.
    """

    def __init__(self, path: str | os.PathLike[str], script: Script = echo) -> None:
        self.path = Path(path)
        self.script = script
        self._histories: dict[str, list[TranscriptMessage]] = {}
        self._permits: int | None = None
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="cfs-answering-directory", daemon=True)

    def hold(self) -> None:
        """Say nothing more, not even the end of a reply, until `step` or `release`."""
        with self._changed:
            self._permits = 0

    def step(self, pieces: int = 1) -> None:
        """Let some pieces pass."""
        with self._changed:
            self._permits = (self._permits or 0) + pieces
            self._changed.notify_all()

    def release(self) -> None:
        """End the hold."""
        with self._changed:
            self._permits = None
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            for name in sorted(os.listdir(self.path)):  # noqa: PTH208
                # deleted while it was looked at, or answered; or a write that goes on has put down half a character
                with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
                    self._look(name)
            for name in self._histories.keys() - set(os.listdir(self.path)):  # noqa: PTH208
                del self._histories[name]
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)

    def _look(self, name: str) -> None:
        """Take in what is new in a file, and answer it."""
        path = self.path / name
        if name.startswith(".") or not path.is_file():
            return
        data = path.read_bytes()
        if not data:  # just made, and nothing in it yet
            return
        history = self._histories.get(name)
        if history is None or not data.startswith(render(history).encode()):  # new, edited, or deleted and made again
            history = _history_in(data)
        new = data[len(render(history).encode()) :]
        self._histories[name] = history
        if new.endswith(b"\n"):
            content = new.decode().removesuffix("\n").removeprefix(PREFIXES["user"])
            write_attribute(str(path), CANCEL, None)
            self._histories[name] = self._answer(path, [*history, TranscriptMessage("user", content)])

    def _answer(self, path: Path, turns: list[TranscriptMessage]) -> list[TranscriptMessage]:
        _rewrite(path, render(turns))
        limit = read_settings(read_attributes(str(path))).max_tokens
        text = ""
        try:
            for count, piece in enumerate(self.script(turns)):
                if count == limit or not self._may_speak(path):
                    break
                text += piece
                _rewrite(path, render([*turns, TranscriptMessage("assistant", text.strip())]).rstrip("\n"))
            self._may_speak(path)
            reply = f"{text.strip()} [Cancelled]".lstrip() if _is_cancelled(path) else text.strip()
        except EngineError as error:
            reply = f"[Error: {error.detail}]"
        answered = [*turns, TranscriptMessage("assistant", reply)]
        _rewrite(path, render(answered))
        return answered

    def _may_speak(self, path: Path) -> bool:
        """Wait for the hold to end; False when the turn is cancelled or the directory closed."""
        with self._changed:
            while self._permits == 0 and not self._ended and not _is_cancelled(path):
                self._changed.wait(_LOOK_SECONDS)
            if self._permits:
                self._permits -= 1
            return not self._ended and not _is_cancelled(path)


def _is_cancelled(path: Path) -> bool:
    return CANCEL in read_attributes(str(path))


def _history_in(data: bytes) -> list[TranscriptMessage]:
    """Read the conversation that a new file begins with, but for a last message that nothing answers.

    None where only users speak: that is one message.
    """
    try:
        turns = parse(data.decode())
    except CfsError:
        return []
    if all(turn.role == "user" for turn in turns):
        return []
    return turns[:-1] if turns[-1].role == "user" else turns


def _rewrite(path: Path, text: str) -> None:
    """Turn a file's content into a text that begins as it does.

    What has become wrong is cut off first, where the rest does not look complete; the new text comes by one write, and
    nothing follows it that could cut off what another program appends to a text that is complete.
    """
    new = text.encode()
    descriptor = os.open(path, os.O_RDWR)
    try:
        old = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        same = next(
            (n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
        )
        if same < len(old):
            same = len(old[:same].rstrip(b"\n"))
            os.ftruncate(descriptor, same)
        os.pwrite(descriptor, new[same:], same)
    finally:
        os.close(descriptor)
