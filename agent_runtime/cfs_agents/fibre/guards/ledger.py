"""The ledger of a shared workspace: what became of each file, and through whom (B7).

A write by a tool is entered with its agent. What commands and people do is found by looking: it is entered for the one
agent whose command was running, and else for nobody. An agent's mark is a place in the ledger, so what changed since is
what stands behind it. All of it is in one file of lines, so that it is still known after a kill.

A path inside is the name on disk, as `os.fsdecode` makes it. In the file of lines and in what `since` returns it is
escaped (`escaped_name`), as both become JSON.
"""

import json
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cfs_agents.fibre.reports import Change, ChangeKind
from cfs_agents.tools.paths import escaped_name, unescaped_name
from cfs_filesystem import open_beneath

_LARGEST_READ = 8 << 20
_MOST_FILES = 20_000
_CHUNK = 1 << 20
_PASSED_OVER = frozenset({".cfs", ".git", ".venv", "__pycache__", "node_modules"})
"""Folders in which programs keep what is theirs: too large to look at each time, and nobody claims it."""

_SETTLED = 1_000_000_000
"""Nanoseconds after which a change of a file shows in its times."""

_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """What happened to a file: how its content was called before and after (None: no file), and through whom."""

    path: str
    before: str | None
    after: str | None
    by: str | None


class Ledger:
    """The ledger of the workspace `root`, kept in `file`; without one it is forgotten. Any number of threads.

    With `only`, it is about these folders of the root; what is in the folders `apart` is not looked at. Without
    `contents` a file is told by its size and the time of its last change, and not read.

    Paths are relative to the root. Its methods block: they look at the disk. Raises `OSError`.
    """

    def __init__(
        self,
        root: Path,
        file: Path | None = None,
        *,
        only: Collection[str] = (),
        apart: Collection[str] = (),
        contents: bool = True,
    ) -> None:
        self._root = root
        self._file = file
        self._only = frozenset(only)
        self._apart = frozenset(apart)
        self._most_read = _LARGEST_READ if contents else -1
        self._unwritten: list[str] = []
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
        """Let an agent's work begin here; not `again` leaves a mark that it has."""
        with self._lock:
            if again or agent_id not in self._marks:
                self._look()
                self._marks[agent_id] = len(self._entries)
                self._times[agent_id] = now = self._time()
                self._write({"mark": agent_id, "time": now})

    def restart(self, agent_id: str) -> None:
        """Forget all that was, and let an agent's work begin here."""
        with self._lock:
            self._entries.clear()
            self._marks.clear()
            self._now.clear()
            self._begun.clear()
            if self._file is not None:
                self._file.unlink(missing_ok=True)
            self.mark(agent_id)

    def _time(self) -> int:
        """Return the time by the clock of the file system, which lags behind ours, in nanoseconds."""
        if self._file is None:
            return time.time_ns()
        self._file.touch()
        return self._file.stat().st_mtime_ns

    def since(self, agent_id: str) -> tuple[Change, ...]:
        """Return what is not as it was at an agent's mark, sorted; where it and others had a hand in, it is named.

        What nobody is known to have done in a folder that is passed over may just have been read for the first time.
        """
        with self._lock:
            self._look()
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

        `places` says of the folders in which files may be how they are shown, and what they are called here. A name
        without its folder is that of any file called so. What lies elsewhere cannot be told, and is not returned.
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
        """Return what a file was when an agent last wrote it, or else at its mark."""
        with self._lock:
            entries = [entry for entry in self._entries[self._marks.get(agent_id, 0) :] if entry.path == path]
            for entry in reversed(entries):
                if entry.by == agent_id:
                    return entry.after
            return entries[0].before if entries else self._now.get(path)

    def last_by(self, path: str) -> str | None:
        """Return who changed a file last, if anybody knows."""
        with self._lock:
            return next((entry.by for entry in reversed(self._entries) if entry.path == path), None)

    # -- what happens ---------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, agent_id: str, path: str) -> Iterator[str | None]:
        """Let an agent write a file, and nobody else meanwhile; gives what the file is now."""
        with self._lock:
            self._enter(path, self._print(path), self._suspect())
            yield self._now.get(path)
            self._enter(path, self._print(path), agent_id)
            self._begun.pop(path, None)

    def begins(self, agent_id: str, path: str) -> None:
        """Keep that an agent is about to write a file, so that a kill in the middle leaves no doubt who did."""
        with self._lock:
            self._begun[path] = agent_id
            self._write({"begins": escaped_name(path), "by": agent_id})

    def present(self, path: str) -> str | None:
        """Return how a file's content is called now; equal names are equal contents."""
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
        """An agent runs a command from now on: what it changes is entered for it, unless others run theirs, too."""
        with self._lock:
            self._look()
            self._running.append(agent_id)
            self._ran.add(agent_id)

    def end_command(self, agent_id: str) -> None:
        """An agent's command is over."""
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
        there = {path: self._print_in(path, folder, name) for path, folder, name in self._files()}
        for path in [path for path in self._now if path not in there]:
            there[path] = self._print(path)  # it may be in a folder that is passed over, or too far back
        for path, now in there.items():
            self._enter(path, now, by, at_once=False)
        self._flush()

    def _enter(self, path: str, now: str | None, by: str | None, *, at_once: bool = True) -> None:
        before = self._now.get(path)
        if before == now:
            return
        if now is None:
            del self._now[path]
            self._stamps.pop(path, None)
        else:
            self._now[path] = now
        by = self._begun.pop(path, None) or by
        self._entries.append(Entry(path, before, now, by))
        self._write({"path": escaped_name(path), "before": before, "after": now, "by": by}, at_once=at_once)

    def _files(self) -> Iterator[tuple[str, int, str]]:
        """Yield path, folder and name of each file. By descriptors: commands may put links in the way meanwhile."""
        left = _MOST_FILES
        root = open_beneath(self._root, ())
        try:
            for place, folders, files, folder in os.fwalk(".", dir_fd=root):
                folders[:] = sorted(name for name in folders if self._looks_into(place, name))
                if place == "." and self._only:
                    continue
                inside = "" if place == "." else f"{Path(place).as_posix()}/"
                for name in sorted(files):
                    if left == 0:
                        return
                    left -= 1
                    yield inside + name, folder, name
        finally:
            os.close(root)

    def _looks_into(self, place: str, folder: str) -> bool:
        if folder in _PASSED_OVER or (place == "." and self._only and folder not in self._only):
            return False
        return Path(place, folder).as_posix() not in self._apart

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
        except (OSError, ValueError):
            return None

    def _print_in(self, path: str, folder: int, name: str) -> str | None:
        """Name a file's content by its hash, read again only when the file is not the one that it was.

        The clock of files is coarse and their numbers are used again, so of a file that has just been written nothing
        is remembered: another one might look the same.
        """
        if (status := _status(folder, name)) is None:
            return None
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        known = self._stamps.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        named = _hash(folder, name, status, self._most_read)
        if named is not None and time.time_ns() - status.st_ctime_ns > _SETTLED:
            self._stamps[path] = (stamp, named)
        return named

    # -- on disk --------------------------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Read what was kept; a line that a kill has torn is cut off."""
        if self._file is None or not self._file.exists():
            return
        good = 0
        for line in self._file.read_bytes().splitlines(keepends=True):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            good += len(line)
        os.truncate(self._file, good)

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
        lines, self._unwritten = self._unwritten, []
        if self._file is not None and lines:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(lines))


def _kind(before: str | None, after: str | None) -> ChangeKind | None:
    if before == after:
        return None
    return "created" if before is None else "deleted" if after is None else "changed"


def _status(folder: int, name: str) -> os.stat_result | None:
    """Look at a plain file; links lead out of the workspace and are none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _hash(folder: int, name: str, status: os.stat_result, most: int) -> str | None:
    if status.st_size > most:
        return f"{status.st_size}-{status.st_mtime_ns}"
    digest = blake2b(digest_size=12)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if not os.path.samestat(os.fstat(descriptor), status):
                return None  # it was replaced just now, perhaps by a pipe
            left = most  # it may grow all the time
            while left > 0 and (chunk := file.read(min(_CHUNK, left))):
                left -= len(chunk)
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()
