"""The resources: transcripts of sessions and files of workspaces, listed, read and completed."""

import base64
import mimetypes

from mcp.types import (
    BlobResourceContents,
    Completion,
    ListResourcesResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from cfs import api
from cfs.errors import InvalidParameters, TooLarge
from cfs.transports.async_http import AsyncClient
from cfs_mcp.tools import read_part, text_of
from cfs_mcp.uris import FILE_TEMPLATE, SESSION_TEMPLATE, path_in, session_in, uri_of_file, uri_of_session

PAGE = 100
MAX_BYTES = 8 * 1024 * 1024
MAX_COMPLETIONS = 100
"""The protocol's own limit."""
TEXT = "text/plain"
_BINARY = "application/octet-stream"

TEMPLATES = [
    ResourceTemplate(
        name="session",
        title="Transcript of a session",
        uri_template=SESSION_TEMPLATE,
        description="A conversation as text, with what is being generated. It can be subscribed to.",
        mime_type=TEXT,
    ),
    ResourceTemplate(
        name="file",
        title="File of a workspace",
        uri_template=FILE_TEMPLATE,
        description="A file that the agents of a session share. The path begins with the session's name.",
    ),
]


async def list_page(client: AsyncClient, cursor: str | None) -> ListResourcesResult:
    """Return a page of the resources: first all sessions, then all files. Raises `InvalidParameters`."""
    kind, _, after = (cursor or "sessions:").partition(":")
    if kind == "sessions":
        sessions = await client.call(api.list_sessions(after=after, limit=PAGE))
        resources = [
            Resource(
                name=info.id,
                title=info.title,
                uri=uri_of_session(info.id),
                description=f"{info.messages} messages, {info.state}",
                mime_type=TEXT,
                size=info.size,
            )
            for info in sessions.sessions
        ]
        return ListResourcesResult(
            resources=resources, next_cursor="files:" if sessions.next is None else f"sessions:{sessions.next}"
        )
    if kind == "files":
        files = await client.call(api.files("/workspaces/", after, PAGE))
        resources = [
            Resource(name=file.path, uri=uri_of_file(file.path), mime_type=_type_of(file.path), size=file.size)
            for file in files.files
        ]
        return ListResourcesResult(
            resources=resources, next_cursor=None if files.next is None else f"files:{files.next}"
        )
    raise InvalidParameters("the cursor is not one that this server has given")


async def read(client: AsyncClient, uri: str) -> TextResourceContents | BlobResourceContents:
    """Return a transcript or a file. Raises `TooLarge` for a file of more than 8 MiB."""
    if (session := session_in(uri)) is not None:
        view = await client.call(api.transcript(session))
        return TextResourceContents(uri=uri, mime_type=TEXT, text=view.text)
    path = path_in(uri)
    part = await read_part(client, path, 0, MAX_BYTES)
    if part.size > MAX_BYTES:
        raise TooLarge(f"{path} has {part.size} bytes: read it in parts, with the tool `read_file`")
    text = text_of(part.content, whole=True)
    if text is None:
        return BlobResourceContents(
            uri=uri, mime_type=_type_of(path) or _BINARY, blob=base64.b64encode(part.content).decode()
        )
    return TextResourceContents(uri=uri, mime_type=_type_of(path) or TEXT, text=text)


async def complete(client: AsyncClient, argument: str, value: str) -> Completion:
    """Complete the name of a session or the path of a file."""
    if argument == "session":
        sessions = await client.call(api.list_sessions(value, limit=MAX_COMPLETIONS))
        return Completion(values=[info.id for info in sessions.sessions], has_more=sessions.next is not None)
    if argument == "path":
        directory = value[: value.rfind("/") + 1]
        files = await client.call(api.files(f"/workspaces/{directory}", limit=1000))
        names = [file.path.removeprefix("/workspaces/") for file in files.files]
        fitting = [name for name in names if name.startswith(value)]
        more = files.next is not None or len(fitting) > MAX_COMPLETIONS
        return Completion(values=fitting[:MAX_COMPLETIONS], has_more=more)
    return Completion(values=[])


def _type_of(path: str) -> str | None:
    return mimetypes.guess_type(path)[0]
