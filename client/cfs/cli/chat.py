"""`cfs chat`: a conversation at the terminal, or through a pipe."""

import sys

import typer

from cfs.cli.app import DEFAULT_URL, OptionalSession, TokenFile, Url, connect
from cfs.cli.screen import is_terminal

app = typer.Typer(add_completion=False)


@app.command()
def chat(session: OptionalSession = None, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    '''Talk to a session, line by line; the replies are shown as they are generated.

    Ctrl-C cancels the running turn and keeps the session, Ctrl-D ends. A message of several lines stands between two
    """. /help lists the commands. What is piped in is taken line by line, and the replies go to standard output.
    '''
    from uuid import uuid4

    from cfs.cli import prompt
    from cfs.cli.conversation import Conversation

    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    with connect(url, token_file) as client:
        conversation = Conversation(client, session or str(uuid4()), interactive=interactive)
        conversation.begin()
        read_line = prompt.LineEditor(prompt.history_file()).read_line if interactive else prompt.read_input
        for entry in prompt.messages(read_line):
            if not conversation.take(entry):
                return
        if interactive:
            typer.echo()
