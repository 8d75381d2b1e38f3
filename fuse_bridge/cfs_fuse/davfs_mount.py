"""A mount over WebDAV by davfs2, from its checks to its end (W1, F8).

Nothing of libfuse is needed here: davfs2 speaks to the kernel itself. Its process outlives the command that started it
and ends when the mount does, after what was written has been sent; so it is what this module waits for.
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

# The files that davfs2 works with, in a folder that nobody else can read: configuration, token, cache (F8).

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
    """Escape what has a meaning in these files (davfs2.conf(5))."""
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
class Options:
    """What to mount where: the URL of a WebDAV folder, or of a server for all its sessions; `shared` is for all."""

    directory: Path
    url: str
    token: str | None = None
    shared: bool = False

    @property
    def address(self) -> str:
        """The folder's URL, without a slash at its end."""
        url = self.url.rstrip("/")
        return url if urlsplit(url).path else url + SESSIONS

    @property
    def password(self) -> str | None:
        """The token, from the environment if none was given."""
        return self.token or os.environ.get(TOKEN_VARIABLE)


def run(options: Options, ready: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Mount, and wait until it is unmounted or a signal comes; calls `ready` with the URL when it can be used.

    When the server does not have all that was written, `tell` is called with a sentence that says where it is. Raises
    `CannotMountError`.
    """
    seconds = check(options)
    directory = options.directory.resolve()
    owner = _owner(directory)
    files = Files.make(_plain(options.address), options.password, _refresh(seconds))
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
        kept = files.remove(owner)
        if kept:
            tell(f"what was written and the server does not have is in {kept}")


def check(options: Options) -> float:
    """Raise `CannotMountError` for the first thing that is in the way; return how long a listing takes, in seconds."""
    check_machine()
    check_directory(options.directory)
    _check_former(options.directory.resolve())
    return _check_server(options)


def check_machine() -> None:
    """Raise `CannotMountError` if davfs2 cannot mount here, or not for this user."""
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
    """Choose how many seconds davfs2 believes a listing: 0 is best, but then each look at a file asks for all of them.

    As it counts in whole seconds, that goes well as long as the next one has not begun when the answer comes.
    """
    return 0 if seconds < _QUICK_SECONDS else 1 + round(2 * seconds)


def _check_server(options: Options) -> float:
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
            found = client.call(api.Call(look, lambda answer: answer))
    except Unauthorized as error:
        advice = "is it the right one, and still valid?" if options.password else "use --token-file or CFS_TOKEN"
        raise CannotMountError(f"{options.address}: {error.detail}", advice) from None
    except NotFound:
        raise CannotMountError(f"{options.address} does not exist, or you have no access to it") from None
    except (Unreachable, InvalidRequest) as error:
        raise CannotMountError(error.detail) from None
    except CfsError as error:
        raise CannotMountError(f"{options.address}: {error.detail}") from None
    if found.status != 207 or b"collection" not in found.body:
        raise CannotMountError(f"{options.address} is no WebDAV folder (status {found.status})")
    return time.monotonic() - began


def _check_former(directory: Path) -> None:
    """Look for a mount.davfs of the same directory: one still sends what was written, one was killed."""
    path = _pid_file(directory)
    with suppress(FileNotFoundError, ValueError):
        pid = int(path.read_text())
        if _serves(pid):
            raise CannotMountError(f"{_PROGRAM} (process {pid}) is not done with {directory} yet: try again later")
    path.unlink(missing_ok=True)


def _mount(options: Options, directory: Path, owner: tuple[int, int], files: Files) -> int:
    """Start davfs2 and return a descriptor of its process; raises `CannotMountError`."""
    directories, regular = ("777", "666") if options.shared else ("700", "600")
    flags = {"conf": files.configuration, "uid": owner[0], "gid": owner[1]}
    flags |= {"dir_mode": directories, "file_mode": regular}
    env = dict(os.environ)
    if not address_of(options.address).through_proxies:
        env = {name: value for name, value in env.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(  # noqa: S603 - no shell
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
    if done.returncode:
        raise CannotMountError(f"davfs2 could not mount on {directory}: {' '.join(done.stderr.split())}")
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
    """Take the mount down and wait until davfs2 has sent what was written; one more signal ends that.

    umount.davfs does the same, but looks every three seconds only, and passes the path through a shell.
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
    """Ask the kernel's list: a look at the directory itself fails when davfs2 is dead."""
    mounts = Path("/proc/self/mounts").read_bytes().splitlines()
    points = (re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split(b" ")[1]) for line in mounts)
    return os.fsencode(directory) in points


def _detach(directory: Path) -> None:
    """Unmount. What is in use is taken from who uses it (-f): davfs2 would go on for as long as a file is open."""
    for flags in (["-i"], ["-i", "-f", "-l"]):  # -i: without umount.davfs
        done = subprocess.run(  # noqa: S603 - no shell
            ["umount", *flags, "--", str(directory)],  # noqa: S607 - where it is depends on the system
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        _log.info("umount %s: %s", " ".join(flags), done.stderr.strip())


@contextmanager
def _signals() -> Iterator[int]:
    """Give a descriptor that can be read when a signal has come; it interrupts nothing."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup means it
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
    """The owner of the directory; root if davfs2 would not know that user."""
    found = directory.stat()
    try:
        pwd.getpwuid(found.st_uid)
    except KeyError:
        return 0, 0
    return found.st_uid, found.st_gid


def _plain(url: str) -> str:
    """Write a URL as davfs2 wants it: it encodes the path itself."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"


def _pid_file(directory: Path) -> Path:
    return _PIDS / f"{str(directory).lstrip('/').replace('/', '-')}.pid"


def _serves(pid: int) -> bool:
    """Whether this is a living mount.davfs: one that has ended, and that nobody has asked about, has no arguments."""
    with suppress(OSError):
        return _PROGRAM.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
