"""Record which calls of a process lead from one module of our packages into another.

`walks.py` copies this file as `sitecustomize.py` into a folder of `PYTHONPATH`, so that it runs in each process that a
command starts, and names the packages in `WALKS_PACKAGES`. Each process then listens on a socket beside this file,
named after its process id. The line `start` clears the record and starts to record; `stop` ends that and returns it.

A call is counted once, when the function begins: a coroutine that continues is no new call. Frames of libraries between
two of ours are passed over. A task of the event loop, and a thread, begin without a caller.
"""

import contextlib
import ctypes
import functools
import json
import os
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGES = [Path(name) for name in os.environ.get("WALKS_PACKAGES", "").split(os.pathsep) if name]
_LOOP = str(Path(sysconfig.get_path("stdlib")) / "asyncio") + os.sep

Step = tuple[int, str, str]
"""When (`time.monotonic_ns`), from which module (empty if from none), into which."""


class Recorder:
    """A profile function that keeps steps while it is told to."""

    def __init__(self) -> None:
        self.recording = False
        self.steps: list[Step] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Look at one event of the interpreter."""
        if not self.recording or event != "call":
            return
        code = frame.f_code
        module = module_of(code.co_filename)
        if not module or code.co_name == "<module>" or not begins(frame):
            return
        caller = _caller(frame)
        if caller is None or caller.co_name != "<module>":  # what an import runs is no part of a walk
            self.steps.append((time.monotonic_ns(), module_of(caller.co_filename) if caller else "", module))


@functools.cache
def module_of(filename: str) -> str:
    """Return the dotted name of a module of ours, or nothing."""
    path = Path(filename)
    for package in _PACKAGES:
        if path.is_relative_to(package):
            return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    return ""


def begins(frame: FrameType) -> bool:
    """Whether a function begins, other than a generator or a coroutine that continues."""
    return not _bytes(frame.f_code)[frame.f_lasti + 1] & 3 if frame.f_lasti >= 0 else True


@functools.cache
def _bytes(code: CodeType) -> bytes:
    return code.co_code


def _caller(frame: FrameType) -> CodeType | None:
    """Return the code of the nearest caller that is ours, on this side of the event loop."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.startswith(_LOOP):
        if module_of(above.f_code.co_filename):
            return above.f_code
        above = above.f_back
    return None


def _listen(recorder: Recorder, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        while True:
            wire, _ = listener.accept()
            with contextlib.suppress(OSError), wire, wire.makefile("rw") as lines:
                recorder.recording = lines.readline().strip() == "start"
                if recorder.recording:
                    recorder.steps.clear()
                json.dump(recorder.steps, lines)


def _watch_threads_of_libraries(recorder: Recorder) -> None:
    """Profile callbacks that a C library runs in threads of its own, which `threading` never sees: libfuse does so."""
    prototype = ctypes.CFUNCTYPE

    def watched(*types: Any, **options: Any) -> Any:
        made = prototype(*types, **options)

        class Watched(made):  # type: ignore[misc, valid-type]
            _flags_, _argtypes_, _restype_ = made._flags_, made._argtypes_, made._restype_

            def __new__(cls, *arguments: Any) -> Any:
                return super().__new__(cls, *(_profiled(it, recorder) if callable(it) else it for it in arguments))

        return Watched

    ctypes.CFUNCTYPE = watched


def _profiled(callback: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(callback, assigned=())
    def call(*arguments: Any) -> Any:
        sys.setprofile(recorder)
        return callback(*arguments)

    return call


def install(folder: Path) -> None:
    """Record in this process from now on, when told to."""
    recorder = Recorder()
    path = folder / str(os.getpid())
    threading.Thread(target=_listen, args=(recorder, path), daemon=True, name="crossings").start()
    _watch_threads_of_libraries(recorder)
    threading.setprofile(recorder)
    sys.setprofile(recorder)


if __name__ == "sitecustomize" and _PACKAGES:
    install(Path(__file__).parent)
