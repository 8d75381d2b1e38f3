"""The ledger: which agent changed which file of the shared workspace (B7).

A write by a tool is recorded for its agent. Changes by commands and by people are detected by scanning the disk. They
are recorded for the agent whose command was running, if only one was running. An agent's mark is a position in the
ledger; the later entries are the changes since. Its file is one of lines, which the disk has at marks and reports.

In memory a path is the name on disk, as `os.fsdecode` returns it. In the file and in the result of `since` it is
escaped (`escaped_name`), because both become JSON.
"""

import errno
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn, usable_file, without_damage
from cfs_agents.guards.report import ChangedFile, ChangeKind, Gap
from cfs_agents.tools.ignored import IgnoredFiles, IgnoreRules
from cfs_agents.tools.paths import PASSED_OVER, escaped_name, unescaped_name
from cfs_filesystem import Walk, open_beneath

_log = get_logger(__name__)

LEDGER = "ledger.jsonl"
"""The file of a ledger, in the folder of an agent or of a tree."""

_LARGEST_READ = 8 << 20
_MAX_NAMES = 20_000
_CHUNK = 1 << 20
_DIGEST_BYTES = 12

_SETTLED = 1_000_000_000
"""Nanoseconds after which a change of a file shows in its times."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of a path at which there is no file of the workspace. After any other error there may be one."""

_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A change of a file: the identifiers of its content before and after (None: no file), and its author.

    They are equal if the author wrote what the file contained already.
    """

    path: str
    before: str | None
    after: str | None
    by: str | None


class ChangeLog:
    """The ledger of the workspace `root`, kept in `file`; without one in memory only. Any number of threads may use it.

    With `only`, it covers these folders of the root. The folders `elsewhere`, by the names that they would have in the
    root, are at those paths of this machine. It passes over the folders `apart`, and the `ignored` files of one of its
    folders, except those that agents write. Without `contents` files are not read, but compared by size and time of
    last change.

    Paths are relative to the root. Its methods block: they look at the disk. Raises `OSError` if its own file cannot be
    written; `warn` gets a sentence for each repair of it, also where an `expected` one is missing. Files that cannot be
    looked at are not: `gap` says why changes may be missing since the last look.
    """

    def __init__(
        self,
        root: Path,
        file: Path | None = None,
        *,
        only: Collection[str] = (),
        elsewhere: Mapping[str, Path] | None = None,
        apart: Collection[str] = (),
        ignored: IgnoredFiles | None = None,
        contents: bool = True,
        warn: Warn = _log.warning,
        expected: bool = False,
    ) -> None:
        self.gap: Gap | None = None
        self._root = root
        self._file = file
        self._warn = warn
        self._expected = expected
        self._lost = False
        """Whether it was said that a part of the file is lost."""
        self._size = 0
        """Bytes of the file as this object knows it."""
        self._only = frozenset(only)
        self._elsewhere = dict(elsewhere or {})
        self._apart = frozenset(apart)
        self._ignored = ignored
        self._most_read = _LARGEST_READ if contents else -1
        self._unwritten: list[str] = []
        self._settled = True
        self._times: dict[str, int] = {}
        self._entries: list[LedgerEntry] = []
        self._marks: dict[str, int] = {}
        self._now: dict[str, str] = {}
        self._stamps: dict[str, tuple[_Stamp, str]] = {}
        self._begun: dict[str, str] = {}
        self._running: list[str] = []
        self._ran: set[str] = set()
        self._lock = threading.RLock()
        self._recall()

    def mark(self, agent_id: str, *, again: bool = True) -> None:
        """Mark the beginning of an agent's work; if not `again`, an existing mark stays."""
        with self._lock:
            if again or agent_id not in self._marks:
                if not again and self._file is not None and not self._lost:
                    self._lose(
                        f"{self._file.name} does not say when the task of {agent_id} began: changes count from now"
                    )
                self._look()
                self._marks[agent_id] = len(self._entries)
                self._times[agent_id] = now = self._time()
                self._write({"mark": agent_id, "time": now})
                self._settle()

    def restart(self, agent_id: str) -> None:
        """Forget all changes, and mark the beginning of an agent's work."""
        with self._lock:
            self._entries.clear()
            self._marks.clear()
            self._now.clear()
            self._begun.clear()
            self._unwritten.clear()
            if self._file is not None:
                self._file = usable_file(self._file, self._warn)
                self._file.unlink(missing_ok=True)
                self._size = 0
            self.mark(agent_id)

    def _time(self) -> int:
        """Return the time by the file system's clock, in nanoseconds. It lags behind the process's clock."""
        if self._file is None:
            return time.time_ns()
        self._flush()
        self._file.touch()
        return self._file.stat().st_mtime_ns

    def since(self, agent_id: str) -> tuple[ChangedFile, ...]:
        """Return the changes since an agent's mark, sorted; one that it and others made is attributed to it.

        A change without an author of a file that is passed over is left out: it may just have been read first.
        """
        with self._lock:
            self._look()
            self._settle()
            passes_over = self._passes_over()
            by_path: dict[str, list[LedgerEntry]] = {}
            for entry in self._entries[self._marks.get(agent_id, 0) :]:
                if entry.by is not None or not passes_over(entry.path):
                    by_path.setdefault(entry.path, []).append(entry)
        changes = []
        for path, entries in sorted(by_path.items()):
            if (kind := _kind(entries[0].before, entries[-1].after)) is not None:
                is_own = any(entry.by == agent_id for entry in entries)
                changes.append(ChangedFile(escaped_name(path), kind, agent_id if is_own else entries[-1].by))
        return tuple(changes)

    def unmade(self, agent_id: str, names: Iterable[str], places: Mapping[str, str]) -> tuple[str, ...]:
        """Return those of some named files that were not created, changed or written again since an agent's mark.

        `places` maps the prefixes under which folders are shown to those in the ledger. A name without a folder matches
        any file of that name. Files elsewhere are not known, and never returned.
        """
        written = {change.path for change in self.since(agent_id) if change.kind != "deleted"}
        return tuple(name for name in names if not self._is_made(agent_id, name, written, places))

    def _is_made(self, agent_id: str, name: str, written: Collection[str], places: Mapping[str, str]) -> bool:
        for prefix, target in places.items():
            if name.startswith(prefix):
                return self._was_written(agent_id, target + name.removeprefix(prefix), written)
        short = name.removeprefix("./")
        if short.startswith(("/", "~")) or ".." in short.split("/"):
            return True
        candidates = [folder + short for folder in places.values()]
        candidates += [
            folder + short[len(alias) - 1 :] for alias, folder in places.items() if f"/{short}".startswith(alias)
        ]
        if any(written_path.endswith(f"/{short}") for written_path in written):
            return True
        return any(self._was_written(agent_id, candidate, written) for candidate in candidates)

    def _was_written(self, agent_id: str, path: str, written: Collection[str]) -> bool:
        since, status = self._times.get(agent_id), self._stat(path)
        again = status is not None and since is not None and max(status.st_mtime_ns, status.st_ctime_ns) > since
        return again or path in written

    def known_to(self, agent_id: str, path: str) -> str | None:
        """Return the state of a file after an agent's last write, or else at its mark."""
        with self._lock:
            entries = [entry for entry in self._entries[self._marks.get(agent_id, 0) :] if entry.path == path]
            for entry in reversed(entries):
                if entry.by == agent_id:
                    return entry.after
            return entries[0].before if entries else self._now.get(path)

    def last_by(self, path: str) -> str | None:
        """Return the agent that changed a file last, or None if it is unknown."""
        with self._lock:
            changes = (entry for entry in reversed(self._entries) if entry.path == path and entry.before != entry.after)
            return next((entry.by for entry in changes), None)

    def has_written(self, agent_id: str, path: str) -> bool:
        """Return whether an agent has written a file since its mark, also with the content that the file had.

        Of a file that is passed over it is not known who wrote it: that somebody did is enough.
        """
        with self._lock:
            entries = self._entries[self._marks.get(agent_id, 0) :]
            if any(entry.path == path and entry.by == agent_id for entry in entries):
                return True
            return self._was_written(agent_id, path, ()) and self.passes_over(path)

    @contextmanager
    def writing(self, agent_id: str | None, path: str) -> Iterator[str | None]:
        """Reserve the writes of a file for this agent in this block; yields the identifier of its content.

        None is somebody who is no agent.
        """
        with self._lock:
            self._enter(path, self._print(path), self._suspect())
            yield self._now.get(path)
            self._enter(path, self._print(path), agent_id, again=agent_id is not None)
            self._begun.pop(path, None)

    def begins(self, agent_id: str, path: str) -> None:
        """Record that an agent is about to write a file, so that its author is known after a kill in the middle."""
        with self._lock:
            self._begun[path] = agent_id
            self._write({"begins": escaped_name(path), "by": agent_id})

    def present(self, path: str) -> str | None:
        """Return the name of a file's present content; equal names are equal contents."""
        with self._lock:
            self._enter(path, self._print(path), self._suspect())
            return self._now.get(path)

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None where there is no file."""
        status = self._stat(path)
        return status.st_size if status is not None else None

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            with self._folder_of(path) as (folder, name):
                return _status(folder, name)
        except (OSError, ValueError):
            return None

    def begin_command(self, agent_id: str) -> None:
        """Begin a command of an agent: changes are entered for it unless other agents run commands, too."""
        with self._lock:
            self._look()
            self._running.append(agent_id)
            self._ran.add(agent_id)

    def end_command(self, agent_id: str) -> None:
        """End a command of an agent."""
        with self._lock:
            self._look()
            self._running.remove(agent_id)
            self._ran = set(self._running)

    def _suspect(self) -> str | None:
        """Name the agent whose commands alone were running since the last look."""
        return next(iter(self._ran)) if len(self._ran) == 1 else None

    def _look(self) -> None:
        by = self._suspect()
        fingerprints: dict[str, str | None] = {}
        try:
            self.gap = None if self._read_into(fingerprints) else "limits"
        except OSError as error:  # such as no free descriptor: the work continues without this look
            self.gap = "unreadable"
            _log.warning("ledger.unreadable", folder=str(self._root), reason=error.strerror or str(error))
            return
        for path in [path for path in self._now if path not in fingerprints]:
            fingerprints[path] = self._print(path)  # it may be in a folder that is passed over, or too far back
        for path, now in fingerprints.items():
            self._enter(path, now, by, at_once=False)
        self._flush()

    def _read_into(self, fingerprints: dict[str, str | None]) -> bool:
        """Name the content of each file; return whether all folders were read.

        By descriptors, as commands may replace folders by links.
        """
        complete = True
        for base, prefix in self._bases():
            root, rules = open_beneath(base, ()), self._rules_in(base)
            try:
                enters = partial(_enters, rules)
                walk = Walk(root, partial(self._looks_at, prefix), enters=enters, limit=_MAX_NAMES)
                for parts, folder, entry in walk:
                    if rules is not None and rules.ignores(parts, folder=False):
                        continue
                    path = "/".join([*prefix, *parts])
                    fingerprints[path] = self._print_in(path, folder, entry.name)
                complete = complete and walk.complete
            finally:
                os.close(root)
        return complete

    def _bases(self) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Yield the folders that it covers, with what precedes the paths in each."""
        yield self._root, ()
        yield from ((folder, (name,)) for name, folder in self._elsewhere.items())

    def _rules_in(self, base: Path) -> IgnoreRules | None:
        return self._ignored.now() if self._ignored is not None and self._ignored.root == base else None

    def passes_over(self, path: str) -> bool:
        """Return whether changes of a file are seen only if its path is known already, because an agent wrote it."""
        return self._passes_over()(path)

    def _passes_over(self) -> Callable[[str], bool]:
        """Return `passes_over` by the rules as they are now."""
        rules = [(prefix, found) for base, prefix in self._bases() if (found := self._rules_in(base)) is not None]

        def passes_over(path: str) -> bool:
            parts = tuple(path.split("/"))
            ignored = (found.hides(parts[len(prefix) :]) for prefix, found in rules if parts[: len(prefix)] == prefix)
            return not PASSED_OVER.isdisjoint(parts) or any(ignored)

        return passes_over

    def _looks_at(self, prefix: tuple[str, ...], parts: Sequence[str]) -> bool:
        if parts[-1] in PASSED_OVER:
            return False
        if not prefix and (parts[0] in self._elsewhere or (self._only and parts[0] not in self._only)):
            return False
        return not self._apart or "/".join([*prefix, *parts]) not in self._apart

    def place(self, path: str) -> Path:
        """Return this machine's path of a path of the ledger; the empty one is the root."""
        name, _, below = path.partition("/")
        return self._elsewhere[name] / below if name in self._elsewhere else self._root / path

    def _enter(self, path: str, now: str | None, by: str | None, *, at_once: bool = True, again: bool = False) -> None:
        """Add the change of a file, if it has changed, or was written `again` with the content that it had."""
        before = self._now.get(path)
        if before == now and not (again and now is not None):
            return
        if now is None:
            del self._now[path]
            self._stamps.pop(path, None)
        else:
            self._now[path] = now
        by = self._begun.pop(path, None) or by
        entry = LedgerEntry(path, before, now, by)
        self._entries.append(entry)
        self._write(self._line_of(entry), at_once=at_once)

    @contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder that a file is in, through no link; raises `OSError`."""
        *folders, name = path.split("/")
        elsewhere = self._elsewhere.get(folders[0]) if folders else None
        folder = open_beneath(self._root, folders) if elsewhere is None else open_beneath(elsewhere, folders[1:])
        try:
            yield folder, name
        finally:
            os.close(folder)

    def _print(self, path: str) -> str | None:
        try:
            with self._folder_of(path) as (folder, name):
                return self._print_in(path, folder, name)
        except ValueError:
            return None
        except OSError as error:
            return None if error.errno in _ABSENT else self._now.get(path)

    def _print_in(self, path: str, folder: int, name: str) -> str | None:
        """Name a file's content by its hash, read again only when the file is not the one that it was.

        A file that cannot be read, because another program has a lease on it for example, is taken to be unchanged.

        The clock of files is coarse and their numbers are used again, so of a file that has just been written nothing
        is remembered: another one might look the same.
        """
        if (status := _status(folder, name)) is None:
            return None
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        cached = self._stamps.get(path)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        try:
            named = _hash(folder, name, status, self._most_read)
        except OSError as error:
            return None if error.errno in _ABSENT else self._now.get(path) or _unread(status)
        if named is not None and time.time_ns() - status.st_ctime_ns > _SETTLED:
            self._stamps[path] = (stamp, named)
        return named

    def _recall(self) -> None:
        """Read the file up to the first damaged line. A last line that a kill has left incomplete is removed."""
        if self._file is None:
            return
        self._file = usable_file(self._file, self._lose)
        exists = self._file.exists()
        if self._expected and not self._lost and not (exists and self._file.stat().st_size):
            problem = "is empty" if exists else "is missing"
            self._lose(f"{self._file.name} in {self._file.parent} {problem}: who changed which files is not known")
        if not exists:
            return
        good = bytearray()
        lines = self._file.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            whole = line.endswith(b"\n")
            try:
                if whole:
                    self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                whole = False
            if not whole:
                if number == len(lines) and b"\0" not in line and not line.endswith(b"\n"):
                    os.truncate(self._file, len(good))
                    self._lose(
                        f"the last line of {self._file.name} in {self._file.parent} was incomplete: it is left out"
                    )
                else:
                    problem = f"cannot be read from line {number} on: who changed which files is not known in full"
                    self._file = without_damage(self._file, bytes(good), problem, self._lose)
                break
            good += line
        self._size = len(good)

    def _lose(self, sentence: str) -> None:
        self._lost = True
        self._warn(sentence)

    def _take(self, line: dict[str, Any]) -> None:
        if "mark" in line:
            self._marks[line["mark"]] = len(self._entries)
            if "time" in line:
                self._times[line["mark"]] = line["time"]
            return
        if "begins" in line:
            self._begun[unescaped_name(line["begins"])] = line["by"]
            return
        entry = LedgerEntry(unescaped_name(line["path"]), line["before"], line["after"], line["by"])
        if "stamp" in line and entry.after is not None:
            modified, changed, size, inode = line["stamp"]
            self._stamps[entry.path] = (modified, changed, size, inode), entry.after
        self._entries.append(entry)
        self._begun.pop(entry.path, None)
        if entry.after is None:
            self._now.pop(entry.path, None)
        else:
            self._now[entry.path] = entry.after

    def _write(self, line: dict[str, Any], *, at_once: bool = True) -> None:
        self._unwritten.append(json.dumps(line) + "\n")
        if at_once:
            self._flush()

    def _flush(self) -> None:
        """Append the lines. They survive a kill of this process; `_settle` lets them survive a power loss."""
        lines, self._unwritten = self._unwritten, []
        if self._file is None:
            return
        repairs: list[str] = []
        self._file = usable_file(self._file, repairs.append)
        if (self._file.stat().st_size if self._file.exists() else 0) != self._size:
            problem = "was changed by another program while the agents had it open: it is written again"
            data = "".join(json.dumps(line) + "\n" for line in self._dumped()).encode()
            self._file = without_damage(self._file, data, problem, repairs.append)
            self._size = len(data)
        elif lines:
            self._settled = False
            data = "".join(lines).encode()
            with self._file.open("ab") as file:
                file.write(data)
            self._size += len(data)
        for sentence in repairs[:1]:
            self._warn(sentence)

    def _dumped(self) -> Iterator[dict[str, Any]]:
        """Return the lines of a file that says the same."""
        for position in range(len(self._entries) + 1):
            for agent_id, mark in self._marks.items():
                if mark == position:
                    yield {"mark": agent_id} | ({"time": self._times[agent_id]} if agent_id in self._times else {})
            if position < len(self._entries):
                yield self._line_of(self._entries[position])
        for path, agent_id in self._begun.items():
            yield {"begins": escaped_name(path), "by": agent_id}

    def _line_of(self, entry: LedgerEntry) -> dict[str, Any]:
        """Return the line of an entry, with the stamp of a file that was read: the next process need not read it."""
        line = {"path": escaped_name(entry.path), "before": entry.before, "after": entry.after, "by": entry.by}
        stamp, named = self._stamps.get(entry.path, (None, None))
        return line if self._most_read < 0 or named is None or named != entry.after else line | {"stamp": stamp}

    def _settle(self) -> None:
        """Wait until the disk has all lines."""
        self._flush()
        if self._file is not None and not self._settled:
            with self._file.open("rb") as file:
                os.fsync(file.fileno())
            self._settled = True


def _kind(before: str | None, after: str | None) -> ChangeKind | None:
    if before == after:
        return None
    return "created" if before is None else "deleted" if after is None else "changed"


def _enters(rules: IgnoreRules | None, parts: Sequence[str]) -> bool:
    return rules is None or not rules.ignores(parts, folder=True)


def _status(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a regular file; links are ignored, as they lead out of the workspace."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _hash(folder: int, name: str, status: os.stat_result, max_bytes: int) -> str | None:
    """Name the content of a regular file; None if it was replaced just now, perhaps by a pipe. Raises `OSError`."""
    if status.st_size > max_bytes:
        return _unread(status)
    digest = blake2b(digest_size=_DIGEST_BYTES)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        if not os.path.samestat(os.fstat(descriptor), status):
            return None
        left = max_bytes  # it may grow all the time
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def content_id(text: str) -> str:
    """Name the content of a file as `_hash` does."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).hexdigest()


def _unread(status: os.stat_result) -> str:
    """Name the content of a file without reading it."""
    return f"{status.st_size}-{status.st_mtime_ns}"
