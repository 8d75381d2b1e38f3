"""Backups of sessions and workspaces that no server uses: they are made, checked and restored."""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO

from cfs_filesystem import DiskFileSystem, FileSystemError
from cfs_filesystem.versions import DamagedVersionError, FolderHistory, FolderTree, SqliteVersions
from cfs_server.backups.archive import SESSIONS, VERSIONS, BackupArchive, Manifest, is_archive, unpack
from cfs_server.config.settings import ServerSettings
from cfs_server.domain.ids import WORKSPACES
from cfs_server.engine.contract.interface import Engine
from cfs_server.journal.journal import StoreDamaged, StoreFailed
from cfs_server.sessions import maintenance
from cfs_server.sessions.maintenance import StoreInfo
from cfs_server.workspaces.workspaces import DiskWorkspaces


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a server keeps its sessions, and its workspaces with their versions."""

    sessions: Path
    workspaces: Path | None
    """The folder of the workspaces; None if they are in an object store, or end with the server."""
    versions: Path

    @classmethod
    def beside(cls, sessions: Path) -> "Layout":
        """Return the layout of a data folder with a file of sessions."""
        return cls(sessions, (sessions.parent / "workspaces").resolve(), sessions.parent / VERSIONS)

    @classmethod
    def of(cls, settings: ServerSettings) -> "Layout | None":
        """Return the layout of a server with these settings; None if its sessions are in no file."""
        sessions, data, location = settings.store_file, settings.data_dir, settings.workspaces
        if sessions is None:
            return None
        if location is not None:
            workspaces = None if "://" in location else Path(location)
        else:
            workspaces = None if data is None else data / "workspaces"
        return cls(sessions, workspaces and workspaces.resolve(), (data or sessions.parent) / VERSIONS)


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """What a backup contains: sessions, and workspaces, None if it has none."""

    sessions: int
    bytes: int
    workspaces: int | None


def make(layout: Layout, target: BinaryIO) -> None:
    """Write a backup of what no server uses to a file. Raises `StoreFailed`.

    What programs have changed in workspaces is recorded as versions first.
    """
    with maintenance.scratch(layout.sessions) as folder:
        maintenance.copy(layout.sessions, folder / SESSIONS)
        try:
            workspaces = _copy_workspaces(layout, folder / VERSIONS)
        except (OSError, FileSystemError) as error:
            raise StoreFailed(f"the workspaces in {layout.workspaces} cannot be copied: {error}") from None
        with BackupArchive(folder, maintenance.describe(folder / SESSIONS).sessions, workspaces) as archive:
            target.writelines(archive.pieces())


def _copy_workspaces(layout: Layout, target: Path) -> dict[str, int] | None:
    if layout.workspaces is None or not layout.workspaces.is_dir():
        if layout.versions.exists():  # the files are in an object store
            with closing(SqliteVersions(layout.versions)) as store:
                store.backup(target)
        return None
    versions = SqliteVersions(layout.versions) if layout.versions.exists() else None
    with closing(DiskWorkspaces(layout.workspaces, versions=versions)) as workspaces:
        return workspaces.backup(target)


def describe(backup: Path) -> BackupInfo:
    """Compare a backup with its checksums, and return what it contains. Raises `StoreFailed`."""
    if not is_archive(backup):
        info = maintenance.describe(backup)
        return BackupInfo(info.sessions, info.bytes, None)
    manifest = unpack(backup)
    return BackupInfo(manifest.sessions, backup.stat().st_size, _count(manifest))


def replaced_by(backup: Path, layout: Layout) -> BackupInfo:
    """Return what a restore of a backup would set aside. Raises `StoreFailed`, also if a server runs."""
    replaced = maintenance.describe(layout.sessions) if layout.sessions.exists() else None
    folder = layout.workspaces if is_archive(backup) else None
    workspaces = len(list(folder.iterdir())) if folder is not None and folder.is_dir() else None
    return BackupInfo(replaced.sessions if replaced else 0, replaced.bytes if replaced else 0, workspaces)


def check(path: Path, engine: Engine) -> tuple[StoreInfo, BackupInfo, list[str]]:
    """Check a backup, or a file of sessions: the sessions as `maintenance.check` does, and each version.

    Returns what it contains and what is wrong. Raises `StoreFailed` if it cannot be opened.
    """
    if not is_archive(path):
        info, problems = maintenance.check(path, engine)
        return info, BackupInfo(info.sessions, info.bytes, None), problems
    with maintenance.scratch(path) as folder:
        manifest = unpack(path, folder)
        info, problems = maintenance.check(folder / SESSIONS, engine)
        if VERSIONS in manifest.digests:
            try:
                with _naming(path), closing(SqliteVersions(folder / VERSIONS)) as versions:
                    versions.check_integrity()
            except StoreDamaged as error:
                problems.append(str(error))
        return info, BackupInfo(info.sessions, path.stat().st_size, _count(manifest)), problems


def restore(backup: Path, layout: Layout) -> tuple[BackupInfo, list[Path]]:
    """Put what a backup contains in the place of what is there. Returns it, and the new names of what was there.

    A backup of sessions alone leaves the workspaces as they are. Everything is checked before something is replaced,
    and each restored file is read again. Raises `StoreFailed` if the backup is damaged or a server runs; then nothing
    has changed.
    """
    layout.sessions.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = stack.enter_context(maintenance.scratch(layout.sessions))
        new, workspaces, sessions = list[tuple[Path, Path]](), None, backup
        if is_archive(backup):
            manifest = unpack(backup, folder)
            new = _workspaces_of(backup, manifest, folder, layout, stack)
            workspaces, sessions = _count(manifest), folder / SESSIONS
        with _naming(backup):
            maintenance.prepare(sessions, folder / "new")
        maintenance.require_unused(layout.sessions)
        os.sync()  # the new files are on the disk before they get their names
        aside = _replace_all(backup, new, folder / "new", layout.sessions)
        os.sync()
    restored = maintenance.describe(layout.sessions)
    return BackupInfo(restored.sessions, restored.bytes, workspaces), aside


def _workspaces_of(
    backup: Path, manifest: Manifest, folder: Path, layout: Layout, stack: ExitStack
) -> list[tuple[Path, Path]]:
    """Create the files of all workspaces beside their place; return the places with what is to be there.

    Versions of files in an object store are left out where the workspaces are in a folder.
    """
    if manifest.workspaces is None:
        in_folder = layout.workspaces is not None and layout.workspaces.is_dir()
        return [] if in_folder or VERSIONS not in manifest.digests else [_versions_of(backup, folder, layout, stack)]
    if layout.workspaces is None:
        raise StoreFailed(
            f"{backup} has workspaces, and the settings name no folder for them: set CFS_DATA_DIR or CFS_WORKSPACES, or"
            " give --store a file in a data folder"
        )
    layout.workspaces.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place, database = _versions_of(backup, folder, layout, stack)
    with _naming(backup):
        root = stack.enter_context(maintenance.scratch(layout.workspaces)) / "workspaces"
        with (
            closing(SqliteVersions(database)) as versions,
            closing(DiskFileSystem(root, prefix=WORKSPACES)) as files,
        ):
            for name, mode in manifest.workspaces.items():
                (root / name).mkdir()
                FolderHistory(versions, name, FolderTree(files.tree, [name]), frozenset()).fill()
                (root / name).chmod(mode)
    return [(layout.workspaces, root), (place, database)]


def _versions_of(backup: Path, folder: Path, layout: Layout, stack: ExitStack) -> tuple[Path, Path]:
    """Check the versions in a backup; return their place with the file that is to be there."""
    with _naming(backup):
        with closing(SqliteVersions(folder / VERSIONS)) as versions:
            versions.check_integrity()
        database = stack.enter_context(maintenance.scratch(layout.versions)) / VERSIONS
        shutil.move(folder / VERSIONS, database)
    return layout.versions, database


def _replace_all(backup: Path, new: list[tuple[Path, Path]], sessions_part: Path, sessions: Path) -> list[Path]:
    """Replace all, or nothing if that fails. A server does not start while some are replaced and others are not."""
    suffix = _free_suffix([sessions, *(path for path, _ in new)])
    mark, aside = maintenance.restoring(sessions), []
    with ExitStack() as undo:
        try:
            if new:
                if not mark.exists():
                    undo.callback(mark.unlink)
                mark.write_text(str(backup.absolute()))
            for path, part in new:
                for beside in ("",) if part.is_dir() else ("", "-wal", "-shm"):
                    old = path.with_name(path.name + beside)
                    if _is_there(old):
                        name = path.with_name(path.name + suffix + beside)
                        old.rename(name)
                        undo.callback(name.rename, old)
                        aside.append(name)
                part.rename(path)
                undo.callback(path.rename, part)
            name = sessions.with_name(sessions.name + suffix)
            maintenance.replace_file(sessions, sessions_part, name)
        except OSError as error:
            raise StoreFailed(f"{error.filename} cannot be replaced: {error.strerror}") from None
        undo.pop_all()
    mark.unlink(missing_ok=True)
    return [*([name] if name.exists() else []), *aside]


def _free_suffix(paths: list[Path]) -> str:
    """Return an ending for the names of what is set aside, which none has yet."""
    moment = f".replaced-{time.strftime('%Y%m%dT%H%M%S')}"
    suffixes = chain([moment], (f"{moment}-{number}" for number in count(2)))
    return next(suffix for suffix in suffixes if not any(path.with_name(path.name + suffix).exists() for path in paths))


def _is_there(path: Path) -> bool:
    """Return whether there is something to set aside at a path: an empty folder is not."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _count(manifest: Manifest) -> int | None:
    return None if manifest.workspaces is None else len(manifest.workspaces)


@contextmanager
def _naming(backup: Path) -> Iterator[None]:
    """Name the backup in what is wrong with it."""
    try:
        yield
    except StoreDamaged as error:
        raise StoreDamaged(str(error) if str(backup) in str(error) else f"{backup} is damaged: {error}") from None
    except (DamagedVersionError, FileSystemError, sqlite3.Error, ValueError) as error:
        raise StoreDamaged(f"{backup} is damaged: {getattr(error, 'strerror', error)}") from None
    except OSError as error:
        raise StoreFailed(f"{backup} cannot be restored: {error.strerror}: {error.filename}") from None
