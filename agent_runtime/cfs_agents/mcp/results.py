"""Results of MCP tools as texts for a model; images, sounds, resources and long texts become files of the workspace."""

import base64
import binascii
import hashlib
import json
import mimetypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfs_agents.tools.errors import ToolError
from cfs_filesystem import OPERATIONS, DiskFileSystem, FileSystemError, Grant

if TYPE_CHECKING:
    from mcp.types import CallToolResult

MAX_TEXT = 20_000
"""Characters of a text that a model gets at once; a longer one is a file, of which it gets the beginning."""

_BEGINNING = 2_000
FOLDER = "mcp"
"""The folder of the workspace with these files."""


class ResultFiles:
    """Writes files below `mcp/SERVER` in a workspace. Equal content has one file; links are not followed."""

    def __init__(self, workspace: Path, server: str) -> None:
        self._workspace = workspace
        self._folder = f"/{FOLDER}/{re.sub(r'[^A-Za-z0-9_-]', '-', server)}"

    def write(self, name: str, data: bytes, suffix: str) -> str:
        """Store data and return the path in the workspace. Raises `ToolError` if it cannot be stored."""
        stem = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:40] or "file"
        path = f"{self._folder}/{stem}-{hashlib.sha256(data).hexdigest()[:12]}{suffix}"
        disk = DiskFileSystem(self._workspace)
        try:
            disk.create_handle([Grant(prefix="/", ops=OPERATIONS)]).write(path, data)
        except FileSystemError as error:
            raise ToolError(f"the result of {name} cannot be stored in {path}: {error}") from None
        finally:
            disk.close()
        return path.removeprefix("/")


def text_of_result(tool: str, result: "CallToolResult", files: ResultFiles) -> str:
    """Return a result as text, with its files stored. Raises `ToolError` for a result that is an error."""
    text = "\n".join(_parts(tool, result, files))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if len(text) > MAX_TEXT:
        path = files.write(tool, text.encode("utf-8", "replace"), ".txt")
        note = f"[... this is the beginning of {len(text):,} characters; all of them are in {path} ...]"
        text = f"{text[:_BEGINNING]}\n{note}"
    if result.is_error:
        raise ToolError(text or f"{tool} failed without a reason")
    return text or "done"


def _parts(tool: str, result: "CallToolResult", files: ResultFiles) -> Iterator[str]:
    for part in result.content:
        match part.type:
            case "text":
                yield part.text
            case "image" | "audio":
                yield _file(tool, part.data, part.mime_type, part.type, files)
            case "resource_link":
                yield f"[resource {part.uri}{f': {part.description}' if part.description else ''}]"
            case "resource":
                resource: Any = part.resource
                blob = getattr(resource, "blob", None)
                if blob is None:
                    yield f"[resource {resource.uri}]\n{resource.text}"
                else:
                    yield _file(tool, blob, resource.mime_type, f"resource {resource.uri}", files)


def _file(tool: str, encoded: str, mime_type: str | None, kind: str, files: ResultFiles) -> str:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{kind}: its data is not valid base64]"
    suffix = mimetypes.guess_extension((mime_type or "").partition(";")[0]) or ".bin"
    return f"[{kind}, {len(data):,} bytes, in the file {files.write(tool, data, suffix)}]"
