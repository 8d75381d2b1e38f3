"""Measure the mount: listing, looking, reading, and how soon a change or a reply is seen.

Run by `scripts/bench fuse [--smoke] [--json FILE]`. What is compared with: the same binding of libfuse on a file
system in memory, which costs no HTTP and has nothing to keep true; and tmpfs, which is the kernel's own.
"""

import argparse
import contextlib
import errno
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

LIST_BAR = 3.0
STAT_BAR = 3.0
READ_BAR = 0.5
SEEN_BAR_MS = 100.0
WAKE_BAR_MS = 10.0
READERS = 320
LS_BESIDE_READERS_BAR_MS = 50.0


@contextmanager
def serving(*flags: str) -> Iterator[str]:
    """Run `cfs serve` with the scripted engine; its URL."""
    program = str(Path(sys.executable).with_name("cfs"))
    command = [program, "serve", "--port", "0", "--log-level", "error", "--engine", "scripted", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def mounted(path: Path, *command: str) -> Iterator[Path]:
    """Run a program that mounts on a new directory and says so."""
    path.mkdir()
    process = subprocess.Popen([sys.executable, *command, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready")
        yield path
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(path)], check=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()


def compare(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Seconds of each action: medians of rounds that take turns, so that a busy machine slows all of them alike."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for seconds, action in zip(taken, actions, strict=True):
            began = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in taken]


def shell(*command: object) -> Callable[[], object]:
    """An action that runs a program and forgets what it prints."""
    arguments = [str(part) for part in command]
    return lambda: subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)


def cat(path: Path) -> Callable[[], object]:
    """An action that reads a file as `cat` does: in pieces as large as `stat` advises, 128 KiB at least."""

    def read() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        piece = max(1 << 17, os.fstat(descriptor).st_blksize)
        while os.read(descriptor, piece):
            pass
        os.close(descriptor)

    return read


def stats(path: Path, names: list[str]) -> Callable[[], object]:
    """An action that looks at many files."""
    return lambda: [os.stat(path / name) for name in names]  # noqa: PTH116 - less work around what is measured


def bench_looks(url: str, client: httpx.Client, base: Path, count: int) -> dict[str, float]:
    """`ls -l` and `stat` of many sessions, beside the file system in memory."""
    names = [f"s{number:05}" for number in range(count)]
    for name in names:
        client.post("/v1/sessions", json={"id": name})
    with (
        mounted(base / "cfs", "-m", "cfs_fuse", "--url", url) as ours,
        mounted(base / "memory", __file__, "--memory", str(count)) as memory,
    ):
        assert sum(1 for _ in ours.iterdir()) == count
        rounds = 5
        listed = compare(rounds, shell("ls", "-l", ours), shell("ls", "-l", memory))
        looked = compare(rounds * 3, stats(ours, names[:1000]), stats(memory, names[:1000]))
    return {
        "ls_ms": listed[0] * 1e3,
        "ls_memory_ms": listed[1] * 1e3,
        "ls_ratio": listed[0] / listed[1],
        "stat_us": looked[0] * 1e3,
        "stat_memory_us": looked[1] * 1e3,
        "stat_ratio": looked[0] / looked[1],
    }


def bench_read(url: str, client: httpx.Client, base: Path, megabytes: int) -> dict[str, float]:
    """`cat` of a long transcript: the first time, when it has to be fetched, and again; beside tmpfs."""
    body = b"x" * (1 << 20)
    for _ in range(megabytes):
        client.post("/v1/sessions/long/messages", json={"content": body.decode(), "generate": False})
    with (
        mounted(base / "read", "-m", "cfs_fuse", "--url", url) as mount,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shm,
    ):
        began = time.perf_counter()
        cat(mount / "long")()
        first = time.perf_counter() - began
        size = (mount / "long").stat().st_size
        plain = Path(shm) / "long"
        plain.write_bytes((mount / "long").read_bytes())
        assert plain.stat().st_size == size
        again, bare = compare(15, shell("cat", mount / "long"), shell("cat", plain))
    client.delete("/v1/sessions/long")
    rate = size / 1e6
    return {
        "read_first_mb_s": rate / first,
        "read_mb_s": rate / again,
        "tmpfs_mb_s": rate / bare,
        "read_ratio": bare / again,
    }


def bench_changes(url: str, client: httpx.Client, base: Path, rounds: int) -> dict[str, float]:
    """How long after the answer of the server a new message shows in `stat`."""
    seen: list[float] = []
    with mounted(base / "changes", "-m", "cfs_fuse", "--url", url) as mount:
        client.post("/v1/sessions", json={"id": "changes"})
        path = mount / "changes"
        while not path.exists():
            pass
        size = 0
        for _ in range(rounds):
            client.post("/v1/sessions/changes/messages", json={"content": "x", "generate": False})
            began = time.perf_counter()
            while path.stat().st_size == size:
                pass
            seen.append((time.perf_counter() - began) * 1e3)
            size = path.stat().st_size
    client.delete("/v1/sessions/changes")
    return {"seen_p50_ms": statistics.median(seen), "seen_p99_ms": statistics.quantiles(seen, n=100)[98]}


def bench_wakes(base: Path, rounds: int) -> dict[str, float]:
    """How long after the event that ends a turn a reader who waited for it has the transcript."""
    woken: list[float] = []
    with (
        serving("--scripted-interval", "0.01") as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as client,
        mounted(base / "wakes", "-m", "cfs_fuse", "--url", url) as mount,
    ):
        for number in range(rounds):
            name = f"w{number}"
            client.post(f"/v1/sessions/{name}/messages", content=b"a b c d e")
            while not (mount / name).exists():
                time.sleep(0.001)
            descriptor = os.open(mount / name, os.O_RDONLY)
            os.read(descriptor, 1 << 16)
            back = time.time()
            os.close(descriptor)
            ended = client.get(f"/v1/sessions/{name}").json()["updated_at"]
            woken.append((back - float(ended)) * 1e3)
    return {"wake_p50_ms": statistics.median(woken), "wake_p99_ms": statistics.quantiles(woken, n=100)[98]}


def bench_readers(url: str, client: httpx.Client, base: Path, readers: int) -> dict[str, float]:
    """`ls` beside many readers who wait, and the processor time that their waiting costs."""
    client.post("/v1/sessions", json={"id": "busy", "settings": {"driver": "agent"}})
    client.post("/v1/sessions/busy/messages", content=b"no answer")
    refused: list[int] = []

    def read(path: Path) -> None:
        try:
            path.read_bytes()
        except OSError as error:
            refused.append(error.errno or 0)

    with mounted(base / "readers", "-m", "cfs_fuse", "--url", url) as mount:
        threads = [threading.Thread(target=read, args=(mount / "busy",), daemon=True) for _ in range(readers)]
        for thread in threads:
            thread.start()
        while refused.count(errno.EAGAIN) < readers - READERS:
            time.sleep(0.01)
        time.sleep(1)
        (listed,) = compare(9, shell("ls", mount))
        client.delete("/v1/sessions/busy")
        for thread in threads:
            thread.join(30)
    return {
        "readers": readers,
        "waiting": readers - len([each for each in refused if each == errno.EAGAIN]),
        "ls_beside_ms": listed * 1e3,
    }


# -- the file system that is compared with ----------------------------------------------------------------------------


def serve_memory(count: int, path: str) -> None:
    """Mount the least that has names and sizes."""
    from cfs_fuse import kernel

    class Memory:
        use_ns = True
        flag_nopath = True
        flag_nullpath_ok = True

        def __init__(self) -> None:
            self.names = {f"/s{number:05}": 0 for number in range(count)}
            self.owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}

        def init(self, _path: str) -> None:
            threading.Timer(0.3, lambda: print("ready", flush=True)).start()

        def getattr(self, path: str, _handle: Any = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": 0o40755, "st_nlink": 2, **self.owner}
            if path not in self.names:
                raise FileNotFoundError(errno.ENOENT, path)
            return {"st_mode": 0o100644, "st_nlink": 1, "st_size": self.names[path], "st_mtime": 1, **self.owner}

        def readdir(self, _path: str, _handle: int) -> list[str]:
            return [".", "..", *(name[1:] for name in self.names)]

    kernel.Fuse(
        Memory(),
        path,
        raw_fi=True,
        foreground=True,
        direct_io=True,
        attr_timeout=0,
        entry_timeout=0,
        max_threads=kernel.THREADS,
        max_idle_threads=kernel.THREADS // 4,
    )


def show(found: dict[str, float]) -> None:
    """Print the figures beside their bars."""
    rows = [
        (
            "`ls -l` of the sessions",
            f"{found['ls_ms']:.0f} ms ({found['ls_ratio']:.2f} × in memory)",
            f"≤ {LIST_BAR:g} ×",
            found["ls_ratio"] <= LIST_BAR,
        ),
        (
            "`stat`",
            f"{found['stat_us']:.0f} µs ({found['stat_ratio']:.2f} × in memory)",
            f"≤ {STAT_BAR:g} ×",
            found["stat_ratio"] <= STAT_BAR,
        ),
        (
            "long transcript, again",
            f"{found['read_mb_s']:.0f} MB/s ({found['read_ratio']:.2f} × tmpfs)",
            f"≥ {READ_BAR:g} ×",
            found["read_ratio"] >= READ_BAR,
        ),
        ("long transcript, first time", f"{found['read_first_mb_s']:.0f} MB/s", "", True),
        (
            "a change by HTTP is seen, p99",
            f"{found['seen_p99_ms']:.1f} ms (p50 {found['seen_p50_ms']:.1f})",
            f"≤ {SEEN_BAR_MS:g} ms",
            found["seen_p99_ms"] <= SEEN_BAR_MS,
        ),
        (
            "a blocked reader is awake, p99",
            f"{found['wake_p99_ms']:.1f} ms (p50 {found['wake_p50_ms']:.1f})",
            f"≤ {WAKE_BAR_MS:g} ms",
            found["wake_p99_ms"] <= WAKE_BAR_MS,
        ),
        (
            f"`ls` beside {found['waiting']:.0f} waiting readers",
            f"{found['ls_beside_ms']:.1f} ms",
            f"≤ {LS_BESIDE_READERS_BAR_MS:g} ms",
            found["ls_beside_ms"] <= LS_BESIDE_READERS_BAR_MS,
        ),
    ]
    print("| what | measured | bar | met |\n|---|---|---|---|")
    for what, measured, bar, met in rows:
        print(f"| {what} | {measured} | {bar} | {'yes' if met else '**no**'} |")


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--memory", nargs=2, metavar=("COUNT", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        serve_memory(int(options.memory[0]), options.memory[1])
        return
    count, megabytes, rounds, readers = (200, 4, 20, 150) if options.smoke else (10_000, 64, 300, 300)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        with serving() as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            found = bench_read(url, client, base, megabytes)
            found |= bench_changes(url, client, base, rounds)
            found |= bench_wakes(base, rounds)
            found |= bench_readers(url, client, base, readers)
            found |= bench_looks(url, client, base, count)
    print(f"{count:,} sessions; a transcript of {megabytes} MiB; {rounds} changes and replies.\n")
    show(found)
    print(f"\nLoad of the machine at the end ({os.cpu_count()} processors): {os.getloadavg()}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
