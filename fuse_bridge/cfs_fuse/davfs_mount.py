"""Mounts WebDAV with davfs2: checks, configuration, mounting and unmounting (W1, F8).

davfs2 does not need libfuse. Its process outlives the command that started it. It ends with the mount, after it has
uploaded all written files; so this module waits for that process.
"""

import grp
import logging
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from cfs import api
from cfs.errors import CfsError, InvalidRequest, NotFound, Unauthorized, Unreachable
from cfs.transports.addresses import address_of
from cfs.transports.base import TOKEN_VARIABLE
from cfs.transports.http import Client
from cfs_fuse.checks import CannotMountError, check_directory

# The private folder of a mount: configuration, token and cache (F8)

_log = logging.getLogger(__name__)

GROUP = "davfs2"
"""Group of the process that serves a mount: mount.davfs drops root's rights and keeps this group."""

USER = "cfs"
"""User name sent with the token; the server accepts any."""

PLACE = Path("/var/cache/davfs2")
"""Where the folder is created. Files that the server refused must survive a reboot."""

_INDEX = "index"
_ANY = "{*}"  # in any namespace

_SETTINGS = {
    # Nothing may prompt: no user is there to answer.
    "ask_auth": 0,
    # Versions make locks unnecessary: a PUT names the version that it is based on, and text added by others meanwhile
    # stays. A lock would block other writers, for ten minutes if its owner has died.
    "use_locks": 0,
    # Send a message as soon as its file is closed, and show changes of others as soon as davfs2 can.
    "delay_upload": 0,
    "file_refresh": 0,
    "gui_optimize": 0,
    "n_cookies": 0,
    "use_compression": 0,
    # Kernels from 6.16 on refuse the default of 16.
    "buf_size": 64,
    # 429 and 503 mean "again, later"; the default of 30 seconds grows to minutes.
    "retry": 2,
    "max_retry": 20,
    # Directories with thousands of sessions are common.
    "table_size": 16384,
}


@dataclass(frozen=True, slots=True)
class DavfsFolder:
    """The folder and its files. Root owns it; the mount's process may enter it to reach its cache."""

    folder: Path

    @classmethod
    def make(cls, url: str, token: str | None, refresh: int) -> Self:
        """Create the folder and write the configuration and the token, if any; raises `OSError`.

        `refresh` is the time in seconds for which davfs2 caches a listing.
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
        """Cache directory, with one folder for each mount."""
        return self.folder / "cache"

    @property
    def configuration(self) -> Path:
        """Configuration file, in place of `~/.davfs2/davfs2.conf`."""
        return self.folder / "davfs2.conf"

    @property
    def secrets(self) -> Path:
        """File with the token, in place of `~/.davfs2/secrets`."""
        return self.folder / "secrets"

    @property
    def kept(self) -> Path:
        """Where `remove` leaves files that were not uploaded."""
        return self.folder / "lost+found"

    def remove(self, owner: tuple[int, int]) -> Path | None:
        """Remove everything except files that were not uploaded; return their directory, or None if there are none.

        `owner` is the user and the group that will own these files.
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
    """List the files of a cache that the server refused or that have not been sent yet.

    If the index is missing, the process was killed; then all files are listed.
    """
    files = [path for path in folder.iterdir() if path.name != _INDEX]
    try:
        index = ET.parse(folder / _INDEX).getroot()  # noqa: S314 - davfs2 wrote it
    except (OSError, ET.ParseError) as error:
        if files:
            _log.info("%s has no index that can be read (%s): all its files are kept", folder, error)
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
    """Escape the special characters of these files (davfs2.conf(5))."""
    return "".join(f"\\{sign}" if sign in ' \t#\\"' else sign for sign in value)


SESSIONS = "/dav/sessions"
READY_SECONDS = 10.0
HURRY_SECONDS = 5.0
_LOOK_SECONDS = 0.005
_PROGRAM = "mount.davfs"
_SYSTEM_PATH = "/usr/sbin:/sbin"
_PIDS = Path("/run/mount.davfs")
_QUICK_SECONDS = 0.5
_WANTED = (
    b'<propfind xmlns="DAV:"><prop><getetag/><getcontentlength/><getlastmodified/><resourcetype/></prop></propfind>'
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DavfsOptions:
    """What to mount where: the URL of a WebDAV folder or of a server; `shared` lets all users in."""

    directory: Path
    url: str
    token: str | None = None
    shared: bool = False

    @property
    def address(self) -> str:
        """The folder's URL without a trailing slash."""
        url = self.url.rstrip("/")
        return url if urlsplit(url).path else url + SESSIONS

    @property
    def password(self) -> str | None:
        """The token; the default is the one in the environment."""
        return self.token or os.environ.get(TOKEN_VARIABLE)


def run(options: DavfsOptions, ready: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Mount, and wait for the unmount or a signal. `ready` is called with the URL when the mount can be used.

    If some files were not uploaded, `tell` is called with a message that names their directory. Raises
    `CannotMountError`.
    """
    seconds = check(options)
    directory = options.directory.resolve()
    owner = _owner(directory)
    files = DavfsFolder.make(_plain(options.address), options.password, _refresh(seconds))
    try:
        with _signals() as signals:
            process = _mount(options, directory, owner, files)
            try:
                _check_ready(directory)
                ready(options.address)
                if process in select.select([process, signals], [], [])[0] and _is_mounted(directory):
                    raise CannotMountError(f"{_PROGRAM} has ended, and left {directory} behind")
            finally:
                _unmount(directory, process, signals)
                os.close(process)
    finally:
        unsent = files.remove(owner)
        if unsent:
            tell(f"what was written and the server does not have is in {unsent}")


def check(options: DavfsOptions) -> float:
    """Check all preconditions; raise `CannotMountError` or return how long a listing takes, in seconds."""
    check_machine()
    check_directory(options.directory)
    _check_former(options.directory.resolve())
    return _check_server(options)


def check_machine() -> None:
    """Raise `CannotMountError` if davfs2 cannot mount here, or this user may not."""
    if _program() is None:
        raise CannotMountError("davfs2 is not installed", "install it (Debian: apt install davfs2)")
    if os.geteuid() != 0:
        raise CannotMountError(
            f"{_PROGRAM} mounts for root only, or what /etc/fstab names for members of its group",
            "start this as root (sudo): the files will belong to whom the directory belongs to; or use the mount"
            " without --dav, which needs no root",
        )
    if not Path("/dev/fuse").exists():
        raise CannotMountError("there is no /dev/fuse", "in a container: --device /dev/fuse --cap-add SYS_ADMIN")


def _program() -> str | None:
    return shutil.which(_PROGRAM) or shutil.which(_PROGRAM, path=_SYSTEM_PATH)


def _refresh(seconds: float) -> int:
    """Choose for how many seconds davfs2 caches a listing. With 0, each access to a file lists the whole directory.

    davfs2 counts whole seconds, so 0 works as long as the listing arrives within the same second.
    """
    return 0 if seconds < _QUICK_SECONDS else 1 + round(2 * seconds)


def _check_server(options: DavfsOptions) -> float:
    """List the folder as davfs2 will; return how long that takes."""
    if "@" in urlsplit(options.url).netloc:
        raise CannotMountError("other users can see a secret in a URL", "use --token-file or CFS_TOKEN")
    headers = {"Depth": "1"}
    if options.password:
        headers["Authorization"] = f"Basic {b64encode(f'{USER}:{options.password}'.encode()).decode()}"
    look = api.Request("PROPFIND", "", headers=headers, body=_WANTED)
    began = time.monotonic()
    try:
        with Client(options.address) as client:
            reply = client.call(api.Call(look, lambda answer: answer))
    except Unauthorized as error:
        advice = "is it the right one, and still valid?" if options.password else "use --token-file or CFS_TOKEN"
        raise CannotMountError(f"{options.address}: {error.detail}", advice) from None
    except NotFound:
        raise CannotMountError(f"{options.address} does not exist, or you have no access to it") from None
    except (Unreachable, InvalidRequest) as error:
        raise CannotMountError(error.detail) from None
    except CfsError as error:
        raise CannotMountError(f"{options.address}: {error.detail}") from None
    if reply.status != 207 or b"collection" not in reply.body:
        raise CannotMountError(f"{options.address} is no WebDAV folder (status {reply.status})")
    return time.monotonic() - began


def _check_former(directory: Path) -> None:
    """Find processes of mount.davfs on the same directory: one may still be uploading, or have been killed."""
    path = _pid_file(directory)
    with suppress(FileNotFoundError, ValueError):
        pid = int(path.read_text())
        if _serves(pid):
            raise CannotMountError(f"{_PROGRAM} (process {pid}) is not done with {directory} yet: try again later")
    path.unlink(missing_ok=True)


def _mount(options: DavfsOptions, directory: Path, owner: tuple[int, int], files: DavfsFolder) -> int:
    """Start davfs2 and return a descriptor of its process; raises `CannotMountError`."""
    directories, regular = ("777", "666") if options.shared else ("700", "600")
    flags = {"conf": files.configuration, "uid": owner[0], "gid": owner[1]}
    flags |= {"dir_mode": directories, "file_mode": regular}
    env = dict(os.environ)
    if address_of(options.address).proxy is None:
        env = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
    result = subprocess.run(  # noqa: S603 - no shell
        [
            _program() or _PROGRAM,
            "-o",
            ",".join(f"{key}={value}" for key, value in flags.items()),
            "--",
            _plain(options.address),
            str(directory),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    if result.returncode:
        raise CannotMountError(f"davfs2 could not mount on {directory}: {' '.join(result.stderr.split())}")
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            return os.pidfd_open(int(_pid_file(directory).read_text()))
        time.sleep(_LOOK_SECONDS)
    _detach(directory)
    raise CannotMountError(f"{_PROGRAM} does not say which process serves {directory}")


def _check_ready(directory: Path) -> None:
    if not _is_mounted(directory):
        raise CannotMountError(f"nothing is mounted on {directory}")
    try:
        list(directory.iterdir())
    except OSError as error:
        raise CannotMountError(f"{directory} is mounted and cannot be listed: {error.strerror}") from None


def _unmount(directory: Path, process: int, signals: int) -> None:
    """Unmount and wait until davfs2 has uploaded all files; another signal stops the wait.

    umount.davfs does the same, but polls every three seconds and passes the path through a shell.
    """
    if _is_mounted(directory):
        _detach(directory)
    _drain(signals)
    if process in select.select([process, signals], [], [])[0]:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)
        if select.select([process], [], [], HURRY_SECONDS)[0]:
            return


def _is_mounted(directory: Path) -> bool:
    """Check the kernel's list of mounts: access to the directory itself fails when davfs2 is dead."""
    mounts = Path("/proc/self/mounts").read_bytes().splitlines()
    points = (re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), line.split(b" ")[1]) for line in mounts)
    return os.fsencode(directory) in points


def _detach(directory: Path) -> None:
    """Unmount by force (-f): otherwise davfs2 keeps running as long as a file is open."""
    for flags in (["-i"], ["-i", "-f", "-l"]):  # -i: without umount.davfs
        result = subprocess.run(  # noqa: S603 - no shell
            ["umount", *flags, "--", str(directory)],  # noqa: S607 - where it is depends on the system
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode == 0:
            return
        _log.info("umount %s: %s", " ".join(flags), result.stderr.strip())


@contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable when a signal arrives; the signal interrupts nothing."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # started with nohup: keep ignoring SIGHUP
            signal.signal(number, lambda *_: None)
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)


def _drain(signals: int) -> None:
    with suppress(BlockingIOError):
        while os.read(signals, 1 << 10):
            pass


def _owner(directory: Path) -> tuple[int, int]:
    """The owner of the directory; root if the system does not know that user."""
    status = directory.stat()
    try:
        pwd.getpwuid(status.st_uid)
    except KeyError:
        return 0, 0
    return status.st_uid, status.st_gid


def _plain(url: str) -> str:
    """Convert a URL for davfs2, which encodes the path itself."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"


def _pid_file(directory: Path) -> Path:
    return _PIDS / f"{str(directory).lstrip('/').replace('/', '-')}.pid"


def _serves(pid: int) -> bool:
    """Whether this is a running mount.davfs; a zombie process has no arguments."""
    with suppress(OSError):
        return _PROGRAM.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
