"""The configuration of MCP servers: files in the form `{"mcpServers": {NAME: {...}}}`.

The form is the one that Claude Desktop, Claude Code, Cursor and VS Code read. Keys that CFS does not use are ignored,
so that a file can be shared with them. `${NAME}` and `${NAME:-default}` in a text are replaced by an environment
variable.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from cfs.contract.user_folders import config_folder
from cfs.errors import InvalidSettings

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")

START_SECONDS = 20.0
"""Default time limit of a server's start, with its list of tools."""

CALL_SECONDS = 120.0
"""Default time limit of a call."""


def _is_http(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return url


class McpSandbox(BaseModel):
    """What a confined server may use besides the workspace: folders to `read` and to `write`, and the `network`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False


class McpServer(BaseModel):
    """One server: a program that speaks MCP on its standard input and output, or a URL of a server that runs.

    - `env`: variables of the program, in addition to a few harmless ones such as `PATH` and `HOME`.
    - `start_seconds`, `call_seconds`: time limits (keys `startupTimeout` and `timeout`).
    - `sandbox`: what it may use where commands are confined; false leaves it outside of the sandbox.
    - `disabled`: whether the server is not used.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: Annotated[str, AfterValidator(_is_http)] | None = Field(
        default=None, validation_alias=AliasChoices("url", "serverUrl")
    )
    headers: Mapping[str, str] = {}
    kind: str | None = Field(default=None, alias="type")
    start_seconds: float = Field(default=START_SECONDS, gt=0, alias="startupTimeout")
    call_seconds: float = Field(default=CALL_SECONDS, gt=0, alias="timeout")
    sandbox: McpSandbox | Literal[False] = McpSandbox()
    disabled: bool = False

    @model_validator(mode="after")
    def _check(self) -> "McpServer":
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either `command` (a program) or `url` (a running server)")
        if self.kind == "sse":
            raise ValueError('the transport "sse" is obsolete: use the server\'s URL for streamable HTTP')
        return self


def user_file() -> Path:
    """Return the path of the user's file, which need not exist."""
    return config_folder() / "mcp.json"


def load_servers(files: Iterable[Path]) -> dict[str, McpServer]:
    """Read files and return their servers by name, in order; a later file replaces a server of the same name.

    Disabled servers are left out. Raises `InvalidSettings` with the file, the server and what is wrong.
    """
    servers: dict[str, McpServer] = {}
    for file in files:
        servers.update(_read(file))
    return {name: server for name, server in servers.items() if not server.disabled}


def _read(file: Path) -> dict[str, McpServer]:
    try:
        document = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidSettings(f"{file} is not UTF-8 text") from None
    except ValueError as error:
        raise InvalidSettings(f"{file} is not JSON: {error}") from None
    entries = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise InvalidSettings(f'{file} has no servers: write {{"mcpServers": {{"NAME": {{"command": "PROGRAM"}}}}}}')
    return {name: _server(file, name, entry) for name, entry in entries.items()}


def _server(file: Path, name: str, entry: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        raise InvalidSettings(f"{file}: {name!r} cannot name a server: use up to 32 letters, digits, '_', '.' and '-'")
    disabled = isinstance(entry, dict) and entry.get("disabled") is True
    try:
        return McpServer.model_validate(entry if disabled else _expanded(entry))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(map(str, detail["loc"]))
        raise InvalidSettings(f"{file}: server {name!r}{f', {key}' if key else ''}: {_lower(detail['msg'])}") from None
    except KeyError as error:
        raise InvalidSettings(
            f"{file}: server {name!r} needs the environment variable {error.args[0]}, which is not set"
        ) from None


def _expanded(value: Any) -> Any:
    """Return a value with its variables replaced. Raises `KeyError` for one that is not set and has no default."""
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value)
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item) for key, item in value.items()}
    return value


def _variable(match: re.Match[str]) -> str:
    name, default = match.groups()
    return os.environ[name] if default is None else os.environ.get(name, default)


def _lower(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
