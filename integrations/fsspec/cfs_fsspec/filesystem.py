"""The file system `cfs://`: asynchronous, and without coroutines by fsspec's own means."""

import asyncio
import errno
import io
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.callbacks import DEFAULT_CALLBACK

from cfs import api
from cfs.errors import CfsError, InvalidIdentifier, InvalidPath, NotFound, PreconditionFailed, RangeNotSatisfiable
from cfs.transports.async_http import AsyncClient
from cfs.wire import FileInfo, SessionDetail, SessionInfo
from cfs_fsspec.files import CFSFile, FileChangedError
from cfs_fsspec.views import SESSIONS, VIEWS, ViewPath, parse

T = TypeVar("T")
Info = dict[str, Any]

WORKSPACES = "workspaces"
_PAGE = 10_000
_SESSIONS_PAGE = 500


class CFSFileSystem(AsyncFileSystem):  # type: ignore[misc] # fsspec has no types
    """Sessions and workspaces of a server as files.

    `cfs://sessions/NAME/` holds `transcript.jsonl`, `transcript.txt`, `session.json` and a folder for each sub-session;
    they can only be read. `cfs://workspaces/NAME/...` are files to read and write. As in an object store, a folder
    exists while a file is in it.

    `base_url`, the server's URL, and `token` default to `CFS_URL` and `CFS_TOKEN`. Errors are those of the operating
    system, such as `FileNotFoundError` and `PermissionError`. A write that would replace a version which the caller has
    not seen raises `FileChangedError`.
    """

    protocol = "cfs"
    root_marker = ""

    def __init__(self, base_url: str | None = None, token: str | None = None, **options: Any) -> None:
        super().__init__(**options)  # an option named `url` would collide with an argument of `fsspec.core.url_to_fs`
        self._place = base_url, token
        self._opened: AsyncClient | None = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped if isinstance(stripped, list) else stripped.strip("/")

    @property
    def _client(self) -> AsyncClient:
        """The client of the event loop in which the file system runs."""
        if self._opened is None:
            self._opened = AsyncClient(*self._place)
            if not self.asynchronous:
                weakref.finalize(self, _close, self.loop, self._opened).atexit = False
        return self._opened

    async def _call(self, call: api.Call[T], path: str) -> T:
        with _as_os_errors(path):
            return await self._client.call(call)

    async def aclose(self) -> None:
        """Close the connections; the next call opens new ones."""
        client, self._opened = self._opened, None
        if client is not None:
            await client.close()

    def close(self) -> None:
        """Close the connections, from outside of an event loop."""
        sync(self.loop, self.aclose)

    async def _info(self, path: str, **_: Any) -> Info:
        path = self._strip_protocol(path)
        if path in ("", SESSIONS, WORKSPACES):
            return _directory(path)
        if path.startswith(f"{SESSIONS}/"):
            named = parse(path)
            if named.view is not None:
                return _view(await self._session(named.session, path), named.view)[0]
            with _as_os_errors(path):
                await self._client.call(api.settings(named.session))  # it exists, and its messages are not read
            return _directory(path)
        _require_workspace(path)
        with suppress(FileNotFoundError):
            return _file(await self._call(api.file(f"/{path}"), path))
        if (await self._call(api.files(f"/{path}/", limit=1), path)).files:
            return _directory(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if path == "":
            entries = [_directory(SESSIONS), _directory(WORKSPACES)]
        elif path == SESSIONS:
            entries = [_directory(f"{SESSIONS}/{info.id}") for info in await self._sessions("", path)]
        elif path.startswith(f"{SESSIONS}/"):
            entries = await self._in_session(parse(path), path)
        else:
            entries = list((await self._tree(path, depth=1)).values())
        entries.sort(key=lambda info: info["name"])
        return entries if detail else [info["name"] for info in entries]

    async def _in_session(self, named: ViewPath, path: str) -> list[Info]:
        detail = await self._session(named.session, path)
        if named.view is not None:
            return [_view(detail, named.view)[0]]
        below = await self._sessions(f"{named.session}/", path) if detail.sub_sessions else []
        return [_view(detail, name)[0] for name in VIEWS] + [_directory(f"{SESSIONS}/{info.id}") for info in below]

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:
        """Find files; those of workspaces come from one listing."""
        path = self._strip_protocol(path)
        if not path.startswith(WORKSPACES):
            return await super()._find(path, maxdepth=maxdepth, withdirs=withdirs, **options)
        try:
            tree = await self._tree(path, depth=maxdepth)
        except FileNotFoundError:
            tree = {}
        if withdirs and tree and path not in tree:
            tree[path] = _directory(path)
        entries = {name: tree[name] for name in sorted(tree) if withdirs or tree[name]["type"] == "file"}
        return entries if options.get("detail") else list(entries)

    async def _tree(self, path: str, depth: int | None) -> dict[str, Info]:
        """List the files below a folder and the folders that they make, by name; a file is itself."""
        if path != WORKSPACES:
            _require_workspace(path)
        entries: dict[str, Info] = {}
        after, begin = "", len(path) + 1
        while True:
            page = await self._call(api.files(f"/{path}/", after, _PAGE), path)
            for info in page.files:
                name = info.path.removeprefix("/")
                parts = name[begin:].split("/")
                for level in range(1, len(parts)):
                    if depth is None or level <= depth:
                        folder = name[:begin] + "/".join(parts[:level])
                        entries.setdefault(folder, _directory(folder))
                if depth is None or len(parts) <= depth:
                    entries[name] = _file(info)
            if page.next is None:
                break
            after = page.next
        if not entries and path != WORKSPACES:
            entries[path] = _file(await self._call(api.file(f"/{path}"), path))
        return entries

    async def _sessions(self, prefix: str, path: str) -> list[SessionInfo]:
        sessions: list[SessionInfo] = []
        after: str | None = ""
        while after is not None:
            page = await self._call(api.list_sessions(prefix, after, _SESSIONS_PAGE), path)
            sessions += page.sessions
            after = page.next
        return sessions

    async def _session(self, session: str, path: str) -> SessionDetail:
        with _as_os_errors(path):
            return await self._client.call(api.read(session))

    def created(self, path: str) -> datetime:
        """Raise `NotImplementedError`: the server does not keep when a file was made."""
        raise NotImplementedError

    def modified(self, path: str) -> datetime:
        """Return when a file was changed last, in UTC."""
        info = self.info(path)
        if "mtime" not in info:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return datetime.fromtimestamp(info["mtime"], UTC)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        view = parse(path) if path.startswith(f"{SESSIONS}/") else None
        if view is not None and view.view is not None:
            return _view(await self._session(view.session, path), view.view)[1][start:end]
        if view is not None or path in ("", SESSIONS, WORKSPACES):
            await self._info(path)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        _require_workspace(path)
        if (start or 0) < 0 or (end or 0) < 0:
            start, end, _step = slice(start, end).indices((await self._info(path))["size"])
        return (await self._part(path, start or 0, end)).content

    async def _part(self, path: str, start: int, end: int | None) -> api.FilePart:
        """Read bytes of a file in a workspace; a range beyond its end is empty."""
        if end is not None and end <= start:
            return api.FilePart(b"", 0, "")
        call = api.read_file(f"/{path}", start, None if end is None else end - start)
        with _as_os_errors(path):
            try:
                return await self._client.call(call)
            except RangeNotSatisfiable:
                return api.FilePart(b"", 0, "")

    async def read_version(self, path: str, start: int, end: int, etag: str | None) -> bytes:
        """Read bytes of one version of a file; raises `FileChangedError` if it is another one by now."""
        part = await self._part(path, start, end)
        if end > start and part.etag != etag:
            raise FileChangedError(errno.ESTALE, "the file has changed since it was opened", path)
        return part.content

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        rpath = self._strip_protocol(rpath)
        if not rpath.startswith(f"{WORKSPACES}/") or hasattr(lpath, "write"):
            if await self._isdir(rpath):
                return
            data = await self._cat_file(rpath)
            await asyncio.to_thread(_store, lpath, data)
            callback.relative_update(len(data))
            return
        if await self._isdir(rpath):
            await asyncio.to_thread(os.makedirs, lpath, exist_ok=True)
            return
        with _as_os_errors(rpath):
            file = await asyncio.to_thread(Path(lpath).open, "wb")
            try:
                size = await self._client.download(api.read_file(f"/{rpath}").request, file.write)
            finally:
                await asyncio.to_thread(file.close)
        callback.relative_update(size)

    async def _pipe_file(
        self, path: str, value: bytes, mode: str = "overwrite", etag: str | None = None, **_: Any
    ) -> None:
        """Write a file: with `mode="create"` only a new one, with an `etag` only over that version."""
        path = self._strip_protocol(path)
        _require_writable(path)
        new = mode == "create"
        try:
            await self._client.call(api.write_file(f"/{path}", value, etag=etag, new=new))
        except PreconditionFailed as error:
            if new:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise _os_error(error, path) from error
        except CfsError as error:
            raise _os_error(error, path) from error

    async def _put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **options: Any
    ) -> None:
        if await asyncio.to_thread(os.path.isdir, lpath):
            await self._makedirs(rpath, exist_ok=True)
            return
        data = await asyncio.to_thread(Path(lpath).read_bytes)
        await self._pipe_file(rpath, data, mode, **options)
        callback.relative_update(len(data))

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        path1 = self._strip_protocol(path1)
        if await self._isdir(path1):
            await self._makedirs(path2, exist_ok=True)
            return
        await self._pipe_file(path2, await self._cat_file(path1))

    async def _mv_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file and delete the version that was copied: a change at the same time is not lost."""
        path1 = self._strip_protocol(path1)
        _require_writable(path1)
        part = await self._part(path1, 0, None)
        await self._pipe_file(path2, part.content)
        await self._call(api.delete_file(f"/{path1}", etag=part.etag), path1)

    async def _rm_file(self, path: str, etag: str | None = None, **_: Any) -> None:
        """Delete a file; with an `etag` only that version."""
        path = self._strip_protocol(path)
        _require_writable(path)
        try:
            await self._call(api.delete_file(f"/{path}", etag=etag), path)
        except FileNotFoundError:
            if await self._isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
            raise

    async def _rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any) -> None:
        """Delete files, with `recursive` all that are below a folder."""
        names = await self._expand_path(path, recursive=recursive, maxdepth=maxdepth)
        for name in names:
            _require_writable(name)
        if recursive:
            tree = [await self._info(name) for name in names]
            names = [info["name"] for info in tree if info["type"] == "file"]
        await asyncio.gather(*map(self._rm_file, names))

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: ARG002 - fsspec's
        """Check that a folder could be there: it exists as soon as a file is in it."""
        await self._makedirs(path, exist_ok=False)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if path != WORKSPACES:
            _require_writable(f"{path}/file")
        if await self._isfile(path) or (not exist_ok and await self._exists(path)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def rmdir(self, path: str) -> None:
        """Raise an error if the folder is not empty; an empty one does not exist."""
        if self.exists(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        etag: str | None = None,
        **_: Any,
    ) -> CFSFile:
        options = {"block_size": block_size, "autocommit": autocommit, "cache_options": cache_options}
        info, content = sync(self.loop, self._looked_up, path, mode)
        if mode == "rb":
            if etag is not None and info["etag"] != etag:
                raise FileChangedError(errno.ESTALE, "the file is another version", path)
            return CFSFile(self, path, mode, etag=info["etag"], content=content, size=info["size"], **options)
        if mode == "xb" and info is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        expected = etag or (None if info is None else info["etag"])
        return CFSFile(self, path, mode, etag=expected, content=content, **options)

    async def _looked_up(self, path: str, mode: str) -> tuple[Info | None, bytes | None]:
        """Return what is known of a file that is to be opened, and its content where it must be read at once."""
        path = self._strip_protocol(path)
        if mode != "rb":
            _require_writable(path)
        elif path.startswith(f"{SESSIONS}/") and (named := parse(path)).view is not None:
            return _view(await self._session(named.session, path), named.view)
        try:
            info = await self._info(path)
        except FileNotFoundError:
            if mode == "rb":
                raise
            return None, None
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        content = await self.read_version(path, 0, info["size"], info["etag"]) if mode == "ab" else None
        return info, content


def _directory(name: str) -> Info:
    return {"name": name, "size": 0, "type": "directory"}


def _file(info: FileInfo) -> Info:
    return {
        "name": info.path.removeprefix("/"),
        "size": info.size,
        "type": "file",
        "mtime": info.updated_at,
        "etag": f'"{info.version}"',
        "version": info.version,
    }


def _view(detail: SessionDetail, view: str) -> tuple[Info, bytes]:
    data = VIEWS[view](detail).encode()
    info = {
        "name": f"{SESSIONS}/{detail.id}/{view}",
        "size": len(data),
        "type": "file",
        "mtime": detail.updated_at,
        "etag": detail.etag,
        "version": detail.etag.strip('"'),
    }
    return info, data


def _require_workspace(path: str) -> None:
    if not path.startswith(f"{WORKSPACES}/"):
        raise FileNotFoundError(errno.ENOENT, f"paths begin with {SESSIONS}/ or {WORKSPACES}/", path)


def _require_writable(path: str) -> None:
    if path == SESSIONS or path.startswith(f"{SESSIONS}/"):
        raise PermissionError(errno.EACCES, "sessions are read-only here: cfs.Session sends messages", path)
    _require_workspace(path)
    if path.count("/") < 2:
        raise PermissionError(errno.EACCES, f"a file is in a workspace: {WORKSPACES}/NAME/FILE", path)


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (InvalidIdentifier, InvalidPath) as error:  # nothing can have this name
        raise FileNotFoundError(errno.ENOENT, error.detail, path) from error
    except CfsError as error:
        raise _os_error(error, path) from error


def _os_error(error: CfsError, path: str) -> OSError:
    """Return the error of the operating system for an error of the server; its class follows from the number."""
    if isinstance(error, PreconditionFailed):
        return FileChangedError(errno.ESTALE, f"the file has changed: {error.detail}", path)
    if isinstance(error, NotFound):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return OSError(error.errno, error.detail, path)


def _store(target: Any, data: bytes) -> None:
    if isinstance(target, io.IOBase) or hasattr(target, "write"):
        target.write(data)
    else:
        Path(target).write_bytes(data)


def _close(loop: asyncio.AbstractEventLoop, client: AsyncClient) -> None:
    """Close the connections of a file system that is used no more. It never waits: any thread may collect garbage."""

    def begin() -> None:
        task = loop.create_task(client.close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    if loop.is_running():
        loop.call_soon_threadsafe(begin)


_closing: set[asyncio.Task[None]] = set()
"""Keeps tasks alive until they are done."""
