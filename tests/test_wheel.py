"""The wheels that users install hold their packages, with type markers and data, and nothing else."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
INTEGRATIONS = sorted(path.parent for path in ROOT.glob("integrations/*/pyproject.toml"))
PACKAGES = {path.parent.name: path.parent for path in ROOT.glob("*/cfs*/__init__.py")}
PACKAGES |= {path.parent.name: path.parent for path in ROOT.glob("integrations/*/*/__init__.py")}


def project_of(folder: Path) -> dict[str, Any]:
    """Return what the pyproject.toml of a folder says of its distribution."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of CFS, whose name is empty, and of each integration, built once from this tree without a network."""
    target = tmp_path_factory.mktemp("dist")
    for folder in (ROOT, *INTEGRATIONS):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0].removeprefix("cfs_local").strip("_"): path for path in target.glob("*.whl")}


def files_of(packages: list[Path]) -> set[str]:
    """Return what packages hold in the tree, as it should stand in a wheel."""
    paths = ((package, path) for package in packages for path in package.rglob("*") if path.is_file())
    return {path.relative_to(package.parent).as_posix() for package, path in paths if "__pycache__" not in path.parts}


def inside(wheel: Path) -> set[str]:
    """Return the files of a wheel but for those about it."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_packages_and_nothing_else(wheels: dict[str, Path]) -> None:
    """No test, no tool, no cache and no integration gets in, and no file of a package is forgotten."""
    packages = [path for path in PACKAGES.values() if path.parent not in INTEGRATIONS]
    assert inside(wheels[""]) == files_of(packages)


@pytest.mark.parametrize("folder", INTEGRATIONS, ids=lambda folder: folder.name)
def test_the_wheel_of_an_integration_holds_its_package_and_nothing_else(wheels: dict[str, Path], folder: Path) -> None:
    (package,) = (path for path in PACKAGES.values() if path.parent == folder)
    assert inside(wheels[folder.name]) == files_of([package])
    licenses = [name for name in zipfile.ZipFile(wheels[folder.name]).namelist() if name.endswith("/LICENSE")]
    assert zipfile.ZipFile(wheels[folder.name]).read(licenses[0]) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("folder", INTEGRATIONS, ids=lambda folder: folder.name)
def test_an_extra_installs_the_integration_of_its_name(folder: Path) -> None:
    """Each side accepts the other's version in this tree, and refuses the next minor one, which may differ."""
    core, integration = project_of(ROOT), project_of(folder)
    assert integration["name"] == f"cfs-local-{folder.name}"
    (extra,) = map(Requirement, core["optional-dependencies"][folder.name])
    (own,) = (found for found in map(Requirement, integration["dependencies"]) if found.name == core["name"])
    assert extra.name == integration["name"]
    assert [side.specifier.contains(project["version"]) for side, project in ((extra, integration), (own, core))] == [
        True,
        True,
    ]
    assert [side.specifier.contains("0.99") for side in (extra, own)] == [False, False]


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_a_package_says_that_it_is_typed(package: Path) -> None:
    """A type checker reads the annotations of an installed package only next to a py.typed (C9)."""
    assert (package / "py.typed").is_file()


def test_wheel_holds_the_embedded_model(wheels: dict[str, Path]) -> None:
    """The first command works offline because the model comes with the package, in at most 8 MB (E5)."""
    model = zipfile.ZipFile(wheels[""]).getinfo("cfs_server/models/cfs-demo.gguf")
    assert 0 < model.file_size <= 8_000_000


def test_installed_packages_can_be_imported(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Installed elsewhere, each package imports without the repository and has what its entry points name."""
    options = ("--no-deps", "--no-index", "--no-compile")  # to compile all modules takes longer than all else
    install = [sys.executable, "-m", "pip", "install", "-q", *options, "--target", tmp_path]
    subprocess.run(list(map(str, [*install, *wheels.values()])), check=True, capture_output=True)
    program = (
        "import sys, importlib\n"
        "from importlib.metadata import distributions\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "for distribution in distributions(path=[sys.argv[1]]):\n"
        "    for entry in distribution.entry_points:\n"
        "        entry.load()\n"
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
