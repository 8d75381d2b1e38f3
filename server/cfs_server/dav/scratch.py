"""Scratch files of programs next to the sessions: in memory, limited in size and lifetime (W1)."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from cfs.errors import NotFound, PreconditionFailed, StorageFull, TooLarge
from cfs_server.dav.new_files import RENAME_WAIT_SECONDS
from cfs_server.dav.put import Clients
from cfs_server.domain.loop_bridge import LoopBridge
from cfs_server.http.etags import matches, unchanged
from cfs_webdav.tree import Conditions

CAP_FILE = 16 << 20
CAP_BYTES = 64 << 20
CAP_FILES = 1_024
KEPT_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Scratch:
    """A scratch file, written as a whole. `view` is the ETag of the transcript that it was copied from."""

    data: bytes
    changed_at: float
    written: float
    view: str | None = None
    etag: str = field(default_factory=lambda: f"s{secrets.token_hex(8)}")


class ScratchFiles:
    """The scratch files of one principal by path. Used on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files: dict[str, Scratch] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def below(self, collection: str) -> list[tuple[str, Scratch]]:
        """Return the files directly in a collection. Its path ends with `/`."""
        self.expire()
        return [(path, file) for path, file in self._files.items() if path.rpartition("/")[0] + "/" == collection]

    def find(self, path: str) -> Scratch | None:
        """Return a file, or None if it does not exist."""
        self.expire()
        return self._files.get(path)

    def get(self, path: str) -> Scratch:
        """Return a file. Raises `NotFound`."""
        file = self.find(path)
        if file is None:
            raise NotFound(f"there is no file {path!r}")
        return file

    def put(self, path: str, data: bytes, view: str | None = None) -> Scratch:
        """Write or overwrite a file. Raises `TooLarge` or `StorageFull`."""
        self.expire()
        if len(data) > CAP_FILE:
            raise TooLarge(f"a temporary file has {CAP_FILE} bytes at most")
        others = {name: file for name, file in self._files.items() if name != path}
        if len(others) >= CAP_FILES:
            raise StorageFull(f"you may have {CAP_FILES} temporary files at most; delete some")
        if len(data) + sum(len(file.data) for file in others.values()) > CAP_BYTES:
            raise StorageFull(f"your temporary files may have {CAP_BYTES} bytes at most; delete some")
        self._files[path] = file = Scratch(data, time.time(), self._clock(), view)
        return file

    def write(self, path: str, data: bytes, conditions: Conditions) -> Scratch:
        """Write a file if the conditions are true (RFC 9110, 13.1). Raises `PreconditionFailed`, and as `put`."""
        existing = self.find(path)
        etag = None if existing is None else f'"{existing.etag}"'
        if_match, if_none_match = conditions.if_match, conditions.if_none_match
        if if_match is not None and (etag is None or not matches(if_match, etag)):
            raise PreconditionFailed(f"If-Match: {if_match} does not hold for {path!r}")
        if etag is not None and unchanged(if_none_match, etag):
            raise PreconditionFailed(f"If-None-Match: {if_none_match} does not hold for {path!r}")
        return self.put(path, data)

    def delete(self, path: str, only: Scratch | None = None) -> None:
        """Delete a file, or only this content of it if given. Raises `NotFound`."""
        if self.get(path) is only or only is None:
            del self._files[path]

    def discard(self, path: str) -> None:
        """Delete a file if it exists."""
        self._files.pop(path, None)

    def move(self, path: str, target: str) -> None:
        """Move a file. An existing target is overwritten. Raises `NotFound`."""
        file = self.get(path)
        del self._files[path]
        self._files[target] = file

    def expire(self) -> None:
        """Delete the files that were last written more than an hour ago."""
        end = self._clock() - KEPT_SECONDS
        for path in [path for path, file in self._files.items() if file.written < end]:
            del self._files[path]


# State that outlives a request: each principal's scratch files and recent actions of its programs.

_SWEEP_SECONDS = 60.0


class ClientState:
    """The state of one principal's WebDAV clients."""

    def __init__(self, on_loop: LoopBridge, clock: Callable[[], float], rename_wait: float) -> None:
        self.on_loop = on_loop
        self.scratch = ScratchFiles(clock)
        self.clients = Clients(clock, rename_wait)


class ClientStates:
    """The states of all principals. Created and used on the event loop of the sessions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rename_wait: float = RENAME_WAIT_SECONDS) -> None:
        self._on_loop = LoopBridge()
        self._clock = clock
        self._rename_wait = rename_wait
        self._kept: WeakKeyDictionary[object, ClientState] = WeakKeyDictionary()
        self._swept_at = clock()

    def of(self, principal: object) -> ClientState:
        """Return the state of a principal. It exists as long as the principal."""
        if self._clock() - self._swept_at > _SWEEP_SECONDS:
            self._swept_at = self._clock()
            for client in self._kept.values():
                client.scratch.expire()
        client_state = self._kept.get(principal)
        if client_state is None:
            client_state = self._kept[principal] = ClientState(self._on_loop, self._clock, self._rename_wait)
        return client_state
