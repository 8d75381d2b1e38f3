"""The folder or bucket of workspaces that the servers of a database share, and the store of its versions.

A server that had another one would record each file that it lacks as deleted. So a folder has an identity, in a hidden
file, and a bucket in a hidden object. The database has the identity of its folder or bucket: the first one that a
server is started with becomes it.
"""

import errno
import os
import secrets
from contextlib import closing, suppress
from pathlib import Path

from cfs.errors import Unsupported
from cfs_filesystem import FOLDER_IDENTITY, ObjectStore
from cfs_server.journal.postgres_connection import connect, place_of, translated
from cfs_server.journal.postgres_database import prepare
from cfs_server.versions.postgres import PostgresVersions

_NAME = "workspaces"


def open_shared_versions(url: str, slots: int, place: Path | ObjectStore) -> PostgresVersions:
    """Open the versions of a folder or bucket in a database, whose tables are made first.

    Raises `Unsupported` with the reason why this server keeps none, `OSError`, `StoreFailed`, and `Unavailable` if the
    bucket does not answer.
    """
    prepare(url, slots)
    _require_same(url, _FolderPlace(place) if isinstance(place, Path) else _BucketPlace(place))
    try:
        return PostgresVersions(url)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        raise Unsupported(error.strerror or "") from None


class _FolderPlace:
    """A folder with an identity."""

    name = "folder"

    def __init__(self, folder: Path) -> None:
        self._place = folder / FOLDER_IDENTITY

    def identify(self) -> None:
        """Give the folder an identity unless it has one."""
        _identify(self._place)

    @property
    def identity(self) -> str:
        """Its identity; an empty text if it has none."""
        return _identity(self._place)


class _BucketPlace:
    """A bucket, which gets an identity as soon as it is used."""

    name = "bucket"

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def identify(self) -> None:
        """Do nothing."""

    @property
    def identity(self) -> str:
        """Its identity."""
        return self._store.identity()


def _require_same(url: str, place: _FolderPlace | _BucketPlace) -> None:
    """Raise `Unsupported` unless a folder or bucket is the one that the servers of a database share."""
    with closing(connect(url)) as database, translated(place_of(url)):
        row = database.execute("SELECT value FROM cfs.meta WHERE name = %s", (_NAME,)).fetchone()
        if row is None:
            place.identify()  # before the database has it: a server that is killed in between has done no harm
            database.execute(
                "INSERT INTO cfs.meta VALUES (%s, %s) ON CONFLICT (name) DO NOTHING", (_NAME, place.identity)
            )
            row = database.execute("SELECT value FROM cfs.meta WHERE name = %s", (_NAME,)).fetchone()
    identity = place.identity
    if row is None or row[0] != identity:
        lacks = "has another identity" if identity else "has no identity"
        raise Unsupported(f"the {place.name} of workspaces of this server is not the one of the database: it {lacks}")


def _identify(place: Path) -> None:
    """Give a folder an identity unless it has one. Several servers may do so at once: the first one does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f"{place.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="ascii") as file:
            file.write(secrets.token_hex(16) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            place.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _identity(place: Path) -> str:
    try:
        return place.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
