"""The files that davfs2 works with, in a folder that nobody else can read: configuration, token, cache (F8)."""

import grp
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from xml.etree import ElementTree as ET

_log = logging.getLogger(__name__)

GROUP = "davfs2"
"""Group of the process that serves a mount: mount.davfs gives root's rights away and keeps this one."""

USER = "cfs"
"""User name that goes with the token; a server of ours takes any."""

PLACE = Path("/var/cache/davfs2")
"""Where the folder is made: what a server refused must outlive a restart of the machine."""

_INDEX = "index"
_ANY = "{*}"  # whatever namespace davfs2 puts them in

_SETTINGS = {
    # Whatever would ask a person has nobody to ask.
    "ask_auth": 0,
    # Our versions make locks needless: a PUT names the text that it was made from, and what others have added in
    # between stays. A lock would make one writer wait for the other, and ten minutes for one that has died.
    "use_locks": 0,
    # A message is sent when its file is closed, and what others did is seen as soon as davfs2 can.
    "delay_upload": 0,
    "file_refresh": 0,
    "gui_optimize": 0,
    "n_cookies": 0,
    "use_compression": 0,
    # Kernels from 6.16 on refuse to work with the default of 16.
    "buf_size": 64,
    # 429 and 503 mean "again, later"; the default of 30 seconds grows to minutes.
    "retry": 2,
    "max_retry": 20,
    # A directory of thousands of sessions is a usual thing.
    "table_size": 16384,
}


@dataclass(frozen=True, slots=True)
class Files:
    """The folder and what is in it. Root owns it; the process of the mount may pass through it to its cache."""

    folder: Path

    @classmethod
    def make(cls, url: str, token: str | None, refresh: int) -> Self:
        """Make the folder and write the configuration, and the token if there is one; raises `OSError`.

        `refresh` is how many seconds a listing is believed.
        """
        files = cls(Path(tempfile.mkdtemp(prefix="cfs-", dir=PLACE if PLACE.is_dir() else None)))
        try:
            group = grp.getgrnam(GROUP).gr_gid
            files.cache.mkdir()
            for path, mode in ((files.folder, 0o710), (files.cache, 0o770)):
                os.chown(path, 0, group)
                path.chmod(mode)
            settings = _SETTINGS | {"dir_refresh": refresh, "cache_dir": files.cache, "secrets": files.secrets}
            _write(files.configuration, "".join(f"{key} {_quoted(str(value))}\n" for key, value in settings.items()))
            _write(files.secrets, f"{_quoted(url)} {USER} {_quoted(token)}\n" if token else "")
        except BaseException:
            shutil.rmtree(files.folder)
            raise
        return files

    @property
    def cache(self) -> Path:
        """Copies of files, one folder for each mount."""
        return self.folder / "cache"

    @property
    def configuration(self) -> Path:
        """What is in place of `~/.davfs2/davfs2.conf`."""
        return self.folder / "davfs2.conf"

    @property
    def secrets(self) -> Path:
        """What is in place of `~/.davfs2/secrets`."""
        return self.folder / "secrets"

    @property
    def kept(self) -> Path:
        """Where `remove` leaves what the server does not have."""
        return self.folder / "lost+found"

    def remove(self, owner: tuple[int, int]) -> Path | None:
        """Remove everything but what somebody wrote and the server does not have; return where that is, if any is.

        `owner` is the user and the group that it belongs to from now on.
        """
        left = [path for folder in self.cache.iterdir() for path in _unsent(folder)]
        if not left:
            shutil.rmtree(self.folder)
            return None
        self.kept.mkdir(mode=0o700)
        for path in left:
            os.chown(path.rename(self.kept / path.name), *owner)
        os.chown(self.kept, *owner)
        os.chown(self.folder, *owner)
        shutil.rmtree(self.cache)
        self.configuration.unlink()
        self.secrets.unlink()
        return self.kept


def _unsent(folder: Path) -> list[Path]:
    """Name the files of a cache that are more than copies: refused by the server, or not sent yet.

    Without an index the process has been killed, and nobody knows: then it is all of them.
    """
    files = [path for path in folder.iterdir() if path.name != _INDEX and not path.name.startswith("dir-")]
    try:
        index = ET.parse(folder / _INDEX).getroot()  # noqa: S314 - davfs2 wrote it
    except (OSError, ET.ParseError) as error:
        if files:
            _log.warning("%s has no index that can be read (%s): all its files are kept", folder, error)
        return files
    refused = set(index.iterfind(f"{_ANY}backup/{_ANY}reg"))
    names = {
        Path(entry.findtext(f"{_ANY}cache_path", "")).name
        for entry in index.iterfind(f".//{_ANY}reg")
        if entry in refused
        or entry.findtext(f"{_ANY}dirty", "0") != "0"
        or entry.findtext(f"{_ANY}remote_exists", "1") == "0"
    }
    return [path for path in files if path.name in names]


def _write(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def _quoted(value: str) -> str:
    """Escape what has a meaning in these files (davfs2.conf(5))."""
    return "".join(f"\\{sign}" if sign in ' \t#\\"' else sign for sign in value)
