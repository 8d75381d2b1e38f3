"""The file of a backup: a tar with a manifest, the file of the sessions, and that of the versions.

The newest versions are the files of the workspaces. The manifest comes first. It has the SHA-256 of the other members,
and the workspaces with their permissions, also empty ones.
"""

import hashlib
import json
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from cfs_server.journal.journal import StoreDamaged, StoreFailed

SESSIONS = "sessions.db"
VERSIONS = "versions.db"
MEDIA_TYPE = "application/x-tar"
_MANIFEST = "manifest.json"
_FORMAT = 1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup contains. Names of workspaces that are no UTF-8 have surrogates (`os.fsdecode`)."""

    sessions: int
    workspaces: Mapping[str, int] | None
    """The permissions of each workspace; None if their files are in an object store, and so not in the backup."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each member, in hexadecimal."""
    format: int = _FORMAT


class BackupArchive:
    """A backup that is ready to be sent. Its files are open, so that their names may go."""

    def __init__(self, folder: Path, sessions: int, workspaces: Mapping[str, int] | None) -> None:
        """Open the members in a folder, and compute their digests. Raises `OSError`."""
        names = [name for name in (SESSIONS, VERSIONS) if (folder / name).exists()]
        with ExitStack() as stack:
            files = [stack.enter_context((folder / name).open("rb")) for name in names]
            digests = {name: _digest(file) for name, file in zip(names, files, strict=True)}
            manifest = json.dumps(asdict(Manifest(sessions, workspaces, digests)), indent=1).encode()
            self._members = [(_MANIFEST, cast("BinaryIO", BytesIO(manifest))), *zip(names, files, strict=True)]
            self._files = stack.pop_all()
        self._time = int(time.time())
        self.size = 2 * tarfile.BLOCKSIZE + sum(
            tarfile.BLOCKSIZE + size + -size % tarfile.BLOCKSIZE for _, file in self._members if (size := _size(file))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the tar file."""
        for name, file in self._members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = _size(file), 0o600, self._time
            yield info.tobuf(tarfile.USTAR_FORMAT if info.size < 1 << 33 else tarfile.GNU_FORMAT)
            file.seek(0)
            while piece := file.read(_CHUNK):
                yield piece
            if rest := -info.size % tarfile.BLOCKSIZE:
                yield bytes(rest)
        yield bytes(2 * tarfile.BLOCKSIZE)


def is_archive(file: Path) -> bool:
    """Return whether a file begins like a backup. Earlier ones were files of sessions alone."""
    try:
        with file.open("rb") as source:
            return source.read(tarfile.BLOCKSIZE)[257:262] == b"ustar"
    except OSError:
        return False


def unpack(backup: Path, folder: Path | None = None) -> Manifest:
    """Compare each member of a backup with its digest, and write it to a folder. Raises `StoreDamaged`."""
    try:
        with tarfile.open(backup, "r:") as tar:
            manifest = _manifest(_member(tar, _MANIFEST).read())
            for name, digest in manifest.digests.items():
                with ExitStack() as stack:
                    target = None if folder is None else stack.enter_context((folder / name).open("wb"))
                    if _digest(_member(tar, name), target) != digest:
                        raise StoreDamaged(f"{backup} is damaged: {name} does not match its checksum")
    except (tarfile.TarError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreDamaged(f"{backup} is damaged, cut off, or no backup of CFS: {error}") from None
    except OSError as error:
        raise StoreFailed(f"{backup} cannot be unpacked: {error.strerror or error}") from None
    return manifest


def _manifest(text: bytes) -> Manifest:
    values: dict[str, Any] = json.loads(text)
    if values["format"] != _FORMAT:
        raise StoreFailed(f"the backup has format {values['format']}, and this CFS knows {_FORMAT}: use a newer one")
    manifest = Manifest(**values)
    if SESSIONS not in manifest.digests or not manifest.digests.keys() <= {SESSIONS, VERSIONS}:
        raise ValueError("its manifest names other members")
    if any("/" in name or "\0" in name or name in ("", ".", "..") for name in manifest.workspaces or ()):
        raise ValueError("its manifest names a workspace by a path")
    if manifest.workspaces and VERSIONS not in manifest.digests:
        raise ValueError(f"its manifest lacks {VERSIONS}")
    return manifest


def _member(tar: tarfile.TarFile, name: str) -> BinaryIO:
    file = tar.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return cast("BinaryIO", file)


def _digest(source: BinaryIO, target: BinaryIO | None = None) -> str:
    digest = hashlib.sha256()
    while piece := source.read(_CHUNK):
        digest.update(piece)
        if target is not None:
            target.write(piece)
    return digest.hexdigest()


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)
