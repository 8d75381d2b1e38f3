"""llama-cpp-python's unpacked source distribution: peers that compute with the very kernels that we compute with."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from engine_bench.environments import cache_folder, run
from engine_bench.sides import SideError

_FLAGS = Path(__file__).parents[3] / "scripts" / "lib" / "llama-flags"
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
"""Kernels as in the package that is built from the same folder, and nothing that the server does not need."""

_ASK = """
import ctypes, sys
told = ctypes.CDLL(sys.argv[1]).llama_print_system_info
told.restype = ctypes.c_char_p
print(told().decode())
"""


@dataclass(frozen=True, slots=True)
class Source:
    """The folder that `pip download --no-binary llama-cpp-python` brings, unpacked."""

    folder: Path

    def batch_server(self) -> Path:
        """Find the example's script; raises `SideError`."""
        script = self.folder / "examples" / "server" / "server.py"
        if not script.is_file():
            raise SideError(f"there is no {script}")
        return script

    def llama_server(self) -> Path:
        """Compile llama.cpp's server with the flags that ours is compiled with, once; raises `SideError`.

        The libraries that it needs lie beside it.
        """
        vendored = self.folder / "vendor" / "llama.cpp"
        if not vendored.is_dir():
            raise SideError(f"there is no {vendored}")
        build = cache_folder() / "built" / self.folder.name
        server = build / "bin" / "llama-server"
        if not server.is_file():
            print(f"compiling llama.cpp's server out of {self.folder.name}: some minutes, once", file=sys.stderr)
            ours = shlex.split(run([str(_FLAGS)]))
            options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
            run(["cmake", "-S", str(vendored), "-B", str(build), *options, *ours])
            run(["cmake", "--build", str(build), "--target", "llama-server", "-j", str(os.cpu_count() or 1)])
        return server

    def system_info(self) -> str:
        """Ask the libraries of the compiled server which instructions they use; raises `SideError`."""
        library = self.llama_server().with_name("libllama.so")
        return " ".join(run([sys.executable, "-c", _ASK, str(library)]).split())
