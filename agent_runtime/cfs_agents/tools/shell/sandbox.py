"""The command line that puts a shell into bubblewrap."""

import shutil
from pathlib import Path

from cfs_agents.tools.errors import ShellUnavailable
from cfs_agents.tools.shell.outlets import INSIDE
from cfs_agents.tools.shell.settings import Sandbox

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_HIDDEN = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers")
_RESOLVER = ("/run/systemd/resolve", "/run/NetworkManager")


def bubblewrap(sandbox: Sandbox, directory: str, private: Path, report: int) -> list[str]:
    """Return what stands before the command; `private` has pipes and scripts in it, `report` a descriptor for its pid.

    Raises `ShellUnavailable` where there is no bubblewrap.

    Why not `--die-with-parent`: the system counts the thread that started it as the parent, and such a one ends soon.
    The sandbox ends with its bash, and bash when nobody is there to give it orders.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise ShellUnavailable("there is no bubblewrap here (the program bwrap); install it, or choose no sandbox")
    options = [
        *("--new-session", "--cap-drop", "ALL"),
        *("--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *([] if sandbox.network else ["--unshare-net"]),
        *("--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc", "/etc", "--ro-bind-try", "/opt", "/opt"),
    ]
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        else:
            options += ["--ro-bind-try", str(path), str(path)]
    for name in _HIDDEN:
        if Path(name).exists():
            options += ["--ro-bind", "/dev/null", name]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108 - the sandbox's
    if sandbox.network:
        for name in _RESOLVER:
            options += ["--ro-bind-try", name, name]
    for each in sandbox.readable:
        options += ["--ro-bind", str(each), str(each)]
    options += ["--ro-bind", str(private), INSIDE]  # its pipes can be written to all the same
    for each in sandbox.writable:
        options += ["--bind", str(each), str(each)]
    for place, real in sandbox.places.items():
        options += ["--bind", str(real), place]
    return [program, *options, "--chdir", directory, "--info-fd", str(report), "--"]
