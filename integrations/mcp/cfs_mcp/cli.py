"""`cfs mcp`: speak the Model Context Protocol."""

from typing import Annotated

import typer

from cfs.cli.base.connection import DEFAULT_URL, read_token
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import TokenFile, Url
from cfs.errors import InvalidRequest

app = CommandGroup()


@app.command()
def mcp(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve many callers over HTTP, each with its own token, at /mcp.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="With --http: address to listen on. Anything but loopback needs a server with tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="With --http: port; 0 chooses a free one.")] = 8001,
) -> None:
    """Give sessions and files to editors, assistants and agents over MCP.

    Without --http it speaks over standard input and output, for a program that starts it. It uses the server at --url
    with one token. With --http it passes the token of each request on to that server, and has none of its own.
    """
    if http and token_file is not None:
        raise typer.BadParameter("--token-file cannot be combined with --http: each caller sends its own token")
    token = read_token(token_file)
    from cfs.transports.addresses import address_of
    from cfs_mcp import serve  # importing the library takes a second

    try:
        address_of(url, token)
    except InvalidRequest as error:
        raise typer.BadParameter(error.detail) from None
    if http:
        serve.http(url, host, port)
    else:
        serve.stdio(url, token)
