"""Finds the model file for `--model`, and refuses files that cannot be models (E2, E5)."""

import os
import re
import stat
import struct
import threading
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cfs_server.engine.interface import ModelLoadError

EMBEDDED = "cfs-demo"
_HUB_SECONDS = 3.0
"""Seconds to wait for the hub before a download."""
_HUB_VARIABLE = "HF_HUB_ETAG_TIMEOUT"
"""The hub's own variable for it."""
_HUB = "hf:"
_HUB_SPEC = re.compile(r"hf:(?P<owner>[\w.-]+)/(?P<repo>[\w.-]+):(?P<file>[\w./-]+)", re.ASCII)
_START = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file that looks like a model, and the name under which it is served."""

    path: Path
    name: str


def resolve(spec: str | None, *, fetch: bool = True) -> ModelFile:
    """Find the model: none is the embedded one, `hf:OWNER/REPO:FILE` is fetched if allowed, else it is a path.

    May take as long as a download, which shows its progress on a terminal. Raises `ModelLoadError`.
    """
    if spec is None:
        found = ModelFile(_embedded(), EMBEDDED)
    elif spec.startswith(_HUB):
        found = ModelFile(_download(spec, fetch=fetch), spec.removeprefix(_HUB))
    else:
        found = ModelFile(Path(spec).expanduser(), Path(spec).stem)
    check(found.path)
    return found


def cached() -> list[ModelFile]:
    """List the models of the hub that have been fetched, by name."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = {
        f"{_HUB}{repo.repo_id}:{file.file_path.relative_to(revision.snapshot_path).as_posix()}": file.file_path
        for repo in repos
        if repo.repo_type == "model"
        for revision in sorted(repo.revisions, key=lambda revision: revision.last_modified)
        for file in revision.files
        if file.file_name.endswith(".gguf")
    }
    return [ModelFile(path, name) for name, path in sorted(found.items())]


def check(path: Path) -> None:
    """Refuse a file that is clearly not GGUF; the library checks the rest."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelLoadError(f"{path}: this is a directory, not a GGUF file")
        if not stat.S_ISREG(mode):
            raise ModelLoadError(f"{path}: this is not a regular file")
        with path.open("rb") as file:
            start = file.read(_START.size)
    except OSError as error:
        raise ModelLoadError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    _check_start(path, start)


def _check_start(path: Path, start: bytes) -> None:
    if not start:
        raise ModelLoadError(f"{path}: the file is empty")
    if start.startswith(b"version https://"):
        raise ModelLoadError(f"{path}: this is a Git LFS pointer, not the model itself (run git lfs pull)")
    if not start.startswith(b"GGUF"):
        raise ModelLoadError(f"{path}: this is not a GGUF file (it begins with {start[:4]!r})")
    if len(start) < _START.size:
        raise ModelLoadError(f"{path}: the file is truncated or damaged")
    version = _START.unpack(start)[1]
    if version not in _VERSIONS:
        raise ModelLoadError(f"{path}: GGUF version {version} is not supported (known are 2 and 3)")


def _embedded() -> Path:
    path = resources.files("cfs_server.models") / f"{EMBEDDED}.gguf"
    if not isinstance(path, Path) or not path.is_file():
        raise ModelLoadError("the embedded model is missing from this installation: name another one with --model")
    return path


def _answers(url: str) -> bool:
    """Whether the hub answers within seconds.

    Its client's own time-outs apply to each step of each of six attempts, and not to the look-up of the name.
    """
    from huggingface_hub import errors, get_hf_file_metadata

    answers: list[bool] = []

    def ask() -> None:
        try:
            get_hf_file_metadata(url, timeout=seconds, retry_on_errors=False)
        except errors.HfHubHTTPError:
            pass  # a refusal is an answer; the download reports the reason
        except Exception:  # noqa: BLE001 - each library below has errors of its own
            return
        answers.append(True)

    seconds = float(os.environ.get(_HUB_VARIABLE) or _HUB_SECONDS)
    asking = threading.Thread(target=ask, daemon=True)  # a thread that hangs does not keep the process from ending
    asking.start()
    asking.join(seconds)
    return bool(answers)


def _download(spec: str, *, fetch: bool) -> Path:
    parts = _HUB_SPEC.fullmatch(spec)
    if parts is None or ".." in parts["file"]:
        raise ModelLoadError(f"{spec}: a model of the hub is written hf:OWNER/REPO:FILE")
    # Imported here: it takes half a second, which a local model does not need.
    from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub import errors as hub

    repo, file = f"{parts['owner']}/{parts['repo']}", parts["file"]
    try:
        if fetch and _answers(hf_hub_url(repo, file)):
            return Path(hf_hub_download(repo, file))
        # `hf_hub_download(local_files_only=True)` would first send its own request to the hub, for three seconds.
        cached = try_to_load_from_cache(repo, file)
        if isinstance(cached, str):
            return Path(cached)
        raise hub.LocalEntryNotFoundError(spec)
    except hub.GatedRepoError as error:
        raise ModelLoadError(f"{spec}: access must be requested on the hub, and HF_TOKEN set") from error
    except hub.RepositoryNotFoundError as error:
        raise ModelLoadError(f"{spec}: there is no such repository, or HF_TOKEN may not see it") from error
    except hub.LocalEntryNotFoundError as error:
        if not fetch:
            raise ModelLoadError(f"{spec}: there is no local copy") from error
        raise ModelLoadError(f"{spec}: {constants.ENDPOINT} cannot be reached and there is no local copy") from error
    except hub.EntryNotFoundError as error:
        raise ModelLoadError(f"{spec}: the repository has no file {parts['file']}") from error
    except Exception as error:  # the hub's client raises errors of several libraries
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelLoadError(f"{spec}: cannot be downloaded: {reason[:200]}") from error
