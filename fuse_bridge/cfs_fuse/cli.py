"""`cfs mount`: mount the sessions of a server."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from cfs.cli.base.connection import DEFAULT_URL, read_token
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import TokenFile, Url
from cfs.cli.base.output import print_error

app = CommandGroup()


@app.command()
def mount(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Empty directory to mount on.", show_default=False)],
    url: Url = DEFAULT_URL,
    dav: Annotated[
        str | None,
        typer.Option(
            "--dav",
            metavar="URL",
            help="Mount this WebDAV folder with davfs2 instead, such as http://HOST:PORT/dav/workspaces/main; a URL"
            " without a path means the sessions. Needs root.",
            show_default=False,
        ),
    ] = None,
    token_file: TokenFile = None,
    commit: Annotated[
        Literal["close", "write"],
        typer.Option(help="When written text becomes a message: when the file is closed, or with each write."),
    ] = "close",
    rename_wait: Annotated[
        float,
        typer.Option(
            min=0,
            max=10,
            metavar="SECONDS",
            help="How long the first reply in a new session waits for the file to be renamed over another one, as"
            " programs do that save by a temporary file. Reading the session ends the wait.",
        ),
    ] = 0.5,
    background: Annotated[
        bool, typer.Option("--background/--foreground", help="Return as soon as the mount is ready.")
    ] = False,
    allow_other: Annotated[
        bool, typer.Option(help="Allow all users of this machine, with the access rights of this mount.")
    ] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Log file (default: standard error).", show_default=False)
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Minimum log level.")
    ] = "warning",
    detach: Annotated[bool, typer.Option("--detach", hidden=True)] = False,
) -> None:
    """Mount the server's sessions as files, for echo, cat, tail -f, vim.

    Unmount with `fusermount3 -u DIRECTORY` (with --dav: `umount DIRECTORY`), or end the process.
    """
    from cfs_fuse.checks import CannotMountError

    if dav is not None:
        _check_usage(context)
    logging.basicConfig(
        filename=log_file, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        token = read_token(token_file)
        if background:
            _in_background(directory)
            return

        def ready(server: str) -> None:
            _say(f"ready: {server} on {directory}", detach=detach)

        def tell(sentence: str) -> None:
            print_error(sentence)
            if log_file:
                logging.getLogger("cfs_fuse").warning(sentence)

        # Heavy imports are deferred so that --help is fast.
        if dav is not None:
            from cfs_fuse import davfs_mount

            davfs_mount.run(davfs_mount.DavfsOptions(directory, dav, token, shared=allow_other), ready, tell)
        else:
            from cfs_fuse.mount import MountOptions, run

            run(
                MountOptions(
                    directory,
                    url,
                    token,
                    commit_writes=commit == "write",
                    shared=allow_other,
                    rename_wait=rename_wait,
                ),
                ready,
            )
    except (CannotMountError, OSError) as error:
        print_error(str(error))
        raise typer.Exit(1) from None


def _check_usage(context: typer.Context) -> None:
    """Raise `typer.BadParameter` for an option that cannot be combined with --dav."""
    for name in ("url", "commit", "rename_wait"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name.replace('_', '-')} cannot be combined with --dav")


def _say(text: str, *, detach: bool) -> None:
    typer.echo(text)
    sys.stdout.flush()
    if detach:  # the parent process reads our output to its end
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)


def _in_background(directory: Path) -> None:
    """Start the same command in a new process, and wait until it is ready."""
    from cfs_fuse.checks import CannotMountError

    arguments = [argument for argument in sys.argv[1:] if argument != "--background"]
    if arguments[:1] == ["mount"]:
        del arguments[0]
    process = subprocess.Popen(  # noqa: S603 - the same command
        [sys.executable, "-m", "cfs_fuse", *arguments, "--foreground", "--detach"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None,
        text=True,
        start_new_session=True,
        env=os.environ,
    )
    assert process.stdout is not None  # noqa: S101 - for the type checker
    line = process.stdout.readline()
    if not line.startswith("ready"):
        if process.wait() == 1:  # it has printed the reason
            raise typer.Exit(1)
        raise CannotMountError(f"nothing is mounted on {directory}: the process ended with status {process.returncode}")
    typer.echo(line.strip())
