"""Accesses a session through files: a mount, or a directory that a program answers in (C1, C4, C6).

There is an async and a sync version; tools/unasync.py generates the sync one.
"""

import asyncio
import codecs
import contextlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count

from cfs.contract.errors import AlreadyExists, Busy, EngineError, Gone, Unsupported
from cfs.contract.ids import check_id
from cfs.contract.transcript import render
from cfs.contract.wire import (
    MergedFiles,
    Message,
    NewMessage,
    Question,
    RedoRequest,
    RewindRequest,
    Rewound,
    SessionVersion,
    Settings,
    SettingsPatch,
)
from cfs.state.replies import MessageOutcome, as_written, decode, error_in, find_reply, settled, turns_of
from cfs.transports.attributes import CANCEL, LIFE, PREFIX, read_settings, write_settings
from cfs.transports.deadlines import Deadline, Pauses
from cfs.transports.disk import AsyncGrowingFile, AsyncMountedFiles, translated

_LATE = "the session is still busy; wait() or read() again, or cancel()"
_QUESTIONS = "a file has no questions of agents; use the session over HTTP, by url=..."
_VERSIONS = "a file has no versions here; use the session over HTTP, by url=..."
_LATE_REPLY = "there is no reply yet: the turn continues; wait() for it, or cancel() it"


def file_of(mount: str, session: str) -> str:
    """Return the file of a session: sub-sessions are control files of the mount (F5)."""
    root, *below = check_id(session).split("/")
    return os.path.join(mount, ".sub_sessions", root, ".".join(below)) if below else os.path.join(mount, root)  # noqa: PTH118


_NOT_COPIED = frozenset({CANCEL, LIFE, f"{PREFIX}driver", f"{PREFIX}paused"})
"""Attributes of a session itself, and of the agent that answers it: a copy is answered as a new session is."""


class AsyncFileTransport:
    """One session of a directory, by its file.

    If the directory has `.live` (a CFS mount), a read waits for the end of the turn; a non-blocking read fails with
    `EAGAIN`. In other directories the text shows whether the session is settled (`cfs.state.replies`).
    """

    takes_tools = False

    def __init__(self, session: str, mount: str) -> None:
        self._id = session
        self._mount = mount
        self._path = file_of(mount, session)
        self._disk = AsyncMountedFiles()
        self._life: bytes | None = None

    async def open(self) -> None:
        """Open the file for appending, creating it if necessary."""
        with translated(self._path):
            await self._disk.append(self._path, b"")

    async def require(self) -> None:
        """Raise `NotFound` if there is none."""
        with translated(self._path):
            await self._disk.mark(self._path)

    async def reopen(self) -> None:
        """Use the session that has the name now; create the file if there is none."""
        self._life = None
        await self.open()

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    async def send(self, message: NewMessage, deadline: Deadline, key: str | None) -> MessageOutcome:
        """Append a message; read the file until its reply is there."""
        _refuse(key)
        await self._write(message)
        async with aclosing(self._texts(deadline, _LATE_REPLY)) as texts:
            async for text in texts:
                turns = turns_of(text)
                match = find_reply(text, turns, message.content)
                if match is not None and match.complete:
                    return MessageOutcome(match.text, turns[: match.end], error_in(match.text))
        raise AssertionError("the texts have no end")  # pragma: no cover

    async def stream(
        self, message: NewMessage, deadline: Deadline, key: str | None
    ) -> AsyncGenerator[str | MessageOutcome]:
        """Append a message; read `.live`, or else poll the growing file. Finally yield the outcome."""
        _refuse(key)
        sent = ""
        async with aclosing(self._live(message, deadline)) as pieces:
            async for piece in pieces:
                sent += piece
                yield piece
        async with aclosing(self._texts(deadline, _LATE_REPLY)) as texts:
            async for text in texts:
                match = find_reply(text, turns_of(text), message.content)
                if match is None:
                    continue
                if match.complete and (error := error_in(match.text)) is not None:
                    raise EngineError(error)
                new = _beyond(sent, match.text)
                if new:
                    sent += new
                    yield new
                if match.complete:
                    yield MessageOutcome(match.text, ())
                    return

    async def read(self, deadline: Deadline) -> str:
        """Read the file once it is settled."""
        await self._check_life()
        waits = await self._is_mount()
        async with aclosing(self._texts(deadline, _LATE)) as texts:
            async for text in texts:
                if waits or settled(text):
                    await self._see_life()
                    return text
        raise AssertionError("the texts have no end")  # pragma: no cover

    async def read_now(self) -> str:
        """Read the file without waiting, or raise `Busy` while it is not settled."""
        with translated(self._path):
            text = decode(await self._disk.read(self._path))
        if not settled(text) and not await self._is_mount():
            raise Busy(f"{self._path}: a turn is running; read() waits for it")
        return text

    async def settings(self) -> Settings:
        """Read the extended attributes."""
        with translated(self._path):
            return read_settings(await self._disk.attributes(self._path))

    async def configure(self, patch: SettingsPatch) -> Settings:
        """Set extended attributes."""
        with translated(self._path):
            for name, value in write_settings(patch).items():
                await self._disk.set_attribute(self._path, name, value)
        return await self.settings()

    async def delete(self) -> None:
        """Unlink the file."""
        with translated(self._path):
            await self._disk.remove(self._path)
        self._life = None

    async def fork(
        self,
        copy: str | None,
        messages: int | None,
        deadline: Deadline,
        key: str | None,
        *,
        files: bool = True,  # noqa: ARG002 - the workspace is another folder of the mount
    ) -> str:
        """Copy the file with its attributes, which needs one read and one write."""
        _refuse(key)
        text = await self.read(deadline)
        data = (text if messages is None else render(turns_of(text)[:messages])).encode()
        numbers = count(2)
        name = copy or f"{self._id}-{next(numbers)}"
        while True:
            path = file_of(self._mount, name)
            try:
                with translated(path):
                    await self._disk.make(path, data)
                break
            except AlreadyExists:
                if copy is not None:
                    raise
                name = f"{self._id}-{next(numbers)}"
        with contextlib.suppress(OSError):  # some mounts have no attributes
            for attribute, value in (await self._disk.attributes(self._path)).items():
                if attribute.startswith(PREFIX) and attribute not in _NOT_COPIED:
                    await self._disk.set_attribute(path, attribute, value)
        return name

    async def cancel(self, *, queued: bool, cascade: bool) -> None:
        """Set the attribute `user.cfs.cancel`."""
        if queued or cascade:
            raise Unsupported("a file can cancel its running turn only; use the session over HTTP, by url=...")
        with translated(self._path):
            await self._disk.set_attribute(self._path, CANCEL, b"1")

    async def versions(self, before: int | None, limit: int) -> tuple[SessionVersion, ...]:  # noqa: ARG002 - the interface's
        """Raise `Unsupported`."""
        raise Unsupported(_VERSIONS)

    async def read_at(self, at: int | str) -> tuple[Message, ...]:  # noqa: ARG002
        """Raise `Unsupported`."""
        raise Unsupported(_VERSIONS)

    async def rewind(self, how: RewindRequest) -> Rewound:  # noqa: ARG002
        """Raise `Unsupported`."""
        raise Unsupported(_VERSIONS)

    async def redo(self, how: RedoRequest) -> Rewound:  # noqa: ARG002
        """Raise `Unsupported`."""
        raise Unsupported(_VERSIONS)

    async def merge(self, source: str, *, dry_run: bool) -> MergedFiles:  # noqa: ARG002
        """Raise `Unsupported`."""
        raise Unsupported(_VERSIONS)

    async def questions(self) -> tuple[Question, ...]:
        """Raise `Unsupported`."""
        raise Unsupported(_QUESTIONS)

    async def answer(self, question: str, answer: str) -> None:  # noqa: ARG002 - the signature is the interface's
        """Raise `Unsupported`."""
        raise Unsupported(_QUESTIONS)

    async def wait(self, deadline: Deadline) -> None:
        """Wait by reading the file once it is settled."""
        await self.read(deadline)

    async def _write(self, message: NewMessage) -> None:
        if message.settings.model_fields_set:
            raise Unsupported("a file takes no settings for one message: use configure(), or the session by url=...")
        await self._check_life()
        with translated(self._path):
            await self._disk.append(self._path, as_written(message.content))
        await self._see_life()

    async def _check_life(self) -> None:
        """Raise `Gone` if the file belongs to another session of this name; only a mount can distinguish them."""
        if self._life is not None and self._life != await self._present_life():
            raise Gone(
                f"{self._path} is not there any more as you knew it: it was deleted, or the server has restarted"
                " without it; reopen() goes on with a new one"
            )

    async def _see_life(self) -> None:
        self._life = self._life or await self._present_life()

    async def _present_life(self) -> bytes | None:
        """Return the life of the session; None if there is no file, or if the mount does not report it."""
        with contextlib.suppress(OSError):
            return (await self._disk.attributes(self._path)).get(LIFE)
        return None

    async def _is_mount(self) -> bool:
        return await self._disk.is_directory(os.path.join(self._mount, ".live"))  # noqa: PTH118

    async def _is_busy(self) -> bool:
        try:
            await self._disk.read(self._path)
        except BlockingIOError:
            return True
        except OSError:
            return False  # writing the message will show the cause
        return False

    async def _texts(self, deadline: Deadline, late: str) -> AsyncGenerator[str]:
        """Yield the text of the file now and after each change; raises `Gone` when it is deleted."""
        pauses = Pauses()
        last_mark = text = None
        while True:
            with translated(self._path):
                try:
                    mark = await self._disk.mark(self._path)
                    if mark != last_mark:
                        data = await self._disk.read(self._path, waiting=deadline.seconds is None)
                        if mark == await self._disk.mark(self._path):  # otherwise it changed during the read
                            text, last_mark = decode(data), mark
                except BlockingIOError:
                    pass
                except FileNotFoundError:
                    if last_mark is None:
                        raise
                    raise Gone(f"{self._path} has been deleted") from None
            if text is not None:
                yield text
                text = None
                pauses = Pauses()
            deadline.check(late)
            await asyncio.sleep(pauses.next())

    async def _live(self, message: NewMessage, deadline: Deadline) -> AsyncGenerator[str]:
        """Write a message and yield the text of its turn from `.live`; yields nothing without `.live`."""
        await self._check_life()  # before anything is made
        tail = await self._listen()
        if tail is None:
            await self._write(message)
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pauses = Pauses()
        try:
            await self._write(message)
            with translated(self._path):
                while (data := await tail.read()) != b"":
                    if data is None:
                        deadline.check(_LATE_REPLY)
                        await asyncio.sleep(pauses.next())
                    elif text := decoder.decode(data):
                        pauses = Pauses()
                        yield text
        finally:
            await tail.close()

    async def _listen(self) -> AsyncGrowingFile | None:
        """Open `.live` for the next turn; None if there is none, or if it would show another turn."""
        if not await self._is_mount():
            return None
        await self.open()
        if await self._is_busy():
            return None
        try:
            return await self._disk.tail(os.path.join(self._mount, ".live", self._id))  # noqa: PTH118
        except OSError:
            return None  # a mount may have none for sub-sessions; the transcript is complete


def _beyond(text: str, reply: str) -> str:
    """Return the part of a reply that was not yielded yet, ignoring white space around the yielded text."""
    for prefix in (text, text.strip()):
        if reply.startswith(prefix):
            return reply[len(prefix) :]
    return ""


def _refuse(key: str | None) -> None:
    if key is not None:
        raise Unsupported("a write to a file carries no idempotency key: use the session over HTTP, by url=...")
