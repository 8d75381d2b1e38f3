"""`cfs send`: one message, and its reply."""

import sys
from typing import Annotated

import typer

from cfs.cli.app import DEFAULT_URL, REFUSED, Json, Session, TokenFile, Url, complain, connect
from cfs.cli.screen import is_terminal, note, show

app = typer.Typer(add_completion=False)


@app.command()
def send(
    session: Session,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|-",
            help="The message; several words are joined by blanks. '-', or nothing, reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting for this turn only, such as temperature=0 or max_tokens=50; any number of times.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the reply, or end as soon as the message is accepted.")
    ] = True,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Send a message to a session, which is made if it is new, and print the reply.

    On a terminal the reply is shown as it is generated. Ctrl-C stops waiting; the turn goes on.
    """
    from cfs import api
    from cfs.cli import answers, assignments
    from cfs.errors import InvalidSettings
    from cfs.wire import NewMessage, TurnSettings

    try:
        changed = assignments.read(settings or (), TurnSettings)
    except InvalidSettings as error:
        raise typer.BadParameter(error.detail, param_hint="--set") from None
    message = NewMessage(content=_message(text or []), settings=changed)
    streaming = is_terminal(sys.stdout) and not as_json
    with connect(url, token_file) as client:
        if not wait:
            accepted = client.call(api.post(session, message))
            show(accepted.model_dump_json() + "\n" if as_json else "")
            return
        try:
            reply = answers.answer(
                client,
                session,
                message,
                show if streaming else lambda _: None,
                lambda event: note(remark) if streaming and (remark := answers.remark(event)) else None,
            )
        except KeyboardInterrupt:
            note(f"\nThe turn goes on: cfs cat {session}")
            raise
    if as_json:
        show(reply.model_dump_json() + "\n")
    elif streaming or reply.error is None:
        show("\n" if streaming else reply.reply + "\n")
    if reply.error is not None:
        complain(f"the turn failed: {reply.error}")
        raise typer.Exit(REFUSED)
    if reply.finish_reason == "cancelled":
        complain("the turn was cancelled")
        raise typer.Exit(REFUSED)


def _message(words: list[str]) -> str:
    """Take the message from the arguments or from standard input, as a write to a file would be taken (S3)."""
    text = " ".join(words) if words and words != ["-"] else _standard_input()
    text = text.removesuffix("\n").removeprefix("User: ")
    if not text.strip():
        raise typer.BadParameter("the message is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("the message is not UTF-8") from None
    return text


def _standard_input() -> str:
    if is_terminal(sys.stdin):
        note("Type the message; Ctrl-D on a line of its own sends it.")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"the message is not UTF-8: {error.reason} at byte {error.start}") from None
