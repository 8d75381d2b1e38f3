"""The files that name MCP servers, in the form of other programs."""

import json
from pathlib import Path

import pytest

from cfs.errors import InvalidSettings
from cfs_agents.mcp.config import load_servers, user_file


def written(folder: Path, document: object) -> Path:
    file = folder / "mcp.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_a_file_of_another_program_is_read_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    file = written(
        tmp_path,
        {
            "mcpServers": {
                "filesystem": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]},
                "remote": {
                    "type": "http",
                    "url": "https://example.test/mcp",
                    "headers": {"Authorization": "Bearer ${TOKEN}"},
                },
                "defaults": {"command": "x", "env": {"LEVEL": "${LEVEL:-info}"}, "alwaysAllow": ["read"]},
                "off": {"command": "x", "args": ["${NOT_SET}"], "disabled": True},
            },
            "inputs": [],
        },
    )
    servers = load_servers([file])
    assert list(servers) == ["filesystem", "remote", "defaults"]
    assert servers["filesystem"].args == ("-y", "@modelcontextprotocol/server-filesystem", ".")
    assert servers["remote"].headers == {"Authorization": "Bearer secret"}
    assert servers["defaults"].env == {"LEVEL": "info"}


def test_a_later_file_replaces_a_server_of_the_same_name(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text('{"mcpServers": {"a": {"command": "one"}, "b": {"command": "two"}}}')
    second.write_text('{"servers": {"a": {"url": "http://localhost:1/mcp"}}}')
    servers = load_servers([first, second])
    assert (servers["a"].command, servers["a"].url, servers["b"].command) == (None, "http://localhost:1/mcp", "two")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", 'has no servers: write {"mcpServers"'),
        ({"mcpServers": {"a b": {"command": "x"}}}, "'a b' cannot name a server"),
        ({"mcpServers": {"a": {}}}, "server 'a': needs either `command` (a program) or `url`"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://h"}}}, "server 'a': needs either"),
        ({"mcpServers": {"a": {"url": "ftp://h"}}}, "server 'a', url: must begin with http:// or https://"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "server 'a', args: input should be a valid tuple"),
        ({"mcpServers": {"a": {"type": "sse", "url": "http://h"}}}, 'the transport "sse" is obsolete'),
        ({"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET_HERE}"}}}}, "variable NOT_SET_HERE"),
        ({"mcpServers": {"a": "x"}}, "server 'a': input should be"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_server(tmp_path: Path, document: object, reason: str) -> None:
    file = written(tmp_path, document)
    with pytest.raises(InvalidSettings) as caught:
        load_servers([file])
    assert str(file) in caught.value.detail
    assert reason in caught.value.detail


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read: No such file"):
        load_servers([tmp_path / "mcp.json"])


def test_the_file_of_the_user_is_in_the_folder_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_file() == tmp_path / "cfs/mcp.json"
