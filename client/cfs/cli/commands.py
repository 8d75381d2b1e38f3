"""Defines the commands of `cfs` with their arguments and help; they import their code when they run (C10)."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from cfs.cli.base.connection import DEFAULT_URL, connect, read_token
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import (
    Background,
    Json,
    OptionalSession,
    OptionalSessions,
    ProgramName,
    Session,
    Sessions,
    TokenFile,
    Url,
    check_name,
    session_argument,
    session_names,
)
from cfs.cli.base.output import note, show

TurnSetting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting for this turn only, such as temperature=0 or max_tokens=50 (repeatable).",
        show_default=False,
    ),
]
NewName = Annotated[str, typer.Argument(metavar="NEW", help="The new name.", callback=check_name, show_default=False)]


def send(
    session: Session,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|-",
            help="The message; several words are joined by spaces. Without it, or with '-', the message is read from"
            " standard input.",
            show_default=False,
        ),
    ] = None,
    settings: TurnSetting = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Any text that identifies this message. If the command is repeated with it, the message is not sent"
            " again, and the reply to the first one is printed.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the reply, or exit once the message is accepted.")
    ] = True,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Send a message to a session and print the reply. If the session does not exist, it is created.

    On a terminal the reply is printed while it is generated, and a question of an agent, such as whether a command may
    run, is asked there. Without a terminal, a question ends the command with exit code 5 and a line that says how to
    answer. Ctrl-C stops waiting; the turn continues on the server.
    """
    from cfs.cli.actions.send import read_message, run

    message = read_message(text or [], settings or [])
    with connect(url, token_file) as client:
        run(client, session, message, wait=wait, as_json=as_json, idempotency_key=idempotency_key)


def ask(
    words: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", help="The question; several words are joined by spaces.", show_default=False),
    ],
    settings: TurnSetting = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Ask a question in today's session and print the reply. `cfs 'a question in quotes'` is short for it.

    The session is named after the date, such as 2027-01-31; its name is printed on standard error.
    """
    from datetime import datetime

    from cfs.cli.actions.send import read_message, run

    session = f"{datetime.now().astimezone():%Y-%m-%d}"
    message = read_message(words, settings or [])
    with connect(url, token_file) as client:
        note(f"[session {session}]")
        run(client, session, message, wait=True, as_json=as_json)


def chat(
    session: OptionalSession = None,
    latest: Annotated[bool, typer.Option("--continue", "-c", help="Continue the session that changed last.")] = False,
    may_start: Annotated[
        bool, typer.Option("--up", help="Start a server in the background if none answers; `cfs down` ends it.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    '''Chat with a session line by line. Replies are printed while they are generated.

    Ctrl-C cancels the running turn and keeps the session; Ctrl-D exits. Questions of agents are asked at the terminal;
    without one, a question ends the command with exit code 5 and a line that says how to answer. Put a message of
    several lines between two """. /help lists the commands. Piped input is read line by line, and the replies go to
    standard output.
    '''
    from cfs.cli.actions.chat import run
    from cfs.cli.actions.sessions import latest_session

    if latest and session:
        raise typer.BadParameter("either the name of a session or --continue")
    with connect(url, token_file) as client:
        if may_start:
            from cfs.cli.base.background import start_server

            start_server(client)
        run(client, latest_session(client) if latest else session)


def cat(
    session: Session,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait until no turn is running or queued, or print at once."),
    ] = True,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the transcript, then new text as it arrives, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Print the transcript of a session once no turn is running or queued.

    --json prints one object with the structured messages; --follow --json prints one event per line.
    """
    from cfs.cli.actions.cat import follow_session, print_detail, print_text

    with connect(url, token_file) as client:
        if follow:
            follow_session(client, session, as_json=as_json)
        elif as_json:
            print_detail(client, session, wait=wait)
        else:
            print_text(client, session, wait=wait)


def ls(
    prefix: Annotated[
        str,
        typer.Argument(
            help="Only names that begin with this; 'main/' lists the sub-sessions directly below 'main'.",
            autocompletion=session_names,
            show_default=False,
        ),
    ] = "",
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            "-l",
            help="Also print state, queued turns, messages, bytes, time of change and number of sub-sessions.",
        ),
    ] = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List sessions by name, one per line."""
    from cfs.cli.actions.sessions import list_sessions

    with connect(url, token_file) as client:
        list_sessions(client, prefix, long=long, as_json=as_json)


def search(
    words: Annotated[
        list[str], typer.Argument(help="Words that must all occur, \"phrases\" and beginnings ('word*').")
    ],
    within: Annotated[str, typer.Option("--in", metavar="SESSION", help="Only this session and those below it.")] = "",
    role: Annotated[str | None, typer.Option("--role", help="Only messages of this role: system, user, ...")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only what is newer: 30m, 12h, 7d, or 2026-11-30.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Maximum number of matches.")] = 20,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Search in the messages and titles of all sessions that you may read, the best match first."""
    from cfs.cli.actions.search import print_matches

    with connect(url, token_file) as client:
        print_matches(client, " ".join(words), within=within, role=role, since=since, limit=limit, as_json=as_json)


def ps(as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """List what runs now: sessions and sub-sessions with turns, the tokens that they have used, and since when."""
    from cfs.cli.actions.sessions import list_active

    with connect(url, token_file) as client:
        list_active(client, as_json=as_json)


def open_(
    session: Annotated[
        str | None,
        session_argument("Session to show (default: the first page)."),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Open the dashboard in the browser. Without a browser, print its address."""
    import os
    import webbrowser
    from urllib.parse import quote

    address = url.rstrip("/") + (f"/#conversation/{quote(session)}" if session else "/")
    has_display = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not ((has_display or os.environ.get("BROWSER")) and webbrowser.open(address)):
        typer.echo(address)


def questions(
    session: Annotated[str | None, session_argument("Name of the session (default: all sessions).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="The questions of all sessions; the default.")] = False,
    answer: Annotated[
        bool, typer.Option("--answer", "-a", help="Ask you each question at the terminal, and send your answers.")
    ] = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List the open questions of agents: of a session and its sub-sessions, or of all sessions."""
    from cfs.cli.actions.questions import answer_each, list_questions

    if everything and session is not None:
        raise typer.BadParameter("name a session, or use --all")
    if answer and as_json:
        raise typer.BadParameter("--answer asks at the terminal: it has no --json")
    with connect(url, token_file) as client:
        if answer:
            answer_each(client, session)
        else:
            list_questions(client, session, as_json=as_json)


def answer(
    session: Session,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[QUESTION] ANSWER",
            help="allow, deny, always (this exact call from now on), or another choice that `cfs questions` shows;"
            " before it, the beginning of the question's id if several are open.",
            show_default=False,
        ),
    ],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Answer a question of a session's agent, such as whether a command may run. The first answer counts."""
    from cfs.cli.actions.questions import answer_question

    with connect(url, token_file) as client:
        answer_question(client, session, words)


def set_(
    session: Session,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="New values, such as temperature=0.2 or model=smollm2; KEY= restores the default. Without any, the"
            " settings are printed.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Change the settings of a session, or print them."""
    from cfs.cli.actions.sessions import configure_session

    with connect(url, token_file) as client:
        configure_session(client, session, assignments or [], as_json=as_json)


def rename(
    session: Annotated[
        str,
        session_argument("Name of the session.", metavar="OLD"),
    ],
    name: NewName,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Give a session another name, and its sub-sessions with it."""
    from cfs import api

    with connect(url, token_file) as client:
        client.call(api.rename(session, name))


def fork(
    session: Session,
    copy: Annotated[
        str | None,
        typer.Argument(
            metavar="NEW",
            help="Name of the copy (default: SESSION-2, or the next number).",
            callback=check_name,
            show_default=False,
        ),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(
            "--messages",
            min=0,
            help="Copy only so many messages from the beginning, and the files as they were then.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Copy the files of its workspace, too.")] = True,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Copy a session with its files, and print the name of the copy. Both continue independently."""
    from cfs import api

    with connect(url, token_file) as client:
        forked = client.call(api.fork(session, copy, messages, files=files))
    show(forked.id + "\n")
    for warning in forked.warnings:
        note(warning)


PastSession = Annotated[
    str,
    typer.Argument(
        metavar="SESSION[@VERSION]",
        help="Name of the session, and a version: its number, or a time such as 2027-01-31T12:00.",
        autocompletion=session_names,
        show_default=False,
    ),
]
Theirs = Annotated[bool, typer.Option("--theirs", help="Leave files that others have changed since as they are.")]
Ours = Annotated[bool, typer.Option("--ours", help="Take files back although others have changed them since.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what it would do, and change nothing.")]


def log(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many versions, the newest ones.")] = 50,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List the versions of a session: each message, edit and rewind is one, with its number, time and author."""
    from cfs.cli.actions.past import list_versions

    with connect(url, token_file) as client:
        list_versions(client, session, limit, as_json=as_json)


def show_(
    session: PastSession,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Print the transcript of a session as it was: `cfs show main@12`. Without a version, as it is."""
    from cfs.cli.actions.past import show_version

    with connect(url, token_file) as client:
        show_version(client, session, as_json=as_json)


def diff(
    old: PastSession,
    new: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION[@VERSION]]",
            help="What to compare with (default: the session as it is).",
            show_default=False,
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Compare two versions of transcripts: `cfs diff main@12 main@15`. The exit status is 1 if they differ."""
    from cfs.cli.actions.past import compare_versions

    with connect(url, token_file) as client:
        compare_versions(client, old, new)


def rewind(
    session: Session,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="VERSION", help="Number of the version (see `cfs log`), or a time.", show_default=False
        ),
    ],
    only_chat: Annotated[bool, typer.Option("--chat", help="Only the messages; files stay as they are.")] = False,
    only_files: Annotated[bool, typer.Option("--files", help="Only the files; the messages stay.")] = False,
    theirs: Theirs = False,
    ours: Ours = False,
    children: Annotated[bool, typer.Option("--children", help="Take the sub-sessions back to the same time.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Take a session, and the files that its agent has changed, back to an earlier version.

    Running and waiting turns are cancelled. A file that somebody else has changed since ends the command with the list
    of such files, and nothing changes. Nothing is lost: `cfs redo` undoes it, and each version can be read with `cfs
    show`.
    """
    from cfs.cli.actions.past import rewind_session
    from cfs.contract.wire import RewindRequest

    how = RewindRequest(
        to=0,
        messages=not only_files,
        files=not only_chat,
        others=_others(theirs=theirs, ours=ours),
        sub_sessions=children,
        dry_run=dry_run,
    )
    with connect(url, token_file) as client:
        rewind_session(client, session, to, how, as_json=as_json)


def redo(
    session: Session,
    theirs: Theirs = False,
    ours: Ours = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Undo the last rewind of a session, in all sessions that it changed, and of files."""
    from cfs.cli.actions.past import redo_session
    from cfs.contract.wire import RedoRequest

    how = RedoRequest(others=_others(theirs=theirs, ours=ours), dry_run=dry_run)
    with connect(url, token_file) as client:
        redo_session(client, session, how, as_json=as_json)


def merge(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Name of the session whose files are merged.",
            callback=check_name,
            autocompletion=session_names,
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Name of the session whose files get the changes.",
            callback=check_name,
            autocompletion=session_names,
            show_default=False,
        ),
    ],
    dry_run: DryRun = False,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Merge the files of a copy of a session back into the original, or those of the original into the copy.

    A text file that both have changed is merged by lines. If that is not possible, it stays as TARGET has it, and files
    beside it, with the names of both, have both contents. The exit status is 1 if there are such conflicts.
    """
    from cfs.cli.actions.merging import merge_files

    with connect(url, token_file) as client:
        merge_files(client, source, target, dry_run=dry_run, as_json=as_json)


def _others(*, theirs: bool, ours: bool) -> Literal["refuse", "theirs", "ours"]:
    if theirs and ours:
        raise typer.BadParameter("give --theirs or --ours, not both")
    return "theirs" if theirs else "ours" if ours else "refuse"


files = CommandGroup("Look into the files of a workspace, and into their past.")

FilePlace = Annotated[
    str,
    typer.Argument(
        metavar="NAME[/PATH][@VERSION]",
        help="A workspace, which has the name of its session, or a file or folder in it, now or at a version: the"
        " number of a change, or a time such as 2026-11-27T12:00:00Z.",
        show_default=False,
    ),
]


@files.command(name="ls")
def list_files(place: FilePlace, as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """List files with their sizes and times: `cfs files ls main@12`."""
    from cfs.cli.actions.files import list_files

    with connect(url, token_file) as client:
        list_files(client, place, as_json=as_json)


@files.command(name="log")
def log_files(
    place: FilePlace,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of changes, the newest first.")] = 50,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List the changes of a workspace, a file or a folder: number, time, author and files.

    A change of kind `outside` was made by a program on the disk, not through the server.
    """
    from cfs.cli.actions.files import list_changes

    with connect(url, token_file) as client:
        list_changes(client, place, limit, as_json=as_json)


@files.command(name="show")
def show_file(place: FilePlace, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Write a file to standard output, byte for byte: `cfs files show main/src/a.py@12`."""
    from cfs.cli.actions.files import print_file

    with connect(url, token_file) as client:
        print_file(client, place)


@files.command(name="diff")
def diff_files(
    old: FilePlace,
    new: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME[/PATH][@VERSION]]",
            help="What to compare with (default: the same as it is now).",
            show_default=False,
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Compare files, folders or workspaces: `cfs files diff main@12 main@15`. The exit status is 1 if they differ."""
    from cfs.cli.actions.files import compare

    with connect(url, token_file) as client:
        if compare(client, old, new):
            raise typer.Exit(1)


@files.command(name="blame")
def blame_file(place: FilePlace, as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Show the change that brought each line of a file: number, time and author.

    Of a change by an agent, the first line of the message that it was answering is shown below. Renames are followed.
    """
    from cfs.cli.actions.file_blame import blame_file

    with connect(url, token_file) as client:
        blame_file(client, place, as_json=as_json)


@files.command(name="git")
def write_git(
    workspace: Annotated[str, typer.Argument(metavar="NAME", help="A workspace.", show_default=False)],
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A new folder, or one that this command has written before.", show_default=False
        ),
    ],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Write the versions of a workspace as a bare git repository, a commit for each change.

    Given again, it adds the changes since. What git cannot hold is listed at the end.
    """
    from cfs.cli.actions.file_git import write_repository

    with connect(url, token_file) as client:
        write_repository(client, workspace, directory)


share = CommandGroup("Make, list and revoke links that let others read a session, or write to it.")


@share.command(name="create")
def create_share(
    session: Session,
    access: Annotated[
        Literal["read", "write"], typer.Option("--access", help="Whether the link allows to write messages, too.")
    ] = "read",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="TIME",
            help="When the link ends: after 12h, 30d or 1y (default: never).",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Make a link to a session and all below it, and print it. It contains a token that is shown only once."""
    from cfs.cli.actions.shares import create, seconds_until

    seconds = seconds_until(expires)
    with connect(url, token_file) as client:
        create(client, session, access, seconds, as_json=as_json)


@share.command(name="list")
def list_shares(session: Session, as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """List your links to a session: id, what each allows, and when it ends."""
    from cfs.cli.actions.shares import print_shares

    with connect(url, token_file) as client:
        print_shares(client, session, as_json=as_json)


@share.command(name="revoke")
def revoke_share(
    share_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the link, as `cfs share list` prints it.", show_default=False)
    ],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Revoke a link. Streams that use it end at once."""
    from cfs import api

    with connect(url, token_file) as client:
        client.call(api.revoke_share(share_id))


def rm(
    sessions: Sessions,
    force: Annotated[bool, typer.Option("--force", "-f", help="Ignore sessions that do not exist.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Delete sessions and their sub-sessions. Their running and queued turns are cancelled."""
    from cfs.cli.actions.sessions import delete_sessions

    with connect(url, token_file) as client:
        delete_sessions(client, sessions, force=force)


def export(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR",
            help="The file to write, such as sessions.tar or sessions.tar.gz; with --as a folder, also that of"
            " the other program, such as ~/.codex.",
            show_default=False,
        ),
    ],
    sessions: OptionalSessions = None,
    everything: Annotated[bool, typer.Option("--all", help="Export all sessions that you may list.")] = False,
    program: Annotated[
        ProgramName | None,
        typer.Option("--as", help="Write session files of this program instead.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", help="With --as: the working folder of the sessions (default: this one).", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite files.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Write sessions and their sub-sessions to a tar file: the transcripts as text, and all details as JSON.

    The file can be read without CFS. `cfs import` creates the sessions on another server.

    With --as, each session becomes a session of another program, whose command to continue it is printed. What that
    program has no place for is said at the end.
    """
    if everything == bool(sessions):
        raise typer.BadParameter("name the sessions to export, or use --all")
    if folder is not None and program is None:
        raise typer.BadParameter("--folder is for --as")
    with connect(url, token_file) as client:
        if program is not None:
            from cfs.cli.actions.program_exports import export_program

            export_program(client, program, file, sessions or None, folder=folder, force=force)
        else:
            from cfs.cli.actions.exports import export_sessions

            export_sessions(client, file, sessions or None, force=force)


def import_(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE|DIR",
            help="A file that `cfs export` has written; with --from the folder of the other program, or one of its"
            " files (default: where the program stores its sessions).",
            show_default=False,
        ),
    ] = None,
    program: Annotated[
        ProgramName | None,
        typer.Option("--from", help="Import the conversations of this program.", show_default=False),
    ] = None,
    rename: Annotated[
        bool, typer.Option("--rename", help="Import under a new name (NAME-2) if another conversation has the name.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Create the sessions of an exported file, or of another program, on a server.

    A session that is there already is left as it is, so the same file can be imported again. If another conversation
    has the name of a session, nothing is imported. An unanswered message at the end is answered now.

    With --from, each conversation becomes a session PROGRAM-ID, and its sub-agents sub-sessions. A session that exists
    gets the messages that are new. Nothing is answered. Lines that cannot be read are named, and the rest is imported;
    at the end, a line says what has no place in CFS.
    """
    if program is None and path is None:
        raise typer.BadParameter("name the file to import, or a program with --from")
    if program is not None and rename:
        raise typer.BadParameter("--rename is for exports of CFS; with --from the names come from the program's ids")
    with connect(url, token_file) as client:
        if program is not None:
            from cfs.cli.actions.program_imports import import_program

            import_program(client, program, path)
        elif path is not None:
            from cfs.cli.actions.imports import import_sessions

            import_sessions(client, path, rename=rename)


def up(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR|SERVER FLAGS",
            help="Empty directory to mount on, before any flag (default: /cfs, if it exists). All other flags are"
            " passed to `cfs serve`.",
            show_default=False,
        ),
    ] = None,
    mount: Annotated[bool, typer.Option("--mount/--no-mount", help="Mount the sessions as files, too.")] = True,
    in_background: Background = False,
    token_file: TokenFile = None,
) -> None:
    """Start the server, and the mount if this machine supports it. Ctrl-C ends both.

    When one of them exits, the other is ended, and the exit code is that of the first. With --tokens, the mount needs
    CFS_TOKEN or --token-file. With --background, `cfs logs` shows the log, and `cfs down` ends both.
    """
    from cfs.cli.actions.up import UpPlan, refuse_second, start
    from cfs.cli.base import background

    flags = list(arguments or ())
    directory = Path(flags.pop(0)) if flags and not flags[0].startswith("-") else None
    if directory is not None and not mount:
        raise typer.BadParameter("a directory cannot be combined with --no-mount")
    read_token(token_file)
    refuse_second(flags)
    if in_background:
        raise typer.Exit(background.start())
    raise typer.Exit(start(UpPlan(f"{__package__}.child", directory, tuple(flags), token_file, mount=mount)))


def down(url: Url = DEFAULT_URL) -> None:
    """End the server that `cfs up --background` has started, with its mount and the agents in the background."""
    from cfs.cli.base.background import stop_server

    stop_server(url)


def logs(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            help="Session of an agent in the background (default: the log of the server).",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines, too, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines to begin with.")] = 100,
    url: Url = DEFAULT_URL,
) -> None:
    """Print the log of a server or an agent that was started with --background."""
    from cfs.cli.base.background import agent_log, read_log, server_log

    for text in read_log(agent_log(session) if session else server_log(url), lines, follow=follow):
        show(text)


def doctor(as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Check this machine, the installation and the server, and print how to fix what is missing.

    The exit code is 0 if everything that `cfs serve` needs is there. What only other commands need is marked, but is
    not an error.
    """
    from cfs.cli.actions.doctor import run

    run(url, token_file, as_json=as_json)
