"""The sandbox that commands run in: what bubblewrap shows them, and which calls of the kernel they have (A5).

What is not listed here is not there. Nothing of the machine is writable but the directories that `Sandbox` names. What
fails to be set up ends the start: there is no half a sandbox.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from cfs_agents.tools.errors import ShellUnavailable
from cfs_agents.tools.shell.outlets import INSIDE
from cfs_agents.tools.shell.settings import Sandbox

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
