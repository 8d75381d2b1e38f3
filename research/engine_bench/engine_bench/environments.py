"""Virtual environments for the peers, made once in the user's cache folder by names of packages and versions."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from engine_bench.sides import SideError

INSTALL_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Environment:
    """What a peer needs. `shared` lets it see our own packages as well, and so our very build of the library.

    `base` is the interpreter to make it with.
    """

    name: str
    packages: tuple[str, ...]
    shared: bool = False
    base: Path = Path(sys.executable)

    def python(self) -> Path:
        """Make the environment if it is not there, and return its interpreter; raises `SideError`."""
        folder = cache_folder() / "environments" / self.name
        python, stamp = folder / "bin" / "python", folder / "made-from"
        recipe = "\n".join([sys.version, str(self.base), *self.packages, str(_library_folder()) if self.shared else ""])
        if not (python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == recipe):
            print(f"making the environment of {self.name}: {' '.join(self.packages)}", file=sys.stderr)
            run([str(self.base), "-m", "venv", "--clear", str(folder)])
            run([str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *self.packages])
            if self.shared:
                (_site_packages(python) / "shared.pth").write_text(f"{_library_folder()}\n", encoding="utf-8")
            stamp.write_text(recipe, encoding="utf-8")
        return python


LLAMA_SERVER = Environment("llama-server", ("xllamacpp==2026.10.11549",))
_WEB = ("fastapi==0.165.0", "uvicorn==0.54.0", "pydantic-settings==2.16.3", "sse-starlette==3.7.0")
PACKAGED = Environment("packaged", (*_WEB, "starlette-context==0.5.1", "PyYAML==6.0.3"), shared=True)
BATCH = Environment("batch", (*_WEB, "openai==3.54.0", "safetensors==0.8.0", "websockets==17.4"), shared=True)

PLOTS = Environment("plots", ("matplotlib==3.11.2",))


def cache_folder() -> Path:
    """Where environments and models are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "cfs-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _library_folder() -> Path:
    return Path(llama_cpp.__file__).parent.parent


def _site_packages(python: Path) -> Path:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip())


def run(command: list[str]) -> str:
    """Run a program to its end and return what it printed; raises `SideError` with its last line if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SideError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise SideError(lines[-1] if lines else f"{' '.join(command[:4])} failed")
    return done.stdout
