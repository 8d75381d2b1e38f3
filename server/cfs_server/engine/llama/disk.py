"""The disk of one worker: its folder, and the fingerprint that says whose state may be read back.

State is bytes that only the same model, the same build of the library and the same settings understand.
"""

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
from llama_cpp import llama_cpp as lib

from cfs_server.engine.disk.archive import Archive
from cfs_server.engine.disk.folder import Folder, FolderRefused
from cfs_server.engine.llama.disk_tier import DiskTier
from cfs_server.engine.llama.loading import LoadedModel

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


@dataclass(frozen=True, slots=True)
class Woken:
    """To the scheduler: the disk has done something."""


def open_disk(model: LoadedModel, wake: Callable[[], None], warn: Callable[[str], None]) -> DiskTier:
    """Open the folder that the options name, if any; one that cannot be used is told, and done without."""
    options = model.options
    if not options.disk:
        return DiskTier()
    try:
        archive = Archive(Folder(Path(options.disk), fingerprint(model)), wake)
    except (FolderRefused, OSError) as error:
        warn(f"nothing is kept on disk: {error}")
        return DiskTier()
    if archive.refused:
        warn(f"{archive.refused} state files were torn, or of another model, build or setting, and are removed")
    return DiskTier(archive, options.disk_bytes)


def fingerprint(model: LoadedModel) -> str:
    """Name what state depends on: the model's file, the library and its processor's code, the settings of the pool."""
    plan, context = model.plan, model.context
    library = Path(llama_cpp.__file__).parent / "lib"
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in library.iterdir())
    facts = (
        _file(Path(model.path)),
        (llama_cpp.__version__, files, platform.machine()),
        lib.llama_print_system_info(),
        (plan.family, plan.policy, plan.window, plan.flash_attention, plan.extra_buffers),
        (context.partial, context.window, context.cell_bytes, context.state_bytes),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _file(path: Path) -> tuple[int, int, str]:
    """Look at samples of a file that may be too large to be read as a whole; its time of change counts too."""
    found, digest = path.stat(), hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(found.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return found.st_size, found.st_mtime_ns, digest.hexdigest()
