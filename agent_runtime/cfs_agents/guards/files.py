"""Guards for the files of a tree: a change ledger, claim checks, locks, and stale-write detection (B7)."""

import errno
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cfs_agents.base.disk import Warn, usable_file, without_damage
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import Language, Messages, catalogue
from cfs_agents.context import Context, ContextItem
from cfs_agents.guards.report import Change, ChangeKind, Gap
from cfs_agents.tools.files import WORKSPACE, escaped_name, file_path, unescaped_name
from cfs_agents.tools.reading import ReadRanges, Unread
from cfs_agents.tools.registry import ToolError
from cfs_filesystem import Walk, open_beneath

# -- the ledger: which agent changed which file of the shared workspace (B7) ------------------------------------------
#
# A write by a tool is recorded for its agent. Changes by commands and by people are detected by scanning the disk. They
# are recorded for the agent whose command was running, if only one was running. An agent's mark is a position in the
# ledger; the later entries are the changes since. Its file is one of lines, which the disk has at marks and reports.
#
# In memory a path is the name on disk, as `os.fsdecode` returns it. In the file and in the result of `since` it is
# escaped (`escaped_name`), because both become JSON.

_LARGEST_READ = 8 << 20
_MAX_NAMES = 20_000
_CHUNK = 1 << 20
_DIGEST_BYTES = 12
_PASSED_OVER = frozenset({".cfs", ".git", ".venv", "__pycache__", "node_modules"})
"""Folders of programs for themselves: too large to read each time, and not claimed by agents."""

_SETTLED = 1_000_000_000
"""Nanoseconds after which a change of a file shows in its times."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of a path at which there is no file of the workspace. After any other error there may be one."""

_Stamp = tuple[int, int, int, int]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a file: the identifiers of its content before and after (None: no file), and its author.

    They are equal if the author wrote what the file contained already.
    """

    path: str
    before: str | None
    after: str | None
    by: str | None


class ChangeLog:
    """The ledger of the workspace `root`, kept in `file`; without one in memory only. Any number of threads may use it.

    With `only`, it covers these folders of the root. It ignores the folders `apart`. Without
    `contents` files are not read, but compared by size and time of last change.

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
        apart: Collection[str] = (),
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
        self._apart = frozenset(apart)
        self._most_read = _LARGEST_READ if contents else -1
        self._unwritten: list[str] = []
        self._settled = True
        self._times: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._marks: dict[str, int] = {}
        self._now: dict[str, str] = {}
        self._stamps: dict[str, tuple[_Stamp, str]] = {}
        self._begun: dict[str, str] = {}
        self._running: list[str] = []
        self._ran: set[str] = set()
        self._lock = threading.RLock()
        self._recall()

    # -- marks ----------------------------------------------------------------------------------------------------

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

    def since(self, agent_id: str) -> tuple[Change, ...]:
        """Return the changes since an agent's mark, sorted; one that it and others made is attributed to it.

        A change without an author in a folder of `_PASSED_OVER` is left out: it may just have been read first.
        """
        with self._lock:
            self._look()
            self._settle()
            found: dict[str, list[Entry]] = {}
            for entry in self._entries[self._marks.get(agent_id, 0) :]:
                if entry.by is not None or _PASSED_OVER.isdisjoint(entry.path.split("/")):
                    found.setdefault(entry.path, []).append(entry)
        changes = []
        for path, entries in sorted(found.items()):
            if (kind := _kind(entries[0].before, entries[-1].after)) is not None:
                own = any(entry.by == agent_id for entry in entries)
                changes.append(Change(escaped_name(path), kind, agent_id if own else entries[-1].by))
        return tuple(changes)

    def unmade(self, agent_id: str, names: Iterable[str], places: Mapping[str, str]) -> tuple[str, ...]:
        """Return those of some named files that were not created, changed or written again since an agent's mark.

        `places` maps the prefixes under which folders are shown to those in the ledger. A name without a folder matches
        any file of that name. Files elsewhere are not known, and never returned.
        """
        made = {change.path for change in self.since(agent_id) if change.kind != "deleted"}
        return tuple(name for name in names if not self._is_made(agent_id, name, made, places))

    def _is_made(self, agent_id: str, name: str, made: Collection[str], places: Mapping[str, str]) -> bool:
        for shown, kept in places.items():
            if name.startswith(shown):
                return self._was_written(agent_id, kept + name.removeprefix(shown), made)
        short = name.removeprefix("./")
        if short.startswith(("/", "~")) or ".." in short.split("/"):
            return True
        candidates = [kept + short for kept in places.values()]
        candidates += [
            kept + short[len(shown) - 1 :] for shown, kept in places.items() if f"/{short}".startswith(shown)
        ]
        if any(each.endswith(f"/{short}") for each in made):
            return True
        return any(self._was_written(agent_id, each, made) for each in candidates)

    def _was_written(self, agent_id: str, path: str, made: Collection[str]) -> bool:
        since, status = self._times.get(agent_id), self._stat(path)
        again = status is not None and since is not None and max(status.st_mtime_ns, status.st_ctime_ns) > since
        return again or path in made

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
        """Return whether an agent has written a file since its mark, also with the content that the file had."""
        with self._lock:
            entries = self._entries[self._marks.get(agent_id, 0) :]
            return any(entry.path == path and entry.by == agent_id for entry in entries)

    # -- what happens ---------------------------------------------------------------------------------------------

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

    # -- looking --------------------------------------------------------------------------------------------------

    def _suspect(self) -> str | None:
        """Name the agent whose commands alone were running since the last look."""
        return next(iter(self._ran)) if len(self._ran) == 1 else None

    def _look(self) -> None:
        by = self._suspect()
        there: dict[str, str | None] = {}
        try:
            self.gap = None if self._read_into(there) else "limits"
        except OSError as error:  # such as no free descriptor: the work continues without this look
            self.gap = "unreadable"
            _log.warning("ledger.unreadable", folder=str(self._root), reason=error.strerror or str(error))
            return
        for path in [path for path in self._now if path not in there]:
            there[path] = self._print(path)  # it may be in a folder that is passed over, or too far back
        for path, now in there.items():
            self._enter(path, now, by, at_once=False)
        self._flush()

    def _read_into(self, there: dict[str, str | None]) -> bool:
        """Name the content of each file; return whether all folders were read.

        By descriptors, as commands may replace folders by links.
        """
        root = open_beneath(self._root, ())
        try:
            walk = Walk(root, self._looks_at, limit=_MAX_NAMES)
            for parts, folder, entry in walk:
                path = "/".join(parts)
                there[path] = self._print_in(path, folder, entry.name)
            return walk.complete
        finally:
            os.close(root)

    def _looks_at(self, parts: Sequence[str]) -> bool:
        if parts[-1] in _PASSED_OVER or (self._only and parts[0] not in self._only):
            return False
        return not self._apart or "/".join(parts) not in self._apart

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
        entry = Entry(path, before, now, by)
        self._entries.append(entry)
        self._write(_line_of(entry), at_once=at_once)

    @contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder that a file is in, through no link; raises `OSError`."""
        *folders, name = path.split("/")
        folder = open_beneath(self._root, folders)
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
        known = self._stamps.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            named = _hash(folder, name, status, self._most_read)
        except OSError as error:
            return None if error.errno in _ABSENT else self._now.get(path) or _unread(status)
        if named is not None and time.time_ns() - status.st_ctime_ns > _SETTLED:
            self._stamps[path] = (stamp, named)
        return named

    # -- on disk --------------------------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Read the file up to the first damaged line. A last line that a kill has left incomplete is removed."""
        if self._file is None:
            return
        self._file = usable_file(self._file, self._lose)
        there = self._file.exists()
        if self._expected and not self._lost and not (there and self._file.stat().st_size):
            problem = "is empty" if there else "is missing"
            self._lose(f"{self._file.name} in {self._file.parent} {problem}: who changed which files is not known")
        if not there:
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
        entry = Entry(unescaped_name(line["path"]), line["before"], line["after"], line["by"])
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
                yield _line_of(self._entries[position])
        for path, agent_id in self._begun.items():
            yield {"begins": escaped_name(path), "by": agent_id}

    def _settle(self) -> None:
        """Wait until the disk has all lines."""
        self._flush()
        if self._file is not None and not self._settled:
            with self._file.open("rb") as file:
                os.fsync(file.fileno())
            self._settled = True


def _line_of(entry: Entry) -> dict[str, Any]:
    return {"path": escaped_name(entry.path), "before": entry.before, "after": entry.after, "by": entry.by}


def _kind(before: str | None, after: str | None) -> ChangeKind | None:
    if before == after:
        return None
    return "created" if before is None else "deleted" if after is None else "changed"


def _status(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a regular file; links are ignored, as they lead out of the workspace."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _hash(folder: int, name: str, status: os.stat_result, most: int) -> str | None:
    """Name the content of a regular file; None if it was replaced just now, perhaps by a pipe. Raises `OSError`."""
    if status.st_size > most:
        return _unread(status)
    digest = blake2b(digest_size=_DIGEST_BYTES)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        if not os.path.samestat(os.fstat(descriptor), status):
            return None
        left = most  # it may grow all the time
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def _name_of(text: str) -> str:
    """Name the content of a file as `_hash` does."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).hexdigest()


def _unread(status: os.stat_result) -> str:
    """Name the content of a file without reading it."""
    return f"{status.st_size}-{status.st_mtime_ns}"


# -- one-line reports of finished children, for a long context (B7) ---------------------------------------------------

_REPORT = re.compile(r"^\[[A-Za-z0-9_./-]+ [^\]\n]+\]$", re.MULTILINE)
_LONGEST = 120


def digested(context: Context, is_report: Callable[[ContextItem], bool], *, keep: int = 2) -> Context:
    """Shorten all reports but the newest `keep` to one line. Shortened reports stay unchanged.

    `is_report` detects messages that contain a report.
    """
    reports = [item for item in context if is_report(item) and not item.destroyed]
    old = reports[: max(0, len(reports) - keep)]
    changed = [item.with_content(line) for item in old if (line := one_line(item.message.content)) is not None]
    return context.replacing(changed) if changed else context


def one_line(text: str) -> str | None:
    """Return a report in one line: agent, status, first line of the summary. None if this is not shorter."""
    found = _REPORT.search(text)
    if found is None:
        return None
    summary = next((line.strip() for line in text[found.end() :].splitlines() if line.strip()), "")
    summary = summary if len(summary) <= _LONGEST else f"{summary[:_LONGEST]}..."
    line = f"{found.group()} {summary}"
    return line if len(line) < len(text) else None


_MADE = ("created_files", "files_created", "new_files")
_CHANGED = ("changed_files", "modified_files", "updated_files", "edited_files")
_DELETED = ("deleted_files", "removed_files")
_MOST_NAMED = 5


def check_claims(
    details: Mapping[str, Any], agent_id: str, facts: Sequence[Change], ledger: ChangeLog, language: Language = "en"
) -> tuple[str, ...]:
    """Return the problems in the claims of an agent. Blocks: it reads the files."""
    say = catalogue(language)
    reasons: list[str] = []
    wrong: dict[str, list[str]] = {}
    for key in (*_MADE, *_CHANGED, *_DELETED):
        if key not in details:
            continue
        paths = details[key]
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            reasons.append(say.no_paths.format(key))
            continue
        for path in paths:
            if (problem := _problem(path, agent_id, facts, ledger, deleted=key in _DELETED)) is not None:
                wrong.setdefault(problem, []).append(path)
    return (*reasons, *_told(wrong, say))


def relative(path: str) -> str | None:
    """Return a path as it is below the workspace; None where it leads elsewhere, or is none."""
    try:
        place = file_path(path)
    except ToolError:
        return None
    below = place.removeprefix(f"{WORKSPACE}/")
    return below if below != place else None


def _problem(path: str, agent_id: str, facts: Sequence[Change], ledger: ChangeLog, *, deleted: bool) -> str | None:
    """Return the name of the message about the problem of one claimed path."""
    place = relative(path) or _odd(path)
    if place is None:
        return "no_path"
    size = ledger.size(place)
    named = escaped_name(place)
    fact = next((change for change in facts if change.path == named), None)
    if deleted:
        return "still_there" if size is not None else "unchanged" if fact is None else None
    if size is None:
        return "missing"
    if size == 0:
        return "claimed_empty"
    if fact is None and ledger.has_written(agent_id, place):
        return None
    if fact is None:
        return "unchanged" if ledger.last_by(place) in (None, agent_id) else "not_its_own"
    return "not_its_own" if fact.by not in (None, agent_id) else None


def _odd(path: str) -> str | None:
    """Parse a claimed path that is not a logical path but may be a file: in the form of reports, or bare."""
    place = unescaped_name(path).removeprefix(f"{WORKSPACE}/")
    return None if {"", ".", ".."}.intersection(place.split("/")) else place


def _told(wrong: Mapping[str, list[str]], say: Messages) -> Iterator[str]:
    for problem, paths in wrong.items():
        more = "..." if len(paths) > _MOST_NAMED else ""
        yield getattr(say, problem).format(", ".join(path[:100] for path in paths[:_MOST_NAMED]) + more)


# -- locks (B7) -------------------------------------------------------------------------------------------------------
#
# Locks are advisory and expire. They are in memory only, so a kill of the runtime releases all of them.


@dataclass(frozen=True, slots=True)
class Lock:
    """The agent that reserved a file, and the end of the lock by the locks' clock."""

    agent_id: str
    until: float


class Locks:
    """The locks of one tree; each ends after so many `seconds`, or with its agent."""

    def __init__(
        self, seconds: float = 120.0, *, language: Language = "en", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._say = catalogue(language)
        self._clock = clock
        self._locks: dict[str, Lock] = {}

    def acquire(self, agent_id: str, path: str) -> str:
        """Reserve a file, or renew it; raises `ToolError` that names the agent that has it."""
        place, now = self._place(path), self._clock()
        held = self._held(place)
        if held is not None and held.agent_id != agent_id:
            raise ToolError(self._say.locked_by.format(place, held.agent_id, max(1.0, round(held.until - now))))
        self._locks[place] = Lock(agent_id, now + self._seconds)
        return (self._say.locked if held is None else self._say.renewed).format(place, self._seconds)

    def release(self, agent_id: str, path: str) -> str:
        """Release a file; raises `ToolError` if it is not the agent's."""
        place = self._place(path)
        held = self._held(place)
        if held is None or held.agent_id != agent_id:
            raise ToolError(self._say.not_locked.format(place))
        del self._locks[place]
        return self._say.unlocked.format(place)

    def release_all(self, agent_id: str) -> None:
        """Release all files of an agent, as it has ended."""
        self._locks = {path: lock for path, lock in self._locks.items() if lock.agent_id != agent_id}

    def held(self) -> dict[str, str]:
        """Return all locks."""
        return {path: self._locks[path].agent_id for path in list(self._locks) if self._held(path) is not None}

    def _held(self, place: str) -> Lock | None:
        lock = self._locks.get(place)
        if lock is not None and lock.until <= self._clock():
            del self._locks[place]
            return None
        return lock

    def _place(self, path: str) -> str:
        place = relative(path)
        if place is None:
            raise ToolError(self._say.no_path.format(path[:100]))
        return place


# -- stale writes: refused if the file has content that this agent has not read (B7) ----------------------------------


class StaleWrites:
    """The gate before one agent's writes: a `FileGate`. Any number of threads; all of a tree share the ledger.

    An agent knows the ranges of a file that it read or wrote, as far as they are unchanged. To replace the whole file
    it must know all of it. It may also replace a file of which it has seen nothing, if no other agent wrote it and it
    is unchanged since the agent's work began.
    """

    def __init__(self, ledger: ChangeLog, agent_id: str, language: Language = "en") -> None:
        self._ledger = ledger
        self._agent_id = agent_id
        self._say = catalogue(language)
        self._known: dict[str, ReadRanges] = {}
        self._versions: dict[str, str | None] = {}
        """The content of each file when the agent last read or wrote some of it."""
        self._lock = threading.Lock()
        self._over = False

    def close(self) -> None:
        """Refuse all writes from now on, also of a thread that outlives its agent."""
        self._over = True

    def open(self) -> None:
        """Allow writes again: the agent has another task."""
        self._over = False

    def read(self, path: str, text: str, start: int, end: int) -> None:
        """Record that the agent has seen a range of a file, whose whole text this is."""
        if (place := relative(path)) is not None:
            with self._lock:
                self._known.setdefault(place, ReadRanges()).add(text, start, end)
                self._versions[place] = _name_of(text)

    @contextmanager
    def writing(
        self, path: str, content: str | None = None, present: Callable[[], str | None] = lambda: None
    ) -> Iterator[None]:
        """Allow one write. If it replaces the whole `content`, the agent must know the current one, or write the same.

        Raises `ToolError` if it does not, or has ended.
        """
        if self._over:
            raise ToolError(self._say.over)
        place = relative(path)
        if place is None:
            yield
            return
        with self._ledger.writing(self._agent_id, place) as now:
            if content is not None and now not in (None, _name_of(content)):
                self._require_known(path, place, now, present)
            self._ledger.begins(self._agent_id, place)
            yield
            if content is not None:
                with self._lock:
                    self._known[place] = ReadRanges()
                    self._known[place].add(content, 0, len(content))
                    self._versions[place] = _name_of(content)

    def edited(self, path: str, before: str, after: str, start: int, end: int) -> None:
        """Record that the agent has replaced a range of the text `before`; `after` is the new text."""
        if (place := relative(path)) is not None:
            with self._lock:
                self._known.setdefault(place, ReadRanges()).edited(before, after, start, end)
                self._versions[place] = _name_of(after)

    def _require_known(self, path: str, place: str, now: str | None, present: Callable[[], str | None]) -> None:
        with self._lock:
            known = self._known.get(place)
            if known is None and not self._is_of_others(place, now):
                return
            text = present()
            gaps = [(0, len(text or ""))] if known is None or not text else known.gaps(text)
            if not gaps:
                return
            changed = known is None or self._versions.get(place) != now
        unread = Unread.of(path, text, gaps) if text else Unread.all_of(path)
        if changed:
            who = self._ledger.last_by(place) or self._say.somebody
            raise ToolError(self._say.stale.format(place, who, unread.lines, unread.call))
        raise ToolError(self._say.read_in_part.format(place, unread.lines, unread.call))

    def _is_of_others(self, place: str, now: str | None) -> bool:
        others = self._ledger.last_by(place) not in (None, self._agent_id)
        return others or self._ledger.known_to(self._agent_id, place) != now
