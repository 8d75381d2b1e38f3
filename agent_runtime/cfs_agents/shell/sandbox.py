"""The sandbox of a shell, by bubblewrap (A5).

Commands see only what is listed here, and can write only to the directories that `Sandbox` names. If a part cannot be
set up, the shell does not start.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from cfs_agents.shell.errors import ShellUnavailable
from cfs_agents.shell.output import INSIDE
from cfs_agents.shell.seccomp import seccomp_filter
from cfs_agents.shell.settings import Sandbox

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


def bubblewrap(
    sandbox: Sandbox, directory: str, private: Path | None, report: int | None, data: Callable[[bytes], int]
) -> list[str]:
    """Return the command line of bubblewrap, to which the command is appended.

    `private` is the directory of pipes and scripts of a shell. `report` is a descriptor for the pid. `data` returns a
    descriptor from which bubblewrap reads a text. Raises `ShellUnavailable` if a program or library is missing.

    Why a shell has no `--die-with-parent`: for the system the parent is the thread that starts it, and that thread ends
    soon. The sandbox ends with its bash, and bash ends when its input closes. Another program need not end then.
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
    for host_path in sandbox.readable:
        options += ["--ro-bind", str(host_path), str(host_path)]
    if private is not None:
        options += ["--ro-bind", str(private), INSIDE]  # pipes in it can still be written to
    for host_path in sandbox.writable:
        options += ["--bind", str(host_path), str(host_path)]
    for mount_point, real in sandbox.places.items():
        options += ["--bind", str(real), mount_point]
    for mount_point in ("/proc", "/dev", "/run", "/"):
        options += ["--remount-ro", mount_point]
    options += ["--die-with-parent"] if report is None else ["--info-fd", str(report)]
    return [*_no_cores(), _program(), *options, "--chdir", directory, "--"]


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
        for path in Path("/etc").glob(pattern):
            if path.is_symlink() and not str(path.readlink()).startswith(("/etc", "/run")):
                yield from ("--symlink", str(path.readlink()), str(path))
            else:
                yield from ("--ro-bind-try", str(path), str(path))
    made_up = dict(_MADE_UP)
    if sandbox.network:
        for name in ("hosts", "resolv.conf"):
            path = Path("/etc", name)
            if path.exists():
                made_up[name] = path.read_text("utf-8", "replace")
    for name, text in made_up.items():
        yield from ("--perms", "0444", "--ro-bind-data", str(data(text.encode())), f"/etc/{name}")


def _devices(sandbox: Sandbox) -> Iterator[str]:
    """Yield the options for /proc, /dev and the writable directories of limited size, such as /tmp."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _HIDDEN:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")
    for path, size in {"/dev/shm": sandbox.scratch_bytes // 4, "/tmp": sandbox.scratch_bytes, "/run": _MIB}.items():  # noqa: S108 - the sandbox's
        yield from ("--size", str(size), "--perms", "1777", "--tmpfs", path)
