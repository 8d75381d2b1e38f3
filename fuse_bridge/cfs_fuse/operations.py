"""Handles the kernel's requests, one method each, and translates errors to errno."""

import errno
import functools
import itertools
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

from cfs import api
from cfs.contract.bodies import judge
from cfs.contract.ids import name_below
from cfs.errors import AlreadyExists, CfsError, Conflict, NotFound, TooLarge, UnsupportedMedia
from cfs.transports.attributes import CANCEL, LIFE, PREFIX, read_settings, write_settings
from cfs.wire import Settings, SettingsPatch
from cfs_fuse.cache import CachedSession
from cfs_fuse.handles import (
    MODE,
    SEEN_SECONDS,
    BridgeContext,
    ControlHandle,
    EventsHandle,
    LiveHandle,
    OpenFile,
    ScratchHandle,
    SearchHandle,
    SessionHandle,
    StatusHandle,
    status,
)
from cfs_fuse.past import PastEntries, PastHandle, raise_read_only, require_present
from cfs_fuse.paths import (
    Attributes,
    ControlDirectory,
    ControlPath,
    Families,
    Family,
    MountPath,
    PastPath,
    QuestionPath,
    QuestionSessions,
    Root,
    ScratchPath,
    Searches,
    SearchPath,
    SessionPath,
    SessionQuestions,
    filesystem,
)
from cfs_fuse.questions import QuestionHandle, attributes_of, questions_of, session_names

# Extended attributes: the settings of a session as `user.cfs.*` (F6, S9)

_log = logging.getLogger(__name__)


def list_of(context: BridgeContext, entry: CachedSession) -> list[str]:
    """List the settings that have a value."""
    return list(_values(context, entry))


def read(context: BridgeContext, entry: CachedSession, name: str) -> bytes:
    """Return a setting as text; raises `OSError` (ENODATA)."""
    value = _values(context, entry).get(name)
    if value is None:
        raise OSError(errno.ENODATA, f"{name} is not set")
    return value


def write(context: BridgeContext, entry: CachedSession, name: str, value: bytes) -> None:
    """Change a setting, or cancel the running turn by `user.cfs.cancel`; raises `OSError` (EINVAL, EOPNOTSUPP)."""
    if not name.startswith(PREFIX):
        raise OSError(errno.EOPNOTSUPP, f"only {PREFIX}* can be set")
    try:
        text = value.decode()
        if name == LIFE:
            raise OSError(errno.EPERM, f"{LIFE} can only be read")
        if name == CANCEL:
            _cancel(context, entry, text)
        else:
            key = name.removeprefix(PREFIX)
            _change(context, entry, {key: getattr(read_settings({name: value}), key, value)})
    except (ValueError, CfsError) as error:
        reason = _reason(error)
        _log.error("%s: %s cannot be %r: %s", entry.id, name, value[:80], reason)
        if isinstance(error, CfsError):
            raise
        raise OSError(errno.EINVAL, reason) from None


def remove(context: BridgeContext, entry: CachedSession, name: str) -> None:
    """Reset a setting to its default; raises `OSError` (ENODATA)."""
    if name == LIFE:
        raise OSError(errno.EPERM, f"{LIFE} can only be read")
    read(context, entry, name)
    _change(context, entry, {name.removeprefix(PREFIX): None})


def _values(context: BridgeContext, entry: CachedSession) -> dict[str, bytes]:
    values = write_settings(SettingsPatch(**_settings(context, entry).model_dump()))
    return {LIFE: entry.life.encode()} | {name: value for name, value in values.items() if value is not None}


def _settings(context: BridgeContext, entry: CachedSession) -> Settings:
    """Return the settings from events, or fetch them once if no event has shown them."""
    if (cached := entry.settings) is not None:
        return cached
    number = entry.event
    settings = context.server.call(api.settings(entry.id))
    with context.cache.lock:
        if entry.event == number:
            entry.settings = settings
    return settings


def _change(context: BridgeContext, entry: CachedSession, change: dict[str, Any]) -> None:
    settings = context.server.call(api.configure(entry.id, SettingsPatch.model_validate(change)))
    with context.cache.lock:
        context.waiter.briefly(
            context.cache.moved(entry),
            lambda: entry.deleted or entry.settings is None or entry.settings == settings,
            SEEN_SECONDS,
        )


def _cancel(context: BridgeContext, entry: CachedSession, text: str) -> None:
    if text not in ("1", "all"):
        raise ValueError("1 cancels the running turn, all also those that wait")
    context.server.call(api.cancel(entry.id, queued=text == "all"))


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
    return str(error)


# Creating, deleting and renaming sessions; each call returns after its event has arrived (F4, S14)


class NameOperations:
    """Creates, deletes and renames sessions; raises `CfsError`."""

    def __init__(self, context: BridgeContext) -> None:
        self._context = context

    def make(self, session_id: str, *, exclusive: bool) -> CachedSession:
        """Create a session unless it exists. The cache has it when this returns."""
        cache, created = self._context.cache, True
        try:
            self._context.server.call(api.create(session_id))
        except AlreadyExists:
            if exclusive:
                raise
            created = False
        with cache.lock:
            self._context.waiter.briefly(cache.listed, lambda: cache.holds(session_id), SEEN_SECONDS)
        entry = cache.get(session_id)
        if created:  # so it is writable, and empty
            entry.written_at = time.monotonic()
            self._context.transcripts.begin(entry)
            if not self._context.commit_writes:
                self._context.new_files.created(entry)
        return entry

    def delete(self, entry: CachedSession) -> None:
        """Delete a session with its sub-sessions."""
        cache = self._context.cache
        self._context.server.call(api.delete(entry.id))
        with cache.lock:
            self._context.waiter.briefly(cache.moved(entry), lambda: entry.deleted, SEEN_SECONDS)

    def rename(self, entry: CachedSession, target: str, *, replacing: bool) -> None:
        """Rename a session. Onto an existing session, its text is handled like a write to that session.

        If it is the temporary file of a program, its text is what the program has written, and it gets no reply.
        """
        cache = self._context.cache
        if (existing := cache.find(target)) is None:
            self._context.server.call(api.rename(entry.id, target))
            with cache.lock:
                self._context.waiter.briefly(cache.listed, lambda: entry.id == target, SEEN_SECONDS)
            return
        if not replacing:
            raise AlreadyExists(f"there is a session {target!r} already")
        if existing is entry:
            return
        if (data := self._context.new_files.data(entry)) is not None:
            self._replace(existing, entry, data)
            return
        if not entry.idle:
            raise Conflict(f"session {entry.id!r} is generating")
        self._context.write_over(existing, self._context.transcripts.get(entry), b"")
        self.delete(entry)

    def _replace(self, existing: CachedSession, entry: CachedSession, data: bytes) -> None:
        """Save a file by a temporary one, which is deleted after the data has arrived: nothing is lost in between.

        A temporary file that is refused is no message. It stays as a file of the mount, as on a disk.
        """
        try:
            self._context.write_over(existing, data, b"")
        except (Conflict, TooLarge, UnsupportedMedia):
            if "/" not in entry.id:  # there are no temporary files among the sub-sessions
                self._context.scratch.put(entry.id, data)
            self.delete(entry)
            raise
        self.delete(entry)

    def publish(self, name: str, target: str, *, replacing: bool) -> None:
        """Rename a temporary file to a session, as editors and `rsync` do."""
        body = bytes(self._context.scratch.get(name).data)
        existing = self._context.cache.find(target)
        if existing is not None and not replacing:
            raise AlreadyExists(f"there is a session {target!r} already")
        if existing is None:
            judge(body, b"")  # check first: a refused write must not create a session
            self._write_new(target, body)
        else:
            self._context.write_over(existing, body, b"")
        self._context.scratch.remove(name)

    def _write_new(self, target: str, body: bytes) -> None:
        """Create a session with a text. If the server refuses the text, there is no session either."""
        created = self.make(target, exclusive=True)
        try:
            self._context.write_over(created, body, b"")
        except (CfsError, OSError):
            with suppress(CfsError):
                self.delete(created)
            raise


# Errors: the kernel gets an errno, the log gets the reason

P = ParamSpec("P")
R = TypeVar("R")


def translate_errors(operation: Callable[P, R]) -> Callable[P, R]:
    """Translate errors to the numbers of `cfs.errors.TABLE`, and log the reason."""

    @functools.wraps(operation)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(*args, **kwargs)
        except CfsError as error:
            level = logging.DEBUG if isinstance(error, NotFound) else logging.WARNING
            _log.log(level, "%s: %s", operation.__name__, error.detail)
            raise OSError(error.errno, error.detail) from error

    return answer


def always_fail(number: int) -> Callable[..., int]:
    """Create a handler that always fails with this number, or as the past does."""

    def refuse(_operations: Any, path: str | None, *_: Any) -> int:
        require_present(path)
        raise OSError(number, os.strerror(number))

    return refuse


def accept(_operations: Any, path: str | None, *_: Any) -> int:
    """Accept a call that has no effect, except on the past."""
    require_present(path)
    return 0


NOMINAL_BYTES = 1 << 30
RENAME_NOREPLACE = 1

_CONTROL: dict[str, Callable[[BridgeContext, CachedSession], ControlHandle]] = {
    "live": LiveHandle,
    "status": StatusHandle,
    "events": EventsHandle,
}


class Operations:
    """The file system operations that libfuse calls in its threads. File handles are numbers."""

    use_ns = True
    flag_nopath = True  # so an open file needs no path: it may have been removed or renamed,
    flag_nullpath_ok = True  # and a blocked reader holds no lock on it

    def __init__(self, context: BridgeContext, ready: Callable[[], None]) -> None:
        self._context = context
        self._names = NameOperations(context)
        self._past = PastEntries(context)
        self._ready = ready
        self._handles: dict[int, OpenFile] = {}
        self._directories: dict[int, MountPath] = {}
        self._numbers = itertools.count(1)

    def init(self, _path: str) -> None:
        """Called when the mount is ready."""
        self._ready()

    @translate_errors
    def getattr(self, path: str | None, fi: Any = None) -> Attributes:
        """Return the attributes of a file or a directory."""
        if fi is not None and (handle := self._handles.get(fi.fh)) is not None:
            return handle.attributes()
        context, target = self._context, self._context.resolve(_given(path))
        match target:
            case SessionPath(name):
                entry = context.cache.get(name)
                return context.attributes.file(entry.size, entry.changed_at)
            case Root() | ControlDirectory() | Families() | Searches() | QuestionSessions():
                return context.attributes.directory(context.cache.changed_at)
            case Family(name) | SessionQuestions(name):
                context.cache.get(name)
                return context.attributes.directory(context.cache.changed_at)
            case QuestionPath(name, question):
                return attributes_of(context, name, question)
            case ControlPath("status", name):
                entry = context.cache.get(name)
                return context.attributes.file(len(status(context.cache, entry)), entry.changed_at)
            case SearchPath():
                return context.attributes.file(0, context.cache.changed_at)
            case ControlPath(_, name):
                return context.attributes.file(0, context.cache.get(name).changed_at)
            case PastPath(inside):
                return self._past.attributes(inside)
            case ScratchPath(name):
                file = context.scratch.get(name)
                return context.attributes.file(len(file.data), file.changed_at, mode=MODE)

    @translate_errors
    def opendir(self, path: str) -> int:
        """Store which directory was opened: the kernel does not repeat it."""
        number = next(self._numbers)
        self._directories[number] = self._context.resolve(path)
        return number

    @translate_errors
    def readdir(self, _path: str | None, number: int) -> Iterator[tuple[str, int, int]]:
        """List a directory. Control directories can be opened but are not listed."""
        cache, attributes = self._context.cache, self._context.attributes
        directories, files = [".", ".."], []
        match self._directories[number]:
            case Root():
                files = cache.roots() + self._context.scratch.names()
            case ControlDirectory():
                files = cache.roots()
            case Families():
                directories += cache.parents()
            case Family(root):
                files = [name_below(root, member) for member in cache.family(root)]
            case QuestionSessions():
                directories += session_names(self._context)
            case SessionQuestions(session):
                files = list(questions_of(self._context, session))
            case PastPath(inside):
                members = self._past.members(inside)
                directories += [entry.name for entry in members if entry.type == "folder"]
                files = [entry.name for entry in members if entry.type == "file"]
        kinds = ((directories, attributes.directory_type), (files, attributes.file_type))
        return ((name, mode, 0) for names, mode in kinds for name in names)

    def releasedir(self, _path: str | None, number: int) -> int:
        """Forget a directory."""
        self._directories.pop(number, None)
        return 0

    @translate_errors
    def statfs(self, _path: str) -> dict[str, int]:
        """Return the statistics of the file system."""
        return filesystem(*self._context.cache.totals(), NOMINAL_BYTES)

    @translate_errors
    def create(self, path: str, _mode: int, fi: Any) -> int:
        """Create and open a file."""
        require_present(path)
        target = self._context.resolve(path)
        if isinstance(target, SessionPath) and self._context.cache.find(target.id) is None:
            fi.fh = self._keep(
                SessionHandle(
                    self._context, self._names.make(target.id, exclusive=bool(fi.flags & os.O_EXCL)), fi.flags
                )
            )
            return 0
        return self._open(target, fi, fi.flags | os.O_CREAT)

    @translate_errors
    def open(self, path: str, fi: Any) -> int:
        """Open a file. Missing write access fails here, as many programs ignore errors of `close`."""
        return self._open(self._context.resolve(path), fi, fi.flags)

    def _open(self, target: MountPath, fi: Any, flags: int) -> int:
        context = self._context
        match target:
            case SessionPath(name):
                entry = context.cache.get(name)
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    context.require_writable(entry)
                elif not flags & os.O_NONBLOCK:
                    context.settle(entry)
                handle: OpenFile = SessionHandle(context, entry, flags)
            case ControlPath(kind, name):
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    raise OSError(errno.EACCES, "control files can only be read")
                handle = _CONTROL[kind](context, context.cache.get(name))
            case SearchPath(words):
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    raise OSError(errno.EACCES, "results of a search can only be read")
                handle = SearchHandle(context, words)
            case PastPath(inside) if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
                raise_read_only()
            case PastPath(inside) if not self._past.is_directory(inside):
                handle = PastHandle(context, self._past, inside)
            case QuestionPath(name, question):
                handle = QuestionHandle(context, name, question, flags)
            case ScratchPath(name):
                handle = ScratchHandle(context, context.scratch.open(name, flags), flags)
            case _:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        fi.fh = self._keep(handle)
        return 0

    @translate_errors
    def read(self, _path: str | None, size: int, offset: int, fi: Any) -> bytes | memoryview:
        """Read. The flags are current: `fcntl` may have changed them since the file was opened."""
        return self._handles[fi.fh].read(size, offset, blocking=not fi.flags & os.O_NONBLOCK)

    @translate_errors
    def write(self, _path: str | None, data: bytes, offset: int, fi: Any) -> int:
        """Write."""
        self._handles[fi.fh].write(data, offset)
        return len(data)

    @translate_errors
    def flush(self, _path: str | None, fi: Any) -> int:
        """Handle the close of one descriptor of the file."""
        self._handles[fi.fh].commit()
        return 0

    @translate_errors
    def fsync(self, _path: str | None, _data_only: int, fi: Any) -> int:
        """Send collected writes."""
        self._handles[fi.fh].commit()
        return 0

    @translate_errors
    def release(self, _path: str | None, fi: Any) -> int:
        """Handle the close of the last descriptor."""
        if (handle := self._handles.pop(fi.fh, None)) is not None:
            handle.close()
        return 0

    @translate_errors
    def mknod(self, path: str, mode: int, _device: int) -> int:
        """Create a file without opening it."""
        require_present(path)
        target = self._context.resolve(path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EOPNOTSUPP, "there are only sessions here")
        if isinstance(target, SessionPath):
            self._names.make(target.id, exclusive=True)
        elif isinstance(target, ScratchPath):
            self._context.scratch.open(target.name, os.O_CREAT | os.O_EXCL)
        else:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return 0

    @translate_errors
    def unlink(self, path: str) -> int:
        """Delete a session with its sub-sessions, or a temporary file. Waiting readers are woken."""
        require_present(path)
        match self._context.resolve(path):
            case SessionPath(name):
                self._names.delete(self._context.cache.get(name))
            case ScratchPath(name):
                self._context.scratch.remove(name)
            case _:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return 0

    @translate_errors
    def rename(self, old: str, new: str, flags: int) -> int:
        """Rename a session or a temporary file. Onto an existing session this is a write of the whole file."""
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        require_present(old, new)
        replacing = not flags & RENAME_NOREPLACE
        match self._context.resolve(old), self._context.resolve(new):
            case ScratchPath(name), ScratchPath(target):
                self._context.scratch.rename(name, target)
            case SessionPath(name), SessionPath(target):
                self._names.rename(self._context.cache.get(name), target, replacing=replacing)
            case ScratchPath(name), SessionPath(target):
                self._names.publish(name, target, replacing=replacing)
            case _:
                raise OSError(errno.EPERM, "a session cannot become a temporary file or a control file")
        return 0

    def truncate(self, path: str | None, size: int, fi: Any) -> int:
        """Truncate a temporary file; a session stays unchanged (S3)."""
        if fi is not None and (handle := self._handles.get(fi.fh)) is not None:
            handle.truncate(size)
            return 0
        require_present(path)
        if path is not None and isinstance(target := self._context.resolve(path), ScratchPath):
            self._context.scratch.truncate(self._context.scratch.get(target.name), size)
        return 0

    chmod = chown = utimens = accept
    mkdir = always_fail(errno.EPERM)
    rmdir = always_fail(errno.EPERM)
    link = always_fail(errno.EOPNOTSUPP)
    symlink = always_fail(errno.EOPNOTSUPP)
    fallocate = always_fail(errno.EOPNOTSUPP)

    @translate_errors
    def listxattr(self, path: str) -> list[str]:
        """List the settings of a session."""
        target = self._context.resolve(path)
        return list_of(self._context, self._context.cache.get(target.id)) if isinstance(target, SessionPath) else []

    @translate_errors
    def getxattr(self, path: str, name: str) -> bytes:
        """Read a setting. The kernel and `ls` also ask for many other attributes."""
        if name.startswith("system."):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        target = self._context.resolve(path) if name.startswith(PREFIX) else None
        if not isinstance(target, SessionPath):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return read(self._context, self._context.cache.get(target.id), name)

    @translate_errors
    def setxattr(self, path: str, name: str, value: bytes, _options: int) -> int:
        """Change a setting."""
        require_present(path)
        target = self._context.resolve(path)
        if not isinstance(target, SessionPath):
            raise OSError(errno.EOPNOTSUPP, "only sessions have settings")
        write(self._context, self._context.cache.get(target.id), name, value)
        return 0

    @translate_errors
    def removexattr(self, path: str, name: str) -> int:
        """Reset a setting to its default."""
        if name.startswith("system."):  # the kernel sets an access list that is equivalent to the mode this way
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        require_present(path)
        target = self._context.resolve(path)
        if not isinstance(target, SessionPath):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        remove(self._context, self._context.cache.get(target.id), name)
        return 0

    def _keep(self, handle: OpenFile) -> int:
        number = next(self._numbers)
        self._handles[number] = handle
        return number


def _given(path: str | None) -> str:
    if path is None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return path
