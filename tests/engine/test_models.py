"""What `--model` may name, and the one line that tells why a model cannot be used (E2, E5)."""

import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from cfs_server.engine import models
from cfs_server.engine.interface import ModelLoadError
from cfs_server.engine.supervisor import LlamaEngine


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


def resolve_with(endpoint: str, server: Path, spec: str, **more: str) -> str:
    """Resolve in a process of its own, whose hub is `endpoint`; returns the path, or the error's line."""
    program = """
import sys
from cfs_server.engine.interface import ModelLoadError
from cfs_server.engine.models import resolve
try:
    print(resolve(sys.argv[1]))
except ModelLoadError as error:
    print("refused:", error)
"""
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(server), "HF_HUB_DISABLE_XET": "1"} | more
    command = [sys.executable, "-c", program, spec]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip()


def test_a_model_of_the_hub_is_fetched_once(hub: str, tmp_path: Path, tiny: Path) -> None:
    """The file arrives whole; a second start finds it, even when the hub is gone."""
    found = resolve_with(hub, tmp_path, "hf:maker/model:good.gguf")
    path = re.search(r"PosixPath\('(.+?)'\)", found)
    assert path, found
    assert Path(path[1]).read_bytes() == tiny.read_bytes()
    assert "name='maker/model:good.gguf'" in found
    assert resolve_with("http://127.0.0.1:9", tmp_path, "hf:maker/model:good.gguf") == found


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("hf:maker/model:absent.gguf", "the repository has no file absent.gguf"),
        ("hf:nobody/nothing:x.gguf", "no such repository"),
        ("hf:maker/gated:x.gguf", "access must be requested"),
    ],
)
def test_what_the_hub_does_not_have_is_told_in_one_line(hub: str, tmp_path: Path, spec: str, reason: str) -> None:
    """The line says whether it is the file, the repository, or the right to see it."""
    line = resolve_with(hub, tmp_path, spec)
    assert line.startswith(f"refused: {spec}: ")
    assert reason in line
    assert "\n" not in line


@pytest.mark.parametrize("more", [{"HF_HUB_OFFLINE": "1"}, {}], ids=["told to be offline", "no answer"])
def test_a_hub_that_cannot_be_reached(tmp_path: Path, more: dict[str, str]) -> None:
    """No network is no traceback."""
    line = resolve_with("http://127.0.0.1:9", tmp_path, "hf:maker/model:good.gguf", **more)
    assert line == "refused: hf:maker/model:good.gguf: http://127.0.0.1:9 cannot be reached and there is no local copy"


def test_a_hub_that_takes_the_question_and_never_answers(hub: str, tmp_path: Path) -> None:
    """Nothing is fetched; what has been fetched before is found."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = resolve_with(endpoint, tmp_path, "hf:maker/model:good.gguf")
        assert line == f"refused: hf:maker/model:good.gguf: {endpoint} cannot be reached and there is no local copy"
        found = resolve_with(hub, tmp_path, "hf:maker/model:good.gguf")
        assert resolve_with(endpoint, tmp_path, "hf:maker/model:good.gguf") == found != ""
