"""Mounts the sessions with FUSE: checks, mounting and unmounting (F1, F8)."""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cfs import api
from cfs.errors import CfsError
from cfs.transports.http import Client
from cfs_fuse.cache import Cache, Watcher
from cfs_fuse.checks import CannotMountError, check_device, check_directory, check_libfuse
from cfs_fuse.handles import BridgeContext
from cfs_fuse.paths import FileAttributes
from cfs_fuse.server import SessionServer, Waiter

_log = logging.getLogger(__name__)

READY_SECONDS = 10.0
_LOOK_SECONDS = 0.002
_ENDED_EARLY = 8
"""Exit status of libfuse after a signal has ended the mount."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """What to mount where. `commit_writes` makes every write a message; `shared` allows other users.

    `rename_wait` is how long the first turn of a new session waits for a rename, in seconds.
    """

    directory: Path
    url: str | None = None
    token: str | None = None
    commit_writes: bool = False
    shared: bool = False
    rename_wait: float = 0.5


def run(options: MountOptions, ready: Callable[[str], None]) -> None:
    """Mount and serve until unmounted. `ready` is called with the server's URL when the mount can be used.

    Raises `CannotMountError`.
    """
    check(options)
    from cfs_fuse.kernel import THREADS, VERSION, CurrentRequest, Fuse
    from cfs_fuse.operations import Operations

    with Client(options.url, options.token) as client:
        waiter = Waiter(CurrentRequest(), THREADS // 2)
        cache = Cache()
        watcher = Watcher(client, cache)
        context = BridgeContext(
            SessionServer(client, waiter),
            cache,
            waiter,
            FileAttributes(shared=options.shared),
            commit_writes=options.commit_writes,
            rename_wait=options.rename_wait,
        )
        watcher.start()
        _wait_for(cache)
        directory = options.directory.resolve()
        say = threading.Thread(target=_say_ready, args=(directory, lambda: ready(client.url)), daemon=True)
        threads = {"max_threads": THREADS, "max_idle_threads": THREADS // 4} if VERSION >= (3, 12) else {}
        _log.info("mounting %s on %s", client.url, directory)
        try:
            Fuse(
                Operations(context, say.start),
                str(directory),
                raw_fi=True,
                foreground=True,
                allow_other=options.shared,
                direct_io=True,
                hard_remove=True,
                attr_timeout=0,
                entry_timeout=0,
                fsname="cfs",
                subtype="cfs",
                **threads,
            )
        except RuntimeError as error:
            if error.args != (_ENDED_EARLY,) or say.ident is None:
                raise CannotMountError(
                    f"libfuse could not mount on {directory} (status {error}); see the reason above"
                ) from None
        finally:
            watcher.stop()


def check(options: MountOptions) -> None:
    """Raise `CannotMountError` for the first check that fails."""
    check_libfuse()
    check_device()
    check_directory(options.directory)
    try:
        with Client(options.url, options.token) as client:
            client.call(api.list_sessions(limit=1))
    except CfsError as error:
        raise CannotMountError(error.detail) from None


def _wait_for(cache: Cache) -> None:
    with cache.lock:
        if not cache.listed.wait_for(lambda: cache.online, READY_SECONDS):
            raise CannotMountError("the server does not stream its events to this mount")


def _say_ready(directory: Path, ready: Callable[[], None]) -> None:
    """Wait until the mount is visible: earlier writes would go to the directory below it."""
    end = time.monotonic() + READY_SECONDS
    while not os.path.ismount(directory):
        if time.monotonic() > end:
            _log.error("nothing is mounted on %s", directory)
            return
        time.sleep(_LOOK_SECONDS)
    ready()
