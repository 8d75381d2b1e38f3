"""The server's commands of `cfs`. The flags of `serve` come from the table in `settings`.

`cfs --help` imports this module, so that whatever takes long to import is imported by the command that needs it.
"""

import inspect
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.main import get_command

from cfs.cli.base.connection import DEFAULT_URL, connect
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import Json, TokenFile, Url
from cfs.cli.base.output import note, print_error
from cfs.errors import AlreadyExists, ServerError, Unreachable
from cfs_server.main import model_cli
from cfs_server.main.connect_cli import connect as connect_models

if TYPE_CHECKING:
    from cfs_server.access.tokens import Token, TokenGrant
    from cfs_server.backups.backup import BackupInfo, Layout

# `cfs token`: create, list and revoke access tokens (G9, C10).

token_app = CommandGroup("Make, list and revoke access tokens.")

_SHORT: dict[str, list[str]] = {"all": ["list", "file", "read", "write", "delete"], "ro": ["list", "file", "read"]}
_SPAN = re.compile(r"[0-9]{1,6}[mhdwy]")

File = Annotated[
    Path, typer.Option("--tokens", envvar="CFS_TOKENS", help="The tokens file.", show_default=False, dir_okay=False)
]


@token_app.command(name="create")
def create_token(
    name: Annotated[str, typer.Argument(help="Name of the token; logs show it as the caller.")],
    file: File,
    grant: Annotated[
        list[str],
        typer.Option(
            help="PREFIX or PREFIX=OPS; may be repeated. '/' grants everything, '/sessions/alice' that session and its"
            " sub-sessions. OPS: 'all' (default), 'ro' (list, file, read), or comma-separated names."
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(help="Expiry: a duration such as 12h, 30d, 1y, or a date such as 2027-01-31.")
    ] = None,
    sessions: Annotated[int | None, typer.Option(help="Maximum number of sessions.", min=0)] = None,
    size: Annotated[int | None, typer.Option("--bytes", help="Maximum number of bytes.", min=0)] = None,
    streams: Annotated[int | None, typer.Option(help="Maximum number of open streams.", min=0)] = None,
    requests: Annotated[float | None, typer.Option(help="Maximum requests per second.")] = None,
    daily_tokens: Annotated[int | None, typer.Option(help="Maximum tokens of models in a day (UTC).", min=0)] = None,
    daily_cost: Annotated[float | None, typer.Option(help="Maximum cost in US dollars in a day (UTC).", min=0)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="New file for the token, which only you can read; an existing file stays as it is.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Create a token and print it once, or write it to a file with --out; the tokens file stores only its hash."""
    from pydantic import ValidationError

    from cfs_server.access import tokens

    try:
        limits = tokens.TokenLimits(
            sessions=sessions,
            bytes=size,
            streams=streams,
            requests=requests,
            daily_tokens=daily_tokens,
            daily_cost=daily_cost,
        )
        with nullcontext() if out is None else _new_file(out) as target:
            grants = [_grant(text) for text in grant]
            secret = tokens.create(file, name, grants, expires=_time(expires), limits=limits)
            if target is not None:
                target.write(f"{secret}\n")
    except ValidationError as error:
        raise _failure(tokens.first_problem(error)) from None
    except tokens.TokensError as error:
        raise _failure(str(error)) from None
    if out is not None:
        typer.echo(f"The token is in {out}. Servers that run with --tokens {file} accept it.", err=True)
        return
    typer.echo(
        f"Store this token now: it is not shown again. Servers that run with --tokens {file} accept it.", err=True
    )
    typer.echo(secret)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Open a new file that only its owner can read. It goes again if the block fails."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise _failure(f"{path} exists and may hold another token: give --out a new name, or remove the file") from None
    except OSError as error:
        raise _failure(f"{path}: {error.strerror}; give --out another name") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            yield file
    except BaseException:
        path.unlink()
        raise


@token_app.command(name="list")
def list_tokens(file: File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the tokens, without their secrets."""
    from cfs_server.access import tokens

    try:
        stored = tokens.load(file)
    except tokens.TokensError as error:
        raise _failure(str(error)) from None
    if as_json:
        rendered = {name: token.model_dump(mode="json", exclude={"hash"}) for name, token in stored.items()}
        for grant in (grant for token in rendered.values() for grant in token["grants"]):
            grant["ops"].sort()
        typer.echo(json.dumps(rendered))
        return
    for name, token in stored.items():
        typer.echo("  ".join([name, _until(token), *(f"{item.prefix}={_ops(item)}" for item in token.grants)]))


@token_app.command(name="revoke")
def revoke_token(name: Annotated[str, typer.Argument(help="Name of the token.")], file: File) -> None:
    """Revoke a token; a running server refuses it within two seconds."""
    from cfs_server.access import tokens

    try:
        tokens.revoke(file, name)
    except tokens.TokensError as error:
        raise _failure(str(error)) from None


def _grant(text: str) -> "TokenGrant":
    from cfs_server.access.tokens import TokenGrant

    prefix, equals, ops = text.rpartition("=")  # split at the last "=": an id may contain others
    if not equals:
        prefix, ops = text, "all"
    names = _SHORT.get(ops) or [name.strip() for name in ops.split(",")]
    return TokenGrant.model_validate({"prefix": prefix, "ops": names})


def _time(text: str | None) -> datetime | None:
    from cfs.wire import seconds_of
    from cfs_server.access.tokens import TokensError

    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        moment = now + timedelta(seconds=seconds_of(text)) if _SPAN.fullmatch(text) else datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise TokensError(f"{text!r} is no time: write 12h, 30d, 1y, or 2027-01-31") from None
    if moment <= now:
        raise TokensError(f"{text!r} is over already")
    return moment.replace(microsecond=0)


def _until(token: "Token") -> str:
    if token.expires is None:
        return "for ever"
    word = "expired" if token.expired(datetime.now(UTC)) else "until"
    return f"{word} {token.expires.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def _ops(grant: "TokenGrant") -> str:
    for short, names in _SHORT.items():
        if grant.ops == set(names):
            return short
    return ",".join(sorted(grant.ops))


def _failure(reason: str) -> typer.Exit:
    print_error(reason)
    return typer.Exit(2)


_CANNOT = 1


def _shown(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{-(-count // 1024)} KiB"


# `cfs backup`, `cfs restore` and `cfs store check`: the file of all sessions.

store_app = CommandGroup("Check the file of the sessions.")

StoreFile = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FILE",
        help="The file of the sessions (default: that of `cfs serve` with the same variables CFS_*).",
        show_default=False,
    ),
]


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    store: StoreFile = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Write all sessions, and the files of workspaces with their versions, to a file. A running server goes on.

    With --tokens, the server needs a token with all operations on '/'. If no server answers, or with --store, the files
    are read directly; with --store the workspaces are those beside that file.
    """
    from cfs import api
    from cfs.cli.base.complete_file import complete_file
    from cfs.cli.base.progress import progress
    from cfs_server.backups import backup as backups
    from cfs_server.journal.journal import StoreInUse

    with _store_errors(), complete_file(file, force=force) as target:
        source = url
        if store is None:
            try:
                with connect(url, token_file) as client, progress("backing up", in_bytes=True) as advance:
                    client.download(api.backup(), lambda data: advance(target.write(data)))
            except Unreachable:
                source = ""
        if store is not None or not source:
            layout = _layout(store)
            try:
                with progress("backing up"):
                    backups.make(layout, target)
            except StoreInUse as error:
                raise ServerError(f"{error}. If that is a server, give its --url") from None
            source = str(layout.sessions)
    with _store_errors():
        description = backups.describe(file)
    note(f"cfs: {_size_of(description)} from {source} in {file}")
    if description.workspaces is None:
        note("cfs: it has sessions only: there is no folder of workspaces")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `cfs backup` has written.", show_default=False)],
    store: StoreFile = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace sessions that are there.")] = False,
) -> None:
    """Restore a backup. Stop the server first.

    With --store the workspaces are restored beside that file. What was there before is set aside, not deleted. Clients
    notice that the sessions are not those that they have seen: their cursors and versions are no longer valid.
    """
    from cfs.cli.base.progress import progress
    from cfs_server.backups import backup as backups

    layout = _layout(store)
    with _store_errors():
        if not force and ((present := backups.replaced_by(file, layout)).sessions or present.workspaces):
            raise AlreadyExists(
                f"{layout.sessions} holds {_size_of(present)}; --force sets them aside and replaces them"
            )
        with progress("restoring"):
            restored, aside = backups.restore(file, layout)
    note(f"cfs: {_size_of(restored)} restored to {layout.sessions}")
    for path in aside:
        note(f"cfs: what was there is {path}; delete it when you no longer need it")


@store_app.command(name="check")
def check_store(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The file to check, such as a backup (default: that of `cfs serve` with the same variables CFS_*).",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a file of sessions that no server uses: its pages, its checksums, and that its records can be replayed.

    To check the sessions of a running server, check a backup of them.
    """
    from cfs_server.backups import backup as backups
    from cfs_server.engine.host.scripted import ScriptedEngine

    path = _layout(file).sessions
    with _store_errors():
        info, contents, problems = backups.check(path, ScriptedEngine())
    if as_json:
        counted = {"path": str(path), "bytes": info.bytes, "sessions": info.sessions, "records": info.records}
        typer.echo(json.dumps({"ok": not problems, **counted, "problems": problems}))
    else:
        for problem in problems:
            typer.echo(problem)
        word = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}" if problems else "no problems"
        note(f"cfs: {path}: {_size_of(contents)}, {info.records} records: {word}")
    if problems:
        raise typer.Exit(_CANNOT)


_NO_FILE = (
    "this command is for files of sessions, so name one. Those in PostgreSQL are backed up, checked and restored with"
    " the programs of the database (pg_dump, pg_amcheck, psql), and those in memory end with the server."
)


def _layout(given: Path | None) -> "Layout":
    """Return where `cfs serve` would keep sessions and workspaces. Exits if it would use no file."""
    from cfs_server.backups.backup import Layout
    from cfs_server.config.settings import CONFIG_VARIABLE, ConfigurationError, load

    if given is not None and f"{given}".startswith(("postgresql:/", "postgres:/")):  # a path has no double slashes
        raise _failure(_NO_FILE)
    if given is not None:
        return Layout.beside(given)
    config = os.environ.get(CONFIG_VARIABLE)
    try:
        layout = Layout.of(load({}, Path(config) if config else None))
    except ConfigurationError as error:
        raise _failure(str(error)) from None
    if layout is None:
        raise _failure(f"CFS_STORE and CFS_DATA_DIR name no file: {_NO_FILE}")
    return layout


def _size_of(backup: "BackupInfo") -> str:
    sessions = f"{backup.sessions} session{'' if backup.sessions == 1 else 's'}"
    if backup.workspaces:
        sessions += f" and {backup.workspaces} workspace{'' if backup.workspaces == 1 else 's'}"
    return f"{sessions} ({_shown(backup.bytes)})"


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn failures of the store into errors of the command."""
    from cfs_server.journal.journal import StoreFailed

    try:
        yield
    except StoreFailed as error:
        raise ServerError(str(error)) from None


class _ServeCommand(TyperCommand):
    """`cfs serve`, which gets its flags when it runs: the table of settings takes long to import."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Parse the command line by the command with all flags, which then runs."""
        command = _with_flags()
        command.help = self.help
        command.rich_markup_mode = self.rich_markup_mode
        return command.make_context(*arguments, **named)


app = CommandGroup()


@app.command(cls=_ServeCommand)
def serve() -> None:
    """Run the CFS server: sessions over HTTP and WebDAV, answered by the built-in model engine.

    Each flag can also be set by an environment variable (CFS_PORT for --port) or in the TOML file of --config.
    """


def _with_flags() -> Any:
    """Create `cfs serve` with a flag for each setting."""
    from cfs_server.config.settings import CONFIG_VARIABLE, ConfigurationError, ServerSettings, load

    def run(**flags: Any) -> None:
        config = flags.pop("config")
        try:
            settings = load({name: value for name, value in flags.items() if value is not None}, config)
        except ConfigurationError as error:
            raise _failure(str(error)) from None
        from cfs_server.main import serve  # imported here, because --help does not need it

        raise typer.Exit(serve.run(settings))

    config = typer.Option("--config", envvar=CONFIG_VARIABLE, help="TOML file of settings.", show_default=False)
    parameters = [_flag(name) for name in ServerSettings.model_fields]
    parameters.append(
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, config]
        )
    )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    only = CommandGroup(add_completion=False)
    only.command("serve")(run)
    return get_command(only)


def _flag(name: str) -> inspect.Parameter:
    from cfs_server.config.settings import ServerSettings, flag_of

    field = ServerSettings.model_fields[name]
    default = "on" if field.default is True else "" if field.default in (None, "") else str(field.default)
    text = f"{field.description} [default: {default}]" if default not in ("", "False") else field.description
    flag = f"{flag_of(name)}/--no-{flag_of(name)[2:]}" if field.annotation is bool else flag_of(name)
    option = typer.Option(flag, help=text, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_plain(field.annotation) | None, option],
    )


def _plain(annotation: Any) -> Any:
    """Return the type that typer reads from the command line. `ServerSettings` validates the value again."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if annotation in (bool, int, float, Path):
        return annotation
    members = [kind for kind in get_args(annotation) if kind is not type(None)]
    return _plain(members[0]) if len(members) == 1 and isinstance(members[0], type) else str


app.command(name="connect")(connect_models)
app.command()(backup)
app.command()(restore)
app.add_typer(store_app, name="store")
app.add_typer(token_app, name="token")
app.add_typer(model_cli.app, name="model")


@app.callback()
def _server() -> None:
    """The server."""
