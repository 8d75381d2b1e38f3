"""Finds the model file for `--model`, and refuses files that cannot be models (E2, E5)."""

import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.host import catalogue, downloads
from cfs_server.engine.host.catalogue import HubFile

EMBEDDED = "cfs-demo"
TOY = f"{EMBEDDED} is a toy of a few megabytes, for trying CFS without a download. `cfs connect` finds models that talk"
"""Note for the users of the embedded model."""
NO_TEMPLATE = (
    "this model has no chat template that CFS can use, so its prompts are plain transcripts; a base model continues"
    " them and may not follow instructions"
)
"""Note for the users of a base model."""
NO_TEXTS = "this model makes embeddings, no texts, so it cannot answer in sessions"
"""Note for the users of a model for embeddings alone."""
_START = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)


def notes_of(name: str, *, has_chat_template: bool, makes_texts: bool) -> tuple[str, ...]:
    """Return the notes for the users of a model."""
    if name == EMBEDDED:
        return (TOY,)
    if not makes_texts:
        return (NO_TEXTS,)
    return () if has_chat_template else (NO_TEMPLATE,)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file that looks like a model, and the name under which it is served."""

    path: Path
    name: str


def resolve(
    spec: str | None,
    folder: Path | None = None,
    *,
    fetch: bool = True,
    on_download: Callable[[str], None] = lambda _: None,
) -> ModelFile:
    """Find a model: none is the embedded one, a short name or `hf:OWNER/REPO:FILE` a download, all else is a path.

    Downloads are in `folder`. A model that is not there is downloaded if allowed, after a call of `on_download` with
    its name; this may take long and shows its progress on a terminal. Raises `ModelLoadError`.
    """
    if spec is None or spec == EMBEDDED:
        file = ModelFile(_embedded(), EMBEDDED)
    elif (model := catalogue.find(spec)) is not None:
        if folder is None:
            raise ModelLoadError(f"{spec}: there is no folder for downloaded models")
        path = downloads.there(model, folder)
        if path is None:
            if not fetch:
                raise ModelLoadError(f"{spec}: there is no local copy")
            on_download(catalogue.label(model))
            path = downloads.pull(model, folder)
        file = ModelFile(path, model.name)
    else:
        file = ModelFile(Path(spec).expanduser(), Path(spec).stem)
        if not file.path.exists() and "/" not in spec and not spec.endswith(".gguf"):
            raise ModelLoadError(f"{spec}: there is no file and no model of this name{catalogue.suggestion(spec)}")
    check(file.path)
    return file


def is_download(spec: str) -> bool:
    """Whether a model is named that can be downloaded; raises `ModelLoadError` for a malformed name of the hub."""
    return catalogue.find(spec) is not None


def local(folder: Path) -> list[ModelFile]:
    """List the embedded model, then all that have been downloaded, by the names that `--model` takes."""
    models = {catalogue.label(model): path for model, path in downloads.cached()}
    for model in catalogue.MODELS:
        if (path := folder / model.source.path).is_file():
            models[model.name] = path
    hub = folder / "hf"
    for path in hub.glob("*/*/**/*.gguf"):
        owner, repo, *rest = path.relative_to(hub).parts
        models[catalogue.label(catalogue.of_source(HubFile(f"{owner}/{repo}", "/".join(rest))))] = path
    return [resolve(None), *(ModelFile(path, name) for name, path in sorted(models.items()))]


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
