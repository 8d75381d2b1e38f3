"""`/dav/sessions`: every root session a file, flat (W2, W3)."""

import io
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from cfs.errors import Forbidden, InvalidIdentifier, NotFound
from cfs.ids import is_scratch
from cfs_server.dav import properties
from cfs_server.dav.clients import is_rclone
from cfs_server.dav.kept import Kept
from cfs_server.dav.places import Family, Place, ScratchPlace, SessionPlace, Top, in_sessions
from cfs_server.dav.puts import Put, require_size
from cfs_server.dav.rows import MEDIA_TYPE, Row, row_of, scratch_entry
from cfs_server.dav.scratch import CAP_FILE, Scratch
from cfs_server.sessions.gate import SessionGate
from cfs_server.sessions.session import Session
from cfs_webdav.tree import Conditions, Entry, Tree

_NO_CONDITIONS = Conditions()


class SessionTree(Tree):
    """The root sessions that one caller may use, for one request; made anywhere, used by threads or on the loop.

    Whoever may do anything at a session learns that it is there, and its size and version only by a right to list or
    to read it, as in REST. An id that reads as a program's own file (`cfs.ids`) cannot be reached here.

    A program that saves by renaming the old file away first (`chat1` to `chat1~`) and writing the new one gets a copy
    of the transcript as `chat1~`; the session stays where it is, for everybody. Were it renamed, its turn, its agent
    and other clients would lose it, and the new file would be another session; were it only hidden, the program would
    break off by a crash, and the session be gone. So the PUT that follows meets the session, and the rules find the one
    message that was added. One that insists on a new file by `If-None-Match: *` is let through for a minute.
    """

    flat = True
    namespace = properties.NAMESPACE
    _mount = "/dav/sessions"

    def __init__(self, gate: SessionGate, kept: Kept, user_agent: str = "") -> None:
        self.gate = gate
        self._on_loop = kept.on_loop
        self._scratch = kept.scratch
        self._clients = kept.clients
        self._user_agent = user_agent
        self._rows: dict[str, Row] = {}  # of sessions that the caller may see, as they were when it looked
        self._properties: dict[str, Mapping[str, str]] = {}

    # -- looking --------------------------------------------------------------------------------------------------

    def look(self, path: str) -> Entry | None:
        """Describe a session, a scratch file or a collection as it is now."""
        with suppress(InvalidIdentifier):
            return self._on_loop(partial(self._look, self.place(path), path))
        return None

    def check(self, path: str) -> None:
        """Raise `InvalidIdentifier` for what can be no session, and `NotGranted` where the caller may do nothing."""
        match self.place(path):
            case SessionPlace(session_id) | Family(session_id):
                self.gate.require_any(session_id)

    def members(self, path: str) -> Iterable[Entry]:
        """Describe what is directly in a collection, all as it was at one moment."""
        rows, collections, scratch = self._on_loop(partial(self._below, self.place(path), path))
        shown = {self.path_of(row.id): row for row in rows if self._is_reachable(row.id)}
        self._rows |= shown
        entries = [row.entry(where) for where, row in shown.items()]
        entries += [Entry(where, collection=True, modified=at) for where, at in collections]
        return entries + [scratch_entry(where, file) for where, file in scratch]

    def open(self, path: str) -> BinaryIO:
        """Open the transcript as it is now: who wants to wait reads by `cfs_server.dav.reading`."""
        return io.BytesIO(self._content(path)[0])

    def scratch(self, path: str) -> Scratch:
        """Return a scratch file; on the event loop. Raises `NotFound`."""
        return self._scratch.get(self._key(path))

    def properties(self, path: str) -> Mapping[str, str]:
        """Return the settings and the state of a session."""
        if (known := self._properties.get(path)) is not None:
            return known
        place = self.place(path)
        if not isinstance(place, SessionPlace):
            return {}
        if path not in self._rows:
            self.look(path)
        row = self._rows.get(path)
        found: dict[str, str] = {}
        if row is not None:
            found.update(properties.state_shown(row.state, row.queued))
            if self.gate.may("read_binary", row.id):
                found.update(properties.settings_shown(row.settings))
        self._properties[path] = found  # each of them is asked for by a call
        return found

    # -- changing -------------------------------------------------------------------------------------------------

    def write(self, path: str, body: BinaryIO, conditions: Conditions) -> str:
        """Do what a PUT means: see `cfs_server.dav.puts`; the bytes of a scratch file are kept as they are."""
        place = self.place(path)
        if isinstance(place, SessionPlace):
            self._on_loop(partial(require_size, self.gate, place.id, body.seek(0, os.SEEK_END)))
            body.seek(0)
            return self._put(place.id, body.read(), conditions)
        if isinstance(place, ScratchPlace):
            data = body.read(CAP_FILE + 1)
            return self._on_loop(partial(self._scratch.write, self._key(path), data, conditions)).etag
        raise self._no_file(path)

    def make(self, path: str) -> None:
        """Make an empty session, or scratch file, if there is none (S2)."""
        place = self.place(path)
        if isinstance(place, SessionPlace):
            self._on_loop(partial(self.gate.open, place.id))
        elif isinstance(place, ScratchPlace):
            if self.look(path) is None:
                self._on_loop(partial(self._scratch.put, self._key(path), b""))
        else:
            raise self._no_file(path)

    def make_collection(self, path: str) -> None:  # noqa: ARG002 - wherever it is
        """Refuse: there are no collections but those that sessions make."""
        raise Forbidden(f"no collection can be made in {self._mount}: write a session, or use /dav/workspaces")

    def delete(self, path: str) -> None:
        """Delete a session with everything below it (S2), or a scratch file."""
        place = self.place(path)
        if isinstance(place, SessionPlace):
            self._on_loop(partial(self._delete, place.id))
        elif isinstance(place, ScratchPlace):
            self._on_loop(partial(self._scratch.delete, self._key(path)))
        else:
            raise self._no_file(path)

    def copy(self, path: str, target: str) -> None:
        """Fork a session (S14); to and from scratch files go the bytes, which a session takes as those of a PUT."""
        match self.place(path), self.place(target):
            case SessionPlace(source), SessionPlace(new):
                self._on_loop(partial(self.gate.fork, source, new))
            case ScratchPlace(), SessionPlace(new):
                self._publish(path, new)
            case ((SessionPlace() | ScratchPlace()), ScratchPlace()):
                self._copy_to_scratch(path, target)
            case source, _:
                raise self._no_file(target if isinstance(source, SessionPlace | ScratchPlace) else path)

    def move(self, path: str, target: str) -> None:
        """Rename a session (S14); a scratch file that takes its place is a PUT. To a scratch file see above."""
        match self.place(path), self.place(target):
            case SessionPlace(source), SessionPlace(new):
                self._on_loop(partial(self.gate.rename, source, new))
            case SessionPlace(source), ScratchPlace():
                self._copy_to_scratch(path, target)
                self._on_loop(partial(self._set_aside, source))
            case ScratchPlace(), SessionPlace(new):
                file = self._publish(path, new)
                self._on_loop(partial(self._scratch.delete, self._key(path), file))
            case ScratchPlace(), ScratchPlace():
                self._on_loop(partial(self._scratch.move, self._key(path), self._key(target)))
            case source, _:
                raise self._no_file(target if isinstance(source, SessionPlace | ScratchPlace) else path)

    def may_overwrite(self, path: str, target: str) -> bool:
        """Let no session be replaced by another one; what a scratch file would do to it is judged as a PUT."""
        match self.place(path), self.place(target):
            case _, ScratchPlace():
                return True
            case ScratchPlace(), SessionPlace():
                return True
        return False

    def may_write(self, path: str) -> bool:
        """Tell whether the caller may write there: only files can be locked."""
        match self.place(path):
            case SessionPlace(session_id):
                return self.gate.may("write", session_id)
            case ScratchPlace():
                return True
        return False

    def set_property(self, path: str, name: str, value: str | None, *, dry_run: bool) -> bool:
        """Change a setting (S9); properties of other namespaces are no business of a session."""
        place = self.place(path)
        if not isinstance(place, SessionPlace) or not properties.is_ours(name):
            return False
        self._on_loop(partial(self._configure, place.id, name, value, dry_run=dry_run))
        self._rows.pop(path, None)
        self._properties.pop(path, None)
        return True

    # -- what differs below the roots -----------------------------------------------------------------------------

    def place(self, path: str) -> Place | None:
        """Tell what a path stands for."""
        return in_sessions(path)

    def path_of(self, session_id: str) -> str:
        """Return the path of a session."""
        return "/" + session_id

    def _is_reachable(self, session_id: str) -> bool:
        """Tell whether the path of a session stands for it."""
        return not is_scratch(session_id)

    def _listed(self, place: Place | None) -> list[Session]:
        """List the sessions that are directly in a collection; on the loop."""
        return self.gate.page(limit=1 << 40) if isinstance(place, Top) else []

    def _collections(self, place: Place | None) -> list[tuple[str, float]]:  # noqa: ARG002 - for below the roots
        """List the paths of the collections in one, with the times when they changed; on the loop."""
        return []

    def _look_at_family(self, place: Family, path: str) -> Entry | None:  # noqa: ARG002
        return None

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _look(self, place: Place | None, path: str) -> Entry | None:
        match place:
            case Top():
                return Entry("/", collection=True)
            case Family():
                return self._look_at_family(place, path)
            case ScratchPlace():
                file = self._scratch.find(self._key(path))
                return None if file is None else scratch_entry(path, file)
            case SessionPlace(session_id):
                row = self._row_of(session_id)
                if row is None:
                    return None
                if not self._sees(session_id):
                    return Entry(path, media_type=MEDIA_TYPE)
                self._rows[path] = row
                return row.entry(path)
        return None

    def _below(
        self, place: Place | None, path: str
    ) -> tuple[list[Row], list[tuple[str, float]], list[tuple[str, Scratch]]]:
        mine = self._scratch.below(self._key(path).rstrip("/") + "/")
        files = [(key.removeprefix(self._mount), file) for key, file in mine]
        return [row_of(each) for each in self._listed(place)], self._collections(place), files

    def _row_of(self, session_id: str) -> Row | None:
        session = self.gate.known(session_id)
        return None if session is None else row_of(session)

    def _delete(self, session_id: str) -> None:
        self._clients.require_may_delete(self._user_agent, session_id)
        self.gate.delete(session_id)

    def _set_aside(self, session_id: str) -> None:
        self._clients.sets_aside(self.gate.get(session_id, "read_binary").key)

    def _configure(self, session_id: str, name: str, value: str | None, *, dry_run: bool) -> None:
        session = self.gate.get(session_id, "write")
        change = properties.change_of(name, value)
        if not dry_run:
            session.change_settings(change)

    def _transcript(self, session_id: str) -> tuple[str, str]:
        session = self.gate.get(session_id, "read_binary")
        return session.history.text, session.etag

    # -- in the request's thread ----------------------------------------------------------------------------------

    def _content(self, path: str) -> tuple[bytes, str | None]:
        """Return the bytes that are at a path, and the ETag of the transcript that they are, or were copied from."""
        match self.place(path):
            case SessionPlace(session_id):
                text, etag = self._on_loop(partial(self._transcript, session_id))
                return text.encode(), etag
            case ScratchPlace():
                file = self._on_loop(partial(self._scratch.get, self._key(path)))
                return file.data, file.view
        raise self._no_file(path)

    def _copy_to_scratch(self, path: str, target: str) -> None:
        data, view = self._content(path)
        self._on_loop(partial(self._scratch.put, self._key(target), data, view))

    def _publish(self, path: str, session_id: str) -> Scratch:
        """Write a scratch file to a session; return what was written."""
        file = self._on_loop(partial(self._scratch.get, self._key(path)))
        self._put(session_id, file.data, _NO_CONDITIONS, file.view or "")
        return file

    def _put(self, session_id: str, data: bytes, conditions: Conditions, hint: str = "") -> str:
        if is_rclone(self._user_agent):
            self._on_loop(partial(self._clients.uploads, self._user_agent, session_id))
        return Put(self.gate, self._clients, session_id, data, conditions, hint).run(self._on_loop)

    def _sees(self, session_id: str) -> bool:
        """Tell whether the caller may know more of a session than that it is there."""
        return any(self.gate.may(operation, session_id) for operation in ("list", "file", "read_binary"))

    def _key(self, path: str) -> str:
        """Name a scratch file: a principal has those of all mounts in one place."""
        return self._mount + path

    def _no_file(self, path: str) -> NotFound | Forbidden:
        if self.place(path) is None:
            return NotFound(f"nothing can be at {path!r} in {self._mount}")
        return Forbidden(f"{path!r} in {self._mount} is a collection that is there as long as its sessions are")
