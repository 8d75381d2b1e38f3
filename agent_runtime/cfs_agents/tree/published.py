"""Keeps the workspace of agents equal on disk and on the server, while they work.

Agents work on files of their own machine. The server has a workspace with the name of their session, which every
interface shows. After each call of an agent, what it changed is sent there; before its calls, what others have changed
there is fetched. Neither side loses what was acknowledged: each write replaces the version that was seen last, and no
other. Where both sides have changed a file, the server's version keeps the name, and that of the agents is kept beside
it as `NAME.conflict`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeAlias

from cfs import api
from cfs.errors import (
    CfsError,
    Conflict,
    Forbidden,
    NotFound,
    NotGranted,
    PreconditionFailed,
    TooMany,
    Unavailable,
    Unreachable,
)
from cfs.transports.async_http import AsyncClient
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn, usable_file, without_damage
from cfs_agents.tools.ignored import IgnoredFiles
from cfs_agents.tools.paths import PASSED_OVER
from cfs_filesystem import EntryMeta, FsHandle

_log = get_logger(__name__)

PUBLISHED = "published/files.json"
"""Which versions of files were equal here and on the server, below the folder of an agent."""

LARGEST = 64 << 20
"""Bytes of the largest file that is sent or fetched."""

MOST_FILES = 20_000
_AT_ONCE = 8
_ATTEMPTS = 5
"""How often both sides are compared where others write at the same time."""

_AWAY_SECONDS = 5.0
"""How long a server that could not be reached is left alone."""

_FOR_ALL = (Forbidden, NotGranted, TooMany, Unavailable, Unreachable)
"""Errors that hold for every file."""


class _VersionConflict(Exception):
    """A file is not what it was when it was looked at."""


Base: TypeAlias = tuple[str, str]
"""The versions of a file that were equal: the one here, and the one on the server."""

Reserve: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Reserves the writes of a file here, by its path in the workspace, so that no agent writes it at the same time."""


def no_reservation(_: str) -> AbstractContextManager[object]:
    """Reserve nothing, where only one agent writes."""
    return nullcontext()


class PublishedWorkspace:
    """The workspace below `prefix` of the handle `files`, and its copy `/workspaces/NAME` on a server.

    `memory` is a file that holds, between runs, which versions were equal; `warn` gets a sentence if it is damaged. A
    caller that may not use the workspace on the server goes on without it. `ignored` files are neither sent nor
    fetched. Use it from one event loop; any number of tasks may.
    """

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        files: FsHandle,
        prefix: str,
        memory: Path,
        reserve: Reserve = no_reservation,
        warn: Warn = _log.warning,
        ignored: IgnoredFiles | None = None,
    ) -> None:
        self._client = client
        self._there = f"/workspaces/{name}/"
        self._files = files
        self._here = prefix
        self._memory = memory
        self._warn = warn
        self._ignored = ignored
        self._reserve = reserve
        self._store, self._base = self._recalled()
        """The store of the server, and by path in the workspace what was equal there and here."""
        self._remembered = dict(self._base)
        self._failed: dict[str, tuple[str | None, str | None]] = {}
        """Versions of files that cannot be made equal, because one is too large for the server, for example."""
        self._lock = asyncio.Lock()
        self._asked = {True: 0, False: 0}
        self._done = {True: 0, False: 0}
        self._away_until = 0.0
        self._off = False
        self._told: set[str] = set()

    async def begin(self) -> None:
        """Make both sides equal before a task, also where the caller could not before."""
        self._off, self._away_until = False, 0.0
        await self.both()

    @asynccontextmanager
    async def kept_equal(self, seconds: float) -> AsyncIterator[None]:
        """Make both sides equal now, each time so many seconds have passed, and at the end of the block."""
        await self.begin()
        task = asyncio.create_task(self._again_and_again(seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self.send()

    async def _again_and_again(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.both()

    async def both(self) -> None:
        """Send what has changed here, and fetch what has changed on the server."""
        await self._once(fetch=True)

    async def send(self) -> None:
        """Send what has changed here."""
        await self._once(fetch=False)

    async def _once(self, *, fetch: bool) -> None:
        """Do it, at once for all that have asked for it meanwhile."""
        self._asked[fetch] += 1
        mine = self._asked[fetch]
        async with self._lock:
            if self._done[fetch] >= mine or self._off or time.monotonic() < self._away_until:
                return
            covered = dict(self._asked)
            await self._tolerant(self._equalise if fetch else self._send)
            self._done[False] = covered[False]
            if fetch:
                self._done[True] = covered[True]

    async def _tolerant(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it; what goes wrong is logged, once for each reason, and tried again at the next step."""
        try:
            await work()
        except* (Forbidden, NotGranted) as errors:
            self._off = True
            self._tell("published.no_right", errors)
        except* Unreachable as errors:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            self._tell("published.server_away", errors)
        except* (CfsError, OSError) as errors:
            self._tell("published.not_equal", errors)
        finally:
            if self._base != self._remembered:
                await asyncio.to_thread(self._remember)

    def _tell(self, event: str, errors: BaseExceptionGroup[Exception]) -> None:
        if event not in self._told:
            self._told.add(event)
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            _log.warning(event, workspace=self._there, reason=str(first))

    async def _send(self) -> None:
        """Send changes, as if nothing had changed on the server; if something has, both sides are compared."""
        here = await asyncio.to_thread(self._versions_here)
        there = {path: version for path, (_, version) in self._base.items()}
        if await self._settle(here, there):
            await self._equalise()

    async def _equalise(self) -> None:
        for _ in range(_ATTEMPTS):
            there = await self._versions_there()
            if not self._store or not self._base.keys() <= there.keys():
                await self._look_whether_lost()
            here = await asyncio.to_thread(self._versions_here)
            if not await self._settle(here, there):
                return

    async def _look_whether_lost(self) -> None:
        """Find out whether this server has other files, or has lost them: then no file was deleted."""
        store = await self._client.call(api.files_store())
        if store != self._store:
            self._store, self._base = store, {}

    async def _settle(self, here: Mapping[str, str], there: Mapping[str, str]) -> bool:
        """Make the files equal whose versions differ from those that were; return whether another look is needed."""
        again = False
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(path: str) -> None:
            nonlocal again
            seen = here.get(path), there.get(path)
            if seen == self._base.get(path, (None, None)) or self._failed.get(path) == seen:
                return
            async with gate:
                try:
                    again |= await self._settle_one(path, *seen)
                except (PreconditionFailed, _VersionConflict):
                    again = True
                except _FOR_ALL:
                    raise
                except (CfsError, OSError) as error:
                    self._failed[path] = seen
                    _log.warning("published.file_not_equal", path=path, workspace=self._there, reason=str(error))

        async with asyncio.TaskGroup() as group:
            for path in sorted({*here, *there, *self._base}):
                group.create_task(one(path))
        return again

    async def _settle_one(self, path: str, here: str | None, there: str | None) -> bool:
        """Make one file equal; return whether another look is needed."""
        was_here, was_there = self._base.get(path, (None, None))
        if there == was_there:
            await self._put(path, here, there)
        elif here == was_here or here is None:
            await self._fetch(path, here, there)
        elif there is None:
            await self._put(path, here, None)
        else:
            return await self._compare(path, here, there)
        return False

    async def _put(self, path: str, here: str | None, there: str | None) -> None:
        """Let the server have the file that is here, in place of this version."""
        address = self._there + path
        if here is None:
            if there is not None:
                with suppress(NotFound):
                    await self._client.call(api.delete_file(address, etag=_etag(there)))
            self._base.pop(path, None)
            return
        data = await asyncio.to_thread(self._read, path)
        call = api.write_file(address, data, etag=None if there is None else _etag(there), new=there is None)
        self._base[path] = here, (await self._client.call(call)).info.version or ""

    async def _fetch(self, path: str, here: str | None, there: str | None) -> None:
        """Have here the file of the server, in place of this version."""
        data = None if there is None else (await self._content(path, there))
        version = await asyncio.to_thread(self._write, path, here, data)
        if version is None or there is None:
            self._base.pop(path, None)
        else:
            self._base[path] = version, there

    async def _compare(self, path: str, here: str, there: str) -> bool:
        """Settle a file that both sides have changed: the server's version keeps the name."""
        data = await self._content(path, there)
        mine = await asyncio.to_thread(self._read, path)
        if data == mine:
            self._base[path] = here, there
            return False
        conflict_path = await asyncio.to_thread(self._keep, f"{path}.conflict", mine)
        version = await asyncio.to_thread(self._write, path, here, data)
        self._base[path] = version or "", there
        _log.warning("published.conflict", path=path, kept=conflict_path, workspace=self._there)
        return True

    async def _versions_there(self) -> dict[str, str]:
        versions: dict[str, str] = {}
        after = ""
        while True:
            page = await self._client.call(api.files(self._there, after, 10_000))
            for info in page.files:
                path = info.path.removeprefix(self._there)
                if _is_sent(path, info.size):
                    versions[path] = info.version or ""
            if page.next is None or len(versions) >= MOST_FILES:
                return await asyncio.to_thread(self._without_ignored, versions)
            after = page.next

    async def _content(self, path: str, version: str) -> bytes:
        content = await self._client.call(api.read_file(self._there + path))
        if content.etag != _etag(version):
            raise _VersionConflict
        return content.content

    def _versions_here(self) -> dict[str, str]:
        versions: dict[str, str] = {}
        for meta in self._files.list(self._here):
            path = meta["path"].removeprefix(self._here)
            if _is_sent(path, meta["size"]) and len(versions) < MOST_FILES:
                versions[path] = _version_of(meta)
        return self._without_ignored(versions)

    def _without_ignored(self, versions: dict[str, str]) -> dict[str, str]:
        if self._ignored is None:
            return versions
        rules = self._ignored.now()
        return {path: version for path, version in versions.items() if not rules.hides(path.split("/"))}

    def _read(self, path: str) -> bytes:
        try:
            return self._files.read_binary(self._here + path)
        except NotFound:
            raise _VersionConflict from None

    def _version(self, path: str) -> str | None:
        try:
            return _version_of(self._files.file(self._here + path))
        except NotFound:
            return None

    def _write(self, path: str, expected: str | None, data: bytes | None) -> str | None:
        """Replace this version of a file, or delete it; return the new version."""
        with self._reserve(path):
            if self._version(path) != expected:
                raise _VersionConflict
            if data is not None:
                self._files.write(self._here + path, data)
            elif expected is not None:
                self._files.delete(self._here + path)
            return self._version(path)

    def _keep(self, path: str, data: bytes) -> str:
        """Store data under a name that is free."""
        for free in (path, *(f"{path}-{number}" for number in range(2, 1_000))):
            with suppress(Conflict):
                self._files.write(self._here + free, data, overwrite=False)
                return free
        raise Conflict(f"there are too many files {path!r}")

    def _remember(self) -> None:
        """Store which versions were equal. Where that is lost, contents are compared, so a kill or crash is no harm."""
        try:
            self._memory.parent.mkdir(exist_ok=True)
            path = usable_file(self._memory, self._warn)
            path.write_text(json.dumps({"store": self._store, "files": self._base}), encoding="utf-8")
        except OSError as error:
            self._tell("published.not_stored", ExceptionGroup("", [error]))
        self._remembered = dict(self._base)

    def _recalled(self) -> tuple[str, dict[str, Base]]:
        """Return the stored server and versions; without them contents are compared."""
        try:
            path = usable_file(self._memory, self._warn)
            stored = json.loads(path.read_text(encoding="utf-8"))
            return stored["store"], {name: (here, there) for name, (here, there) in stored["files"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            problem = "is damaged: all files are compared, and one that was deleted on one side only comes back"
            try:
                without_damage(path, NOTHING_EQUAL, problem, self._warn)
            except OSError:
                self._warn(f"{self._memory} {problem} ({error})")
        return "", {}


NOTHING_EQUAL = b'{"store": "", "files": {}}'
"""The content of the memory before any file was equal."""


def _etag(version: str) -> str:
    return f'"{version}"'


def _version_of(meta: EntryMeta) -> str:
    return str(meta.get("version", ""))


def _is_sent(path: str, size: int) -> bool:
    return size <= LARGEST and PASSED_OVER.isdisjoint(path.split("/"))
