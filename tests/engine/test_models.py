"""What `--model` may name, and the one line that tells why a model cannot be used (E2, E5)."""

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from cfs_server.engine.contract.interface import ModelLoadError
from cfs_server.engine.host import models
from cfs_server.engine.host.supervisor import LlamaEngine


def foreign(path: Path) -> None:
    """Write a proper GGUF of an unknown architecture."""
    writer = gguf.GGUFWriter(path, "no-such-architecture")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def cut(size: int) -> Callable[[Path], None]:
    """Make what cuts a copy of a good model to a size, from the end when it is negative."""
    return lambda path: os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def overwrite(place: int, data: bytes) -> Callable[[Path], None]:
    """Make what writes into a copy of a good model."""

    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(data)

    return write


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Make what puts something else in the place of a copy of a good model."""

    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "no such file or directory"),
    "directory": (instead(Path.mkdir), "this is a directory, not a GGUF file"),
    "empty": (cut(0), "the file is empty"),
    "pipe": (instead(os.mkfifo), "not a regular file"),
    "text": (overwrite(0, b"Dear reader,\n"), r"not a GGUF file \(it begins with b'Dear'\)"),
    "lfs pointer": (overwrite(0, b"version https://git-lfs.github.com/spec/v1"), "Git LFS pointer"),
    "cut in the start": (cut(10), "truncated or damaged"),
    "cut in the header": (cut(500), "truncated or damaged"),
    "cut in the weights": (cut(-5000), "truncated or damaged"),
    "future version": (overwrite(4, struct.pack("<I", 99)), "GGUF version 99 is not supported"),
    "unknown architecture": (instead(foreign), "unknown model architecture: 'no-such-architecture'"),
    "noise": (overwrite(100, random.Random(1).randbytes(5000)), "damaged|cannot be loaded"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_model_is_told_in_one_line(case: str, tmp_path: Path, tiny: Path) -> None:
    """The line names the file and the reason; nothing is left running."""
    spoil, reason = BAD[case]
    path = tmp_path / "model.gguf"
    shutil.copy(tiny, path)
    spoil(path)
    with pytest.raises(ModelLoadError, match=reason) as failure:
        await LlamaEngine(str(path)).start()
    line = str(failure.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert len(line) < len(str(path)) + 200


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, tiny: Path) -> None:
    """Permissions are a reason of their own."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny.read_bytes())
    path.chmod(0)
    with pytest.raises(ModelLoadError, match="permission denied"):
        models.resolve(str(path))


def test_the_embedded_model_is_the_default(demo: Path) -> None:
    """It is inside the package and small."""
    found = models.resolve(None)
    assert found == models.ModelFile(demo, "cfs-demo")
    assert demo.stat().st_size <= 8 << 20


@pytest.mark.parametrize(
    "spec", ["hf:", "hf:owner", "hf:owner/repo", "hf:owner/repo:", "hf:/:", "hf:a/b:../../c", "hf:a b/c:d"]
)
def test_a_malformed_name_of_the_hub_is_refused_before_any_request(spec: str) -> None:
    """The line says how such a name is written."""
    with pytest.raises(ModelLoadError, match="hf:OWNER/REPO:FILE"):
        models.resolve(spec)


def test_a_name_that_is_neither_a_file_nor_a_model() -> None:
    """The line suggests names that are close; what looks like a path is a file that is missing."""
    with pytest.raises(
        ModelLoadError, match=r"^smolm2: there is no file and no model of this name; did you mean smollm2"
    ):
        models.resolve("smolm2")
    with pytest.raises(ModelLoadError, match=r"^smolm2\.gguf: no such file or directory"):
        models.resolve("smolm2.gguf")


async def test_a_model_says_what_it_cannot_do(base: Path, tiny: Path) -> None:
    """The users of a base model see why it does not follow instructions; those of the embedded model what it is."""
    for spec, notes in ((str(base), (models.NO_TEMPLATE,)), (str(tiny), ()), (None, (models.TOY,))):
        engine = LlamaEngine(spec)
        found = await engine.start()
        await engine.stop()
        assert found.notes == notes
        assert found.embedded == (spec is None)
