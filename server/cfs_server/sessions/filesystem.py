"""The sessions as a logical file system: `/sessions/<id>` is the transcript (G6, S3).

A write appends a message and starts its turn, whatever the file contains. A read returns the current transcript. The
interfaces wait for turns themselves. Sessions live on the event loop, so calls from other threads run there.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from cfs.errors import Conflict, NotFound, UnsupportedMedia
from cfs.wire import Message
from cfs_filesystem import (
    ConflictError,
    EntryMeta,
    FileSystemBase,
    Grant,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    Path,
    VersionedEntryMeta,
)
from cfs_server.domain.history import rendered_in_thread
from cfs_server.domain.ids import SESSIONS, id_of, path_of
from cfs_server.domain.loop_bridge import LoopBridge
from cfs_server.domain.message_sizes import decode_message
from cfs_server.domain.quotas import StorageUsage
from cfs_server.domain.turns import TurnRequest
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore


class SessionFileSystem(FileSystemBase):
    """The sessions of a store. Created on their event loop. New sessions count for the account.

    A sub-session cannot be written before its parent exists, because the writer's grants may not cover the parent.
    Errors for exhausted limits (`TooMany`, `StorageFull`, `TooLarge`, `Unavailable`) are raised unchanged. Without
    `generate` messages are added but not answered.
    """

    def __init__(self, store: SessionStore, account: StorageUsage | None = None, *, generate: bool = True) -> None:
        super().__init__([SESSIONS])
        self._store = store
        self._account = account
        self._generate = generate
        self._on_loop = LoopBridge()

    def _snapshot_impl(self, grants: Sequence[Grant]) -> Mapping[Path, EntryMeta]:  # noqa: ARG002
        return _SessionIndex(self._store, self._on_loop)

    def _read_binary_impl(self, path: Path) -> bytes:
        session = self._on_loop(lambda: self._get(path))
        with self._on_loop.within(self._store.loaded(session)):
            rendered_in_thread(session.history, self._on_loop)
            return self._on_loop(lambda: session.history.text).encode()

    def _write_impl(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        with self._on_loop.within(self._store.loaded(id_of(path))):
            return self._on_loop(lambda: self._append(path, data, overwrite))

    def _delete_impl(self, path: Path) -> None:
        def delete() -> None:
            try:
                self._store.delete(id_of(path))
            except NotFound:
                raise ConflictError(f"{path!r} was deleted by another caller", path) from None

        self._on_loop(delete)

    def _move_impl(self, path: Path, target: Path, overwrite: bool) -> None:  # noqa: ARG002
        """Rename a session with everything below it (S14). It never replaces another session."""

        def rename() -> None:
            new = id_of(target)
            if self._store.find(id_of(path)) is None:
                raise ConflictError(f"{path!r} was deleted by another caller", path)
            if self._store.missing(new)[:-1]:
                raise ConflictError(f"there is no session above {target!r}", target)
            try:
                self._store.rename(id_of(path), new)
            except Conflict as error:
                raise ConflictError(error.detail, target) from None

        self._on_loop(rename)

    def _copy_impl(self, path: Path, target: Path, *, members: bool, overwrite: bool) -> None:  # noqa: ARG002
        raise ConflictError(f"{path!r} is a session: it is copied by a fork", target)

    def _get(self, path: Path) -> Session:
        session = self._store.find(id_of(path))
        if session is None:
            raise NotFoundError(f"there is no entry {path!r}", path)
        return session

    def _append(self, path: Path, data: bytes, overwrite: bool) -> EntryMeta:
        session_id = id_of(path)
        if not overwrite and self._store.find(session_id) is not None:
            raise ConflictError(f"{path!r} exists", path)
        if missing := self._store.missing(session_id)[:-1]:
            raise ConflictError(f"there is no session {missing[0]!r}, so none below it", path)
        try:
            content = decode_message(data, limit=self._store.limits.message_bytes)
            if content is None:  # an empty write creates the session and adds no message (S2, S3)
                return _meta(self._store.open(session_id, self._account))
            request = TurnRequest(Message(role="user", content=content), generate=self._generate)
            return _meta(self._store.submit(session_id, request, self._account)[0])
        except UnsupportedMedia as error:
            raise InvalidArgumentError(error.detail, path) from None
        except Conflict as error:
            raise ConflictError(error.detail, path) from None


class _SessionIndex(Mapping[Path, EntryMeta]):
    """The current sessions."""

    def __init__(self, store: SessionStore, on_loop: LoopBridge) -> None:
        self._store = store
        self._on_loop = on_loop

    def __getitem__(self, path: Path) -> EntryMeta:
        try:
            session_id = id_of(path)
        except InvalidPathError:
            raise KeyError(path) from None
        meta = self._on_loop(lambda: self._look(session_id))
        if meta is None:
            raise KeyError(path)
        return meta

    def __iter__(self) -> Iterator[Path]:
        return (path for path, _ in self.below("/"))

    def __len__(self) -> int:
        return len(self._store)

    def below(self, prefix: Path) -> list[tuple[Path, EntryMeta]]:
        """Return the sessions with a prefix: all, or one family."""
        return self._on_loop(lambda: self._family(prefix))

    def _look(self, session_id: str) -> EntryMeta | None:
        session = self._store.find(session_id)
        return None if session is None else _meta(session)

    def _family(self, prefix: Path) -> list[tuple[Path, EntryMeta]]:
        root = prefix.removesuffix("/")
        if SESSIONS.startswith(root + "/"):
            members = list(self._store)
        else:
            try:
                session = self._store.find(id_of(root))
            except InvalidPathError:
                return []
            members = [] if session is None else self._store.family(session)
            if prefix.endswith("/"):
                members = members[1:]
        metas = map(_meta, members)
        return [(meta["path"], meta) for meta in metas]


def _meta(session: Session) -> EntryMeta:
    return VersionedEntryMeta(
        path=path_of(session.id),
        size=session.history.size,
        updated_at=datetime.fromtimestamp(session.history.changed_at, UTC),
        version=session.etag.strip('"'),
    )
