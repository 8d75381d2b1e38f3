"""`cfs up`: the server and the mount, started and ended together."""

from pathlib import Path
from typing import Annotated

import typer

from cfs.cli.app import TokenFile, read_token

app = typer.Typer(add_completion=False)


@app.command(context_settings={"ignore_unknown_options": True})
def up(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR|SERVER FLAGS",
            help="An empty directory to mount on, before any flag; /cfs unless given, if there is such a directory. All"
            " further flags are those of `cfs serve`.",
            show_default=False,
        ),
    ] = None,
    mount: Annotated[bool, typer.Option("--mount/--no-mount", help="Show the sessions as files, too.")] = True,
    token_file: TokenFile = None,
) -> None:
    """Start the server, and the mount where this machine can have one; one Ctrl-C ends both.

    When one of them ends, so does the other, and the exit code is that of the first. A server with --tokens needs
    CFS_TOKEN or --token-file for the mount.
    """
    from cfs.cli.starting import Plan, start

    flags = list(arguments or ())
    directory = Path(flags.pop(0)) if flags and not flags[0].startswith("-") else None
    if directory is not None and not mount:
        raise typer.BadParameter("a directory makes no sense with --no-mount")
    read_token(token_file)
    raise typer.Exit(start(Plan(directory, tuple(flags), token_file, mount=mount)))
