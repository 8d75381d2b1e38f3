"""Settings and confinement of a shell: environment, limits, sandbox, and the warden that ends left processes."""

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cfs_agents.shell import census
from cfs_agents.shell.census import tasks_of
from cfs_agents.shell.errors import ShellUnavailable
from cfs_agents.shell.output import INSIDE

# -- the warden (B8) --------------------------------------------------------------------------------------------------

VARIABLE = "CFS_WARDEN"
"""Name of the variable that holds the cookie of a warden."""


class Warden:
    """Ends the processes of shells after the end of the runtime, even if the runtime is killed.

    Several shells can share a warden (`ShellSettings.warden`). Its own process starts with the first shell, and its
    standard input is a pipe from the runtime. When the pipe closes, it kills all processes with its cookie in their
    environment, which all processes of the shells have, and removes the directory of the shells' pipes and scripts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cookie = census.new_cookie()
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the shells must have in their environment."""
        return {VARIABLE: self._cookie}

    def directory(self) -> Path:
        """Return the directory for pipes and scripts of the shells. The first call starts the process, and blocks.

        Raises `OSError` if the process cannot start.
        """
        with self._lock:
            if self._directory is None:
                self._directory = self._watched(Path(tempfile.mkdtemp(prefix="cfs-shells-")))
            return self._directory

    def close(self) -> None:
        """End all processes that the shells have left, then the warden's own. Blocks until this is done."""
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                shutil.rmtree(self._directory or "", ignore_errors=True)  # in case the process was killed

    def _watched(self, directory: Path) -> Path:
        try:
            directory.chmod(0o711)  # commands of another user need the pipes in it
            self._process = subprocess.Popen(  # noqa: S603 - our own module, with the standard library only
                [sys.executable, "-I", "-S", census.__file__, self._cookie, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # signals to the runtime's process group must not end it first
            )
        except BaseException:
            with suppress(OSError):
                directory.rmdir()
            raise
        return directory


# -- the environment of commands --------------------------------------------------------------------------------------

_PASSED = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TERM|TZ|USER")
"""Variables that commands inherit. Any other may be a secret, whatever its name, or may change how bash works."""

FIXED = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "NO_COLOR": "1",
}
"""Keeps programs from asking, paging, colouring or waiting in an editor. `true` as editor keeps git's own message."""


def environment(
    inherited: Mapping[str, str], added: Mapping[str, str], keep: AbstractSet[str], home: str
) -> dict[str, str]:
    """Return the environment of a shell: harmless inherited variables, those named in `keep`, and the `added` ones."""
    passed = {name: value for name, value in inherited.items() if _PASSED.fullmatch(name)}
    kept = {name: value for name, value in inherited.items() if name in keep}
    return {**passed, **FIXED, "HOME": home, **kept, **added}


# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of each process of the shell. None keeps the limit of the runtime.

    `processes` is the number of processes and threads that the user may have in addition to those at the start of the
    shell. For root it applies only in a sandbox. `memory_bytes` counts reserved memory, used or not.
    """

    processes: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Commands run in bubblewrap: the system is read-only, there is no home, and `/tmp` and processes are their own.

    - `writable` and `readable` are directories that the sandbox has under their real paths.
    - `places` are writable directories under the paths that are their keys (such as `/workspace`).
    - `network` allows the network.
    - `scratch_bytes` is the size of `/tmp`, which is in memory.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    places: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False
    scratch_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        """Raise `ValueError` for a directory inside of a writable one, because commands could replace it."""
        writable = {*self.writable, *self.places.values()}
        for above in writable:
            for each in {*writable, *self.readable} - {above}:
                if each.is_relative_to(above):
                    raise ValueError(f"{each} is inside {above}, which commands can write to: they could replace it")

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        for place, real in self.places.items():
            if path.is_relative_to(real):
                return os.path.normpath(os.path.join(place, path.relative_to(real)))  # noqa: PTH118 - a path elsewhere
        return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """Settings of one shell. Times are in seconds, sizes in bytes.

    - `directory` is where it starts, and its HOME. It is created if it is missing.
    - `records` is the directory for long outputs and the logs of background jobs (default: `directory/.cfs`).
    - After `timeout` a command is interrupted, and `grace` later killed if it still runs.
    - Of an output `keep` bytes stay in memory, and at most `most_recorded` go to its file.
    - With `merge` the output includes standard error, in the order of writing.
    - Commands see the harmless variables of the runtime's environment, those that `keep_variables` names, and
      `environment`.
    - `limits` apply to each process, `sandbox` confines the commands, and `user` runs them as another user (root only).
    - `warden` ends the processes of the shell if the runtime is killed.
    """

    directory: Path
    records: Path | None = None
    timeout: float = 120.0
    grace: float = 1.0
    keep: int = 8 << 10
    most_recorded: int = 64 << 20
    merge: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_variables: frozenset[str] = frozenset()
    limits: Limits = Limits()
    sandbox: Sandbox | None = None
    user: str | int | None = None
    warden: Warden | None = None

    @property
    def record_directory(self) -> Path:
        """Directory of the records."""
        return self.records or self.directory / ".cfs"

    def unmovable(self, path: Path) -> Path:
        """Return the nearest directory at or above a path that commands cannot replace."""
        mounts = (*self.sandbox.writable, *self.sandbox.places.values()) if self.sandbox else ()
        return next((base for base in (*mounts, self.directory) if path.is_relative_to(base)), path)

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        return self.sandbox.inside(path) if self.sandbox else str(path)


# -- the sandbox (A5) -------------------------------------------------------------------------------------------------
#
# Commands see only what is listed here, and can write only to the directories that `Sandbox` names. If a part cannot
# be set up, the shell does not start.

USER = "agent"
_ID = "1000"
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_MIB = 1 << 20

_CONFIGURATION = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "inputrc", "java-*"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "magic.mime", "mime.types"),
    *("os-release", "perl", "pki/ca-trust/extracted", "pki/tls/certs", "pki/tls/cert.pem", "protocols", "python3*"),
    *("redhat-release", "rpc", "services", "ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""Files of /etc that programs need and that are not secret (`/etc/ssl/private` is)."""

_MADE_UP = {
    "passwd": f"{USER}:x:{_ID}:{_ID}::/workspace:/bin/bash\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n",
    "group": f"{USER}:x:{_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n",
}

_HIDDEN = ("kcore", "keys", "key-users", "timer_list", "sched_debug", "latency_stats", "kallsyms", "modules")
"""Files of /proc about the whole machine, which are hidden. The rest of /proc is read-only. Otherwise a sandbox of the
machine's root could change kernel settings, which needs no capability, and bubblewrap does not cover them then."""

_NUMBERS = range(424, 512)
"""System calls that have the same number on all architectures: those since 2019, and future ones."""
_ALLOWED_NUMBERS = {424, 434, 436, 439, 441, 444, 445, 446, 448, 449, 451, 453, 454, 455, 456, 462}
"""The harmless ones: pidfd_send_signal, pidfd_open, close_range, faccessat2, epoll_pwait2, landlock's three,
process_mrelease, futex_waitv, cachestat, map_shadow_stack, three of futexes, mseal. The others (io_uring, clone3,
openat2, the mounts by descriptors) fail with ENOSYS. Programs then fall back to calls whose arguments the filter can
check."""

_REFUSED = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime create_module delete_module fanotify_init finit_module
    get_kernel_syms init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind migrate_pages
    mount move_pages nfsservctl open_by_handle_at perf_event_open pivot_root process_vm_readv
    process_vm_writev ptrace query_module quotactl reboot request_key set_mempolicy setdomainname
    sethostname setns settimeofday stime swapoff swapon _sysctl sysfs syslog umount umount2 unshare uselib userfaultfd
    vhangup vm86 vm86old
"""
"""Refused with EPERM."""

_NAMESPACES = (0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX: they type into a terminal."""
_FAMILIES = {0, 1, 2, 10, 16}
"""AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_MOST_FAMILIES = 64
_SET_ID = (0o4000, 0o2000)
"""The set-user-id and set-group-id bits. A program in a workspace with one would run outside as its owner.

All calls with a mode refuse them but mkdir, which drops them. Calls with the mode in memory do not exist (openat2)."""
_CREATES = (0o100, 0o20000000)
"""O_CREAT, and the bit of O_TMPFILE: the flags with which the calls that open use the mode (open(2)). An unnamed file
gets a name by linkat."""
_LOW = 0xFFFFFFFF


def bubblewrap(sandbox: Sandbox, directory: str, private: Path, report: int, data: Callable[[bytes], int]) -> list[str]:
    """Return the command line of bubblewrap, to which the command is appended.

    `private` is the directory of pipes and scripts. `report` is a descriptor for the pid. `data` returns a descriptor
    from which bubblewrap reads a text. Raises `ShellUnavailable` if a program or library is missing.

    Why not `--die-with-parent`: for the system the parent is the thread that starts it, and that thread ends soon. The
    sandbox ends with its bash, and bash ends when its input closes.
    """
    options = [
        *("--new-session", "--cap-drop", "ALL", "--seccomp", str(data(seccomp_filter()))),
        *("--unshare-user", "--uid", _ID, "--gid", _ID, "--disable-userns"),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"),
        *([] if sandbox.network else ["--unshare-net"]),
        *("--ro-bind", "/usr", "/usr", "--ro-bind-try", "/opt", "/opt"),
    ]
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        else:
            options += ["--ro-bind-try", str(path), str(path)]
    options += [*_configuration(sandbox, data), *_devices(sandbox)]
    for each in sandbox.readable:
        options += ["--ro-bind", str(each), str(each)]
    options += ["--ro-bind", str(private), INSIDE]  # pipes in it can still be written to
    for each in sandbox.writable:
        options += ["--bind", str(each), str(each)]
    for place, real in sandbox.places.items():
        options += ["--bind", str(real), place]
    for place in ("/proc", "/dev", "/run", "/"):
        options += ["--remount-ro", place]
    return [*_no_cores(), _program(), *options, "--chdir", directory, "--info-fd", str(report), "--"]


def _no_cores() -> list[str]:
    """Return a prefix of the command line, so that a crash in the sandbox starts no program outside.

    A system that pipes core dumps into a program does so even with a limit of 0, but not with a limit of 1 byte.
    """
    program = shutil.which("prlimit")
    return [program, "--core=1:1", "--"] if program else []


def sandbox_trouble() -> str | None:
    """Return the reason why commands cannot run in a sandbox here; None if they can. Takes some milliseconds."""
    try:
        program, _ = _program(), seccomp_filter()
    except ShellUnavailable as error:
        return str(error)
    probe = [program, "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/"]
    tried = subprocess.run([*probe, "--proc", "/proc", "true"], capture_output=True, text=True, check=False)  # noqa: S603
    return (tried.stderr.strip() or "bubblewrap does not work here") if tried.returncode else None


def _program() -> str:
    program = shutil.which("bwrap")
    if program is None:
        raise ShellUnavailable("there is no bubblewrap here (the program bwrap); install it, or choose no sandbox")
    return program


def _configuration(sandbox: Sandbox, data: Callable[[bytes], int]) -> Iterator[str]:
    """Yield the options for /etc."""
    for pattern in _CONFIGURATION:
        for place in Path("/etc").glob(pattern):
            if place.is_symlink() and not str(place.readlink()).startswith(("/etc", "/run")):
                yield from ("--symlink", str(place.readlink()), str(place))
            else:
                yield from ("--ro-bind-try", str(place), str(place))
    made_up = dict(_MADE_UP)
    if sandbox.network:
        for name in ("hosts", "resolv.conf"):
            place = Path("/etc", name)
            if place.exists():
                made_up[name] = place.read_text("utf-8", "replace")
    for name, text in made_up.items():
        yield from ("--perms", "0444", "--ro-bind-data", str(data(text.encode())), f"/etc/{name}")


def _devices(sandbox: Sandbox) -> Iterator[str]:
    """Yield the options for /proc, /dev and the writable directories of limited size, such as /tmp."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _HIDDEN:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")
    for place, size in {"/dev/shm": sandbox.scratch_bytes // 4, "/tmp": sandbox.scratch_bytes, "/run": _MIB}.items():  # noqa: S108 - the sandbox's
        yield from ("--size", str(size), "--perms", "1777", "--tmpfs", place)


@cache
def seccomp_filter() -> bytes:
    """Return the seccomp filter. As in flatpak, it refuses system calls that programs seldom need and attacks use.

    Raises `ShellUnavailable` if libseccomp is missing, because a sandbox needs the filter.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise ShellUnavailable(
            f"the sandbox needs the library libseccomp (Debian: libseccomp2): {error}; install it, or choose no sandbox"
        ) from None
    refused, absent = pyseccomp.ERRNO(errno.EPERM), pyseccomp.ERRNO(errno.ENOSYS)
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)

    def rule(action: int, call: str, *conditions: tuple[int, int, int]) -> None:
        """Add a rule; a condition is an argument's number, a mask, and the value of the masked argument."""
        arguments = [pyseccomp.Arg(at, pyseccomp.MASKED_EQ, mask, value) for at, mask, value in conditions]
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), call) != -1:  # this processor has the call
            made.add_rule(action, call, *arguments)

    for call in _REFUSED.split():
        rule(refused, call)
    for number in set(_NUMBERS) - _ALLOWED_NUMBERS:
        made.add_rule(absent, number)
    for flag in _NAMESPACES:
        rule(refused, "clone", (0, flag, flag))
    for command in _TERMINAL_INPUT:
        rule(refused, "ioctl", (1, _LOW, command))
    for bit in range(32):
        rule(refused, "personality", (0, 1 << bit, 1 << bit))
    for family in set(range(_MOST_FAMILIES)) - _FAMILIES:
        for call in ("socket", "socketpair"):
            rule(pyseccomp.ERRNO(errno.EAFNOSUPPORT), call, (0, _LOW, family))
    for call in ("socket", "socketpair"):
        made.add_rule(pyseccomp.ERRNO(errno.EAFNOSUPPORT), call, pyseccomp.Arg(0, pyseccomp.GE, _MOST_FAMILIES))
    for bit in _SET_ID:
        for call, at in {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}.items():
            rule(refused, call, (at, bit, bit))
        for flag in _CREATES:
            for call, at in {"open": 1, "openat": 2}.items():
                rule(refused, call, (at, flag, flag), (at + 1, bit, bit))
    descriptor = os.memfd_create("filter")
    with os.fdopen(descriptor, "r+b") as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


# -- limits -----------------------------------------------------------------------------------------------------------

_GIB = 1 << 30


def usual_limits() -> Limits:
    """Return the default limits of an agent's commands (A5).

    They are enough for compilers, tests and servers, and protect the machine: 1,000 additional processes, an hour of
    processor time, files of 16 GiB, and half of the machine's memory, but at least 8 GiB.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return Limits(processes=1_000, cpu_seconds=3_600, file_bytes=16 * _GIB, memory_bytes=max(half, 8 * _GIB))


def ulimits(limits: Limits, user: int, *, cores: bool = False) -> list[str]:
    """Return limits for a user as arguments of `ulimit`, none above the hard limits of the runtime.

    Without `cores` there are no core dumps.
    """
    processes = limits.processes and limits.processes + tasks_of(user)
    given = [
        ("u", resource.RLIMIT_NPROC, processes, 1),
        ("t", resource.RLIMIT_CPU, limits.cpu_seconds, 1),
        ("f", resource.RLIMIT_FSIZE, limits.file_bytes, 1024),
        ("v", resource.RLIMIT_AS, limits.memory_bytes, 1024),
    ]
    return [
        *([] if cores else ["-c 0"]),
        *(f"-{letter} {_allowed(kind, most) // unit}" for letter, kind, most, unit in given if most is not None),
    ]


def _allowed(kind: int, most: int) -> int:
    """Return the limit, or the hard limit of the runtime if that is lower."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
