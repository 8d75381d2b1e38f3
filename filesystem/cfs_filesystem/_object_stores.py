"""Opens an object store by its URL: S3, or any other file system of fsspec."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from cfs.errors import Unavailable, Unsupported
from cfs_filesystem._errors import NotFoundError
from cfs_filesystem._objects import ABSENT, Changed, Expected, KeyLocks, ObjectStore, StoredObject
from cfs_filesystem._temporary import TEMPORARY
from cfs_filesystem._types import EPOCH, time_of

RETRY_SECONDS = 5.0
_MARKER = f"{TEMPORARY}directory"
"""Stands for the end of a key in `/`, which other file systems of fsspec do not keep."""
_AT_ONCE_BYTES = 64 << 20
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
_VERSIONS = ("ETag", "etag", "md5", "md5Hash", "content_md5", "version")


def open_store(url: str) -> ObjectStore:
    """Return the object store at a URL, such as `s3://BUCKET/PREFIX`. Nothing is sent before it is used.

    Raises `Unsupported` if a package is missing, or if fsspec has no such file system.
    """
    kind = url.partition("://")[0]
    try:
        if kind in ("s3", "s3a"):
            from cfs_filesystem._s3 import S3Store

            return S3Store(url)
        import fsspec

        filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        raise Unsupported(
            f"{kind}:// needs a package that is not installed ({error}): install cfs-local[cluster]"
        ) from None
    except ValueError as error:
        raise Unsupported(f"fsspec cannot open {kind}://: {error}") from None
    return FsspecStore(filesystem, root, url)


class FsspecStore(ObjectStore):
    """The files of a file system of fsspec below a root. Versions are compared by this process only.

    A file is staged on the local disk before it is stored, so a source that fails changes nothing.
    """

    unconditional = frozenset({"put", "delete", "copy"})

    def __init__(self, filesystem: Any, root: str, name: str) -> None:
        self.name = name
        self._files = filesystem
        self._root = root.rstrip("/") + "/"
        self._locked = KeyLocks()

    def check(self) -> None:
        """Look at the root, which need not exist."""
        with _translated(self.name), suppress(FileNotFoundError):
            self._files.ls(self._root.rstrip("/"))

    def look(self, key: str) -> StoredObject | None:
        """Return what is known of a file."""
        with _translated(self.name), suppress(FileNotFoundError, NotADirectoryError):
            info = self._files.info(self._at(key))
            if info["type"] == "file":
                return self._stored(info)
        return None

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all files below a directory."""
        with _translated(self.name), suppress(FileNotFoundError, NotADirectoryError):
            below = self._root + prefix
            entries = self._files.find(below.rstrip("/"), detail=True)  # of a file it returns the file
            yield from (self._stored(info) for info in entries.values() if info["name"].startswith(below))

    def scan(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """Return the members of a directory."""
        objects: list[StoredObject] = []
        deeper: list[str] = []
        with _translated(self.name), suppress(FileNotFoundError, NotADirectoryError):
            below = self._root + prefix
            for info in self._files.ls(below.rstrip("/"), detail=True):
                if not info["name"].startswith(below):  # of a file it returns the file
                    continue
                if info["type"] == "file":
                    objects.append(self._stored(info))
                else:
                    deeper.append(self._key(info["name"]).rstrip("/") + "/")
        return objects, deeper

    def read(self, key: str, start: int, stop: int | None, expected: Expected = None) -> tuple[bytes, StoredObject]:
        """Return a part of a file."""
        entry = self.look(key)
        if entry is None:
            raise NotFoundError(f"there is no object {key!r}")
        if expected is not None and entry.version != expected:
            raise Changed
        with _translated(self.name):
            return self._files.cat_file(self._at(key), start=start, end=stop), entry

    def write(self, key: str, chunks: Iterable[bytes], expected: Expected) -> StoredObject:
        """Stage the chunks, compare, and store them."""
        with TemporaryFile() as staged:
            for chunk in chunks:
                staged.write(chunk)
            size = staged.tell()
            staged.seek(0)
            with self._locked(key), _translated(self.name):
                self._require(key, expected)
                self._store(self._at(key), staged, size)
                written = self.look(key)
        if written is None:
            raise Unavailable(f"{self.name} does not have what was stored there", retry_after=RETRY_SECONDS)
        return written

    def _store(self, at: str, staged: BinaryIO, size: int) -> None:
        if self._files.isdir(at):  # it has only empty directories: elsewhere they are deleted after the write
            self._files.rm(at, recursive=True)
        if size <= _AT_ONCE_BYTES:
            self._files.pipe_file(at, staged.read())
        else:
            with self._files.open(at, "wb") as target:
                while data := staged.read(_AT_ONCE_BYTES):
                    target.write(data)

    def delete(self, key: str, expected: Expected) -> None:
        """Compare and delete."""
        with self._locked(key), _translated(self.name):
            self._require(key, expected)
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(key))

    def copy(self, source: StoredObject, key: str, expected: Expected) -> None:
        """Compare and copy."""
        with self._locked(key), _translated(self.name):
            self._require(source.key, source.version)
            self._require(key, expected)
            self._files.cp_file(self._at(source.key), self._at(key))

    def _require(self, key: str, expected: Expected) -> None:
        if expected is not None:
            entry = self.look(key)
            if (ABSENT if entry is None else entry.version) != expected:
                raise Changed

    def _at(self, key: str) -> str:
        return self._root + (key + _MARKER if key.endswith("/") else key)

    def _key(self, name: str) -> str:
        return name.removeprefix(self._root).removesuffix(_MARKER)

    def _stored(self, info: dict[str, Any]) -> StoredObject:
        when = next((_time_of(info[name]) for name in _TIMES if info.get(name)), EPOCH)
        version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name)), None)
        if version is None:
            stamp = f"{info['size']} {when.isoformat()}"
            version = blake2b(stamp.encode(), digest_size=12).hexdigest()
        return StoredObject(self._key(info["name"]), info["size"], when, version)


def _time_of(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return time_of(float(value))


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Raise an error of the connection as `Unavailable`."""
    try:
        yield
    except (ConnectionError, TimeoutError, PermissionError) as error:
        raise Unavailable(f"{name} cannot be used: {error}", retry_after=RETRY_SECONDS) from None
