"""Which llama.cpp is installed, for `cfs --version`: its commit, and the processor's features that it was built for.

The shared library is asked without the Python package around it, which takes ten times as long to import.
"""

import ctypes
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = "llama-cpp-python"
_FIRST = "CPU : "


def describe() -> str:
    """Return the engine's build in one line, or what is missing."""
    try:
        package = f"{_PACKAGE} {version(_PACKAGE)}"
    except PackageNotFoundError:
        return "not installed: pip install 'cfs-local[server]'"
    spec = find_spec("llama_cpp")
    folder = Path(next(iter((spec and spec.submodule_search_locations) or ()), "")) / "lib"
    try:
        base, llama = (ctypes.CDLL(str(_library(folder, name))) for name in ("ggml-base", "llama"))
        commit, ggml = _text(base, "ggml_commit"), _text(base, "ggml_version")
        features = _text(llama, "llama_print_system_info")
    except (OSError, AttributeError, StopIteration) as error:
        return f"{package}, whose library cannot be loaded ({error})"
    return f"{package} (llama.cpp {commit.removesuffix('-dirty')}, ggml {ggml}; {_enabled(features)})"


def _library(folder: Path, name: str) -> Path:
    return next(path for path in sorted(folder.glob(f"lib{name}.*")) if path.suffix in (".so", ".dylib"))


def _text(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    return (function() or b"").decode()


def _enabled(features: str) -> str:
    """Return the names of the features that are on: `AVX = 1 | AVX2 = 1 | ...` becomes `AVX AVX2`."""
    pairs = (feature.partition(" = ") for feature in features.removeprefix(_FIRST).split(" | "))
    return " ".join(name.rpartition(": ")[2].strip() for name, _, value in pairs if value.strip() not in ("", "0"))
