"""The wheel that users install holds every package, its type marker and its data, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "cfs": "client",
    "cfs_filesystem": "filesystem",
    "cfs_webdav": "webdav",
    "cfs_server": "server",
    "cfs_fuse": "fuse_bridge",
    "cfs_agents": "agent_runtime",
    "cfs_fsspec": "integrations/fsspec",
    "cfs_acp": "integrations/acp",
    "cfs_jupyter": "integrations/jupyter",
    "cfs_langchain": "integrations/langchain",
    "cfs_langgraph": "integrations/langgraph",
    "cfs_llm": "integrations/llm",
    "cfs_mcp": "integrations/mcp",
    "pytest_cfs": "integrations/pytest",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once from this tree without a network."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(target.glob("cfs_local-*.whl"))


def files_of(package: str) -> set[str]:
    """What a package holds in the tree, as it should stand in the wheel."""
    base = ROOT / PACKAGES[package]
    found = (path for path in (base / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(base).as_posix() for path in found}


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """No test, no tool and no cache gets in, and no file of a package is forgotten."""
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == set().union(*map(files_of, PACKAGES))


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_says_that_it_is_typed(wheel: Path, package: str) -> None:
    """A type checker reads the annotations of an installed package only next to a py.typed (C9)."""
    assert f"{package}/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_wheel_holds_the_embedded_model(wheel: Path) -> None:
    """The first command works offline because the model comes with the package, in at most 8 MB (E5)."""
    model = zipfile.ZipFile(wheel).getinfo("cfs_server/models/cfs-demo.gguf")
    assert 0 < model.file_size <= 8_000_000


def test_installed_packages_can_be_imported(wheel: Path, tmp_path: Path) -> None:
    """Installed elsewhere, each package is found there and imports without the repository."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path),
        wheel,
    ]
    subprocess.run([str(part) for part in install], check=True, capture_output=True)
    program = (
        "import sys, importlib\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]:\n"
        "    print(importlib.import_module(name).__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(tmp_path), *PACKAGES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(tmp_path) for line in done.stdout.split())
