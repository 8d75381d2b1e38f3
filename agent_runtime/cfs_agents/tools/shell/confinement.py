"""How a shell is set up: where it starts, how long a command may take, what it may use, what it sees."""

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

from cfs_agents.tools.registry import ShellUnavailable
from cfs_agents.tools.shell import census
from cfs_agents.tools.shell.census import tasks_of
from cfs_agents.tools.shell.output import INSIDE

# Ends what shells have started once their runtime has gone, however that ended (B8).

VARIABLE = "CFS_WARDEN"
"""Name of the variable that holds the cookie of a warden."""


class Warden:
    """Watches over the runtime from a process of its own; several shells can share it (`ShellSettings.warden`).

    Its process begins with the first shell. Its standard input is a pipe from the runtime, which ends with it, also
    when it is killed. Then it kills what has the cookie in its environment, as all has that a shell starts, and
    removes the directory in which the shells have their pipes and scripts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cookie = census.new_cookie()
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the shells are to have in their environment."""
        return {VARIABLE: self._cookie}

    def directory(self) -> Path:
        """Return the directory for what shells need while they live. The first time this starts the watch: it blocks.

        Raises `OSError` when there can be no watch.
        """
        with self._lock:
            if self._directory is None:
                self._directory = self._watched(Path(tempfile.mkdtemp(prefix="cfs-shells-")))
            return self._directory

    def close(self) -> None:
        """End whatever the shells have left, and the watch. Blocks until that is done."""
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                shutil.rmtree(self._directory or "", ignore_errors=True)  # had the watch been killed

    def _watched(self, directory: Path) -> Path:
        try:
            directory.chmod(0o711)  # commands of another user have their pipes in it
            self._process = subprocess.Popen(  # noqa: S603 - a module of ours, without all that it does not need
                [sys.executable, "-I", "-S", census.__file__, self._cookie, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that what is sent to our group does not end it before us
            )
        except BaseException:
            with suppress(OSError):
                directory.rmdir()
            raise
        return directory


# The environment that commands see: a few variables of the runtime's own, and what programs need to be quiet.

_PASSED = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TERM|TZ|USER")
"""What commands get unasked. All else may be a secret, whatever its name, or something that bash takes orders from."""

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
"""For programs that would ask, page, colour or wait in an editor. Git's takes each message as it is proposed."""


def environment(
    inherited: Mapping[str, str], added: Mapping[str, str], keep: AbstractSet[str], home: str
) -> dict[str, str]:
    """Make a shell's environment: of what is inherited only what is harmless, or named in `keep`; and what is added."""
    passed = {name: value for name, value in inherited.items() if _PASSED.fullmatch(name)}
    kept = {name: value for name, value in inherited.items() if name in keep}
    return {**passed, **FIXED, "HOME": home, **kept, **added}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each process of the shell may use at most; None leaves what the runtime itself has.

    `processes` is how many more the user may have than when the shell starts, threads too; root is only
    held to it in a sandbox. `memory_bytes` counts what a process has reserved, used or not.
    """

    processes: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Commands run in bubblewrap: the system read-only, no home, an own /tmp, own processes, no network unless set.

    In `/tmp` is room for `scratch_bytes`, which are taken from memory.
    `writable` directories are there under their real paths, `places` also under the paths that are their keys (such as
    `/workspace`), `readable` directories read-only.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    places: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False
    scratch_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        """Refuse a writable directory with another directory of the sandbox in it: commands could replace that one."""
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
    """How one shell works. Times are in seconds, sizes in bytes.

    It starts in `directory`, which is also HOME, and is made if it is missing. `records` is where long outputs and
    those of background jobs are written (`directory/.cfs`). A command is interrupted after `timeout`, and killed
    when it has not ended `grace` later. Of an output `keep` bytes are kept in memory, and `most_recorded` in its file.
    With `merge` an output holds what came on standard error too, in the order in which it came.

    Of the runtime's environment commands see what `environment.py` lists and what `keep_variables` names, and with it
    `environment`. As root, commands can run as another `user`. Should the runtime be killed, a `warden` ends what
    the shell has started.
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
        """Where outputs are written."""
        return self.records or self.directory / ".cfs"

    def unmovable(self, path: Path) -> Path:
        """Return the directory above (or at) a path that commands cannot replace, while they can what is below it."""
        mounts = (*self.sandbox.writable, *self.sandbox.places.values()) if self.sandbox else ()
        return next((base for base in (*mounts, self.directory) if path.is_relative_to(base)), path)

    def inside(self, path: Path) -> str:
        """Return the path under which commands see a directory of the machine."""
        return self.sandbox.inside(path) if self.sandbox else str(path)


# The sandbox that commands run in: what bubblewrap shows them, and which calls of the kernel they have (A5).
#
# What is not listed here is not there. Nothing of the machine is writable but the directories that `Sandbox` names.
# What fails to be set up ends the start: there is no half a sandbox.

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
"""What programs need of /etc, where it is there; nothing of it is secret (`/etc/ssl/private` is)."""

_MADE_UP = {
    "passwd": f"{USER}:x:{_ID}:{_ID}::/workspace:/bin/bash\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n",
    "group": f"{USER}:x:{_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n",
}

_HIDDEN = ("kcore", "keys", "key-users", "timer_list", "sched_debug", "latency_stats", "kallsyms", "modules")
"""What of /proc tells of the whole machine. The rest is read-only: settings of the kernel that belong to the machine's
root can be written by whoever is that user outside, without a capability, and bubblewrap does not cover them then."""

_NUMBERS = range(424, 512)
"""Calls that have one number on all architectures: those since 2019, and those that are still to come."""
_ALLOWED_NUMBERS = {424, 434, 436, 439, 441, 444, 445, 446, 448, 449, 451, 453, 454, 455, 456, 462}
"""Those of them that are harmless: pidfd_send_signal, pidfd_open, close_range, faccessat2, epoll_pwait2, landlock's
three, process_mrelease, futex_waitv, cachestat, map_shadow_stack, three of futexes, mseal. The others are
as if the kernel had never heard of them (io_uring, clone3, openat2, the mounts by descriptors), so that programs fall
back on calls that can be judged by their arguments."""

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
"""A program with one of these bits, left in a workspace, would run outside as whoever owns it."""
_O_CREAT = 0o100
_LOW = 0xFFFFFFFF


def bubblewrap(sandbox: Sandbox, directory: str, private: Path, report: int, data: Callable[[bytes], int]) -> list[str]:
    """Return what stands before the command.

    `private` has pipes and scripts in it, `report` is a descriptor for the pid, and `data` makes a descriptor from
    which bubblewrap reads a text. Raises `ShellUnavailable` where something for it is missing.

    Why not `--die-with-parent`: the system counts the thread that started it as the parent, and such a one ends soon.
    The sandbox ends with its bash, and bash when nobody is there to give it orders.
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
    options += ["--ro-bind", str(private), INSIDE]  # its pipes can be written to all the same
    for each in sandbox.writable:
        options += ["--bind", str(each), str(each)]
    for place, real in sandbox.places.items():
        options += ["--bind", str(real), place]
    for place in ("/proc", "/dev", "/run", "/"):
        options += ["--remount-ro", place]
    return [*_no_cores(), _program(), *options, "--chdir", directory, "--info-fd", str(report), "--"]


def _no_cores() -> list[str]:
    """Return what goes before bubblewrap so that a crash inside starts no program outside.

    Where the system pipes cores into a program, it does so for a limit of 0, too, and only 1 byte keeps it from that.
    """
    program = shutil.which("prlimit")
    return [program, "--core=1:1", "--"] if program else []


def sandbox_trouble() -> str | None:
    """Say why commands cannot run in a sandbox here; None where they can. Takes some milliseconds."""
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
    """Yield the options for /proc, /dev and what is there to write to beside the workspace, all of it bounded."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _HIDDEN:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")
    for place, size in {"/dev/shm": sandbox.scratch_bytes // 4, "/tmp": sandbox.scratch_bytes, "/run": _MIB}.items():  # noqa: S108 - the sandbox's
        yield from ("--size", str(size), "--perms", "1777", "--tmpfs", place)


@cache
def seccomp_filter() -> bytes:
    """Make the filter of calls, in the manner of flatpak's: what a program needs is there, what attacks use is not.

    Raises `ShellUnavailable` where libseccomp is missing: without the filter there is no sandbox.
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
        """Add one; a condition is an argument's number, a mask, and what the masked argument must be."""
        arguments = [pyseccomp.Arg(at, pyseccomp.MASKED_EQ, mask, value) for at, mask, value in conditions]
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), call) != -1:  # this processor has such a call
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
        for call, at in {"open": 1, "openat": 2}.items():
            rule(refused, call, (at, _O_CREAT, _O_CREAT), (at + 1, bit, bit))
    descriptor = os.memfd_create("filter")
    with os.fdopen(descriptor, "r+b") as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


# What the processes of a shell may use at most: the arguments of `ulimit`, and what is usual for an agent.

_GIB = 1 << 30


def usual_limits() -> Limits:
    """Say what an agent's commands may use unless somebody decides otherwise (A5).

    Enough for compilers, tests and servers, and far from what takes the machine down: 1,000 processes more than there
    are, an hour of processor time, files of 16 GiB, and as memory half of the machine's, at least 8 GiB.
    """
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return Limits(processes=1_000, cpu_seconds=3_600, file_bytes=16 * _GIB, memory_bytes=max(half, 8 * _GIB))


def ulimits(limits: Limits, user: int, *, cores: bool = False) -> list[str]:
    """Write limits for a user as arguments of `ulimit`, none above what the system allows.

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
    """Bound a limit by the one that we have ourselves: it could not be raised."""
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
