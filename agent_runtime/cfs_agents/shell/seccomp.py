"""The system calls that commands in a sandbox may not make, as a seccomp filter (A5)."""

import errno
import os
from functools import cache

from cfs_agents.shell.errors import ShellUnavailable

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
    syscall_filter = pyseccomp.SyscallFilter(pyseccomp.ALLOW)

    def rule(action: int, call: str, *conditions: tuple[int, int, int]) -> None:
        """Add a rule; a condition is an argument's number, a mask, and the value of the masked argument."""
        arguments = [pyseccomp.Arg(at, pyseccomp.MASKED_EQ, mask, value) for at, mask, value in conditions]
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), call) != -1:  # this processor has the call
            syscall_filter.add_rule(action, call, *arguments)

    for call in _REFUSED.split():
        rule(refused, call)
    for number in set(_NUMBERS) - _ALLOWED_NUMBERS:
        syscall_filter.add_rule(absent, number)
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
        syscall_filter.add_rule(
            pyseccomp.ERRNO(errno.EAFNOSUPPORT), call, pyseccomp.Arg(0, pyseccomp.GE, _MOST_FAMILIES)
        )
    for bit in _SET_ID:
        for call, at in {"chmod": 1, "fchmod": 1, "fchmodat": 2, "creat": 1, "mknod": 1, "mknodat": 2}.items():
            rule(refused, call, (at, bit, bit))
        for flag in _CREATES:
            for call, at in {"open": 1, "openat": 2}.items():
                rule(refused, call, (at, flag, flag), (at + 1, bit, bit))
    descriptor = os.memfd_create("filter")
    with os.fdopen(descriptor, "r+b") as file:
        syscall_filter.export_bpf(file)
        file.seek(0)
        return file.read()
