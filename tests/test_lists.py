"""Each list stands in one place: a setting, a route and an event touch as many files as docs/where.md says.

The changes are made for real, on a copy of the packages, in the files that the page names and in no others. A server
that runs from the copy then has them.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from cfs.contract.route_words import ROUTE_WORDS
from cfs.wire import EventType
from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.host.scripted import ScriptedEngine

ROOT = Path(__file__).parent.parent
WIRE, CHANGES_OF_STATE = "client/cfs/contract/wire", "server/cfs_server/domain/changes.py"
Edits = Mapping[str, tuple[tuple[str, str], ...]]
"""For each file: texts, and what replaces them."""
CHANGES: dict[str, Edits] = {
    "add a setting of the server": {
        "server/cfs_server/config/settings.py": (
            (
                "    host: str = Field(",
                '    greeting: str = Field("alive", description="What it says.")\n    host: str = Field(',
            ),
        ),
        "server/cfs_server/routes/health.py": (('"status": "alive"', '"status": parts.settings.greeting'),),
    },
    "add a setting of sessions": {
        f"{WIRE}/settings.py": (
            (
                "    model: ModelName | None = None\n",
                "    model: ModelName | None = None\n    suffix: str | None = None\n",
            ),
            (
                "    model: str | None = None\n\n    def",
                '    model: str | None = None\n    suffix: str = ""\n\n    def',
            ),
        ),
        "server/cfs_server/sessions/answering.py": (
            ("reason, turn.text, usage)", "reason, turn.text + session.settings.suffix, usage)"),
        ),
    },
    "add an event": {
        f"{WIRE}/events.py": (('    "settings.changed",\n', '    "settings.changed",\n    "settings.noted",\n'),),
        CHANGES_OF_STATE: (
            (
                '(EventDraft(session.id, "settings.changed", data),)',
                """(
            EventDraft(session.id, "settings.changed", data),
            EventDraft(session.id, "settings.noted", {"note": "n"}),
        )""",
            ),
        ),
        "client/cfs/state/session_state.py": (
            ("    renamed_to: str | None = None\n", '    renamed_to: str | None = None\n    note: str = ""\n'),
            (
                '            case "session.deleted":\n                self.deleted',
                """            case "settings.noted":
                self.note = data["note"]
            case "session.deleted":
                self.deleted""",
            ),
        ),
    },
    "add a REST route": {
        f"{WIRE}/messages.py": (("class Accepted(", "class Note(WireModel):\n    text: str\n\n\nclass Accepted("),),
        f"{WIRE}/__init__.py": (
            ("    NewMessage,\n", "    NewMessage,\n    Note,\n"),
            ('    "NewMessage",\n', '    "NewMessage",\n    "Note",\n'),
        ),
        "server/cfs_server/routes/turns.py": (
            (
                "async def _next(",
                """@router.get("/{id:session}/note", responses={200: answer("A note", json=wire.Note), **problems()})
async def read_note(id: SessionId, sessions: Sessions) -> Response:
    return as_json(wire.Note(text=sessions.get(id, "file").id))


async def _next(""",
            ),
        ),
    },
}
SCRIPT = """
import asyncio, json
import cfs, cfs_server, cfs_server.journal.records as records
from cfs.state import SessionState
from cfs.state.stream import StreamEvent
from cfs.wire import Event, Settings
from cfs_server.cluster.targets import target_of
from tests.server.support import running_server

async def main():
    async with running_server(may_block=True) as server:
        client = server.client
        made = await client.post("/v1/sessions", json={"id": "a", "settings": {"suffix": " and so on"}})
        assert made.status_code == 201, made.text
        reply = (await client.post("/v1/sessions/a/messages?wait=true", json={"content": "hi"})).json()
        await client.patch("/v1/sessions/a/settings", json={"temperature": 1})
        state = SessionState()
        events = [Event.model_validate(json.loads(event.json)) for event in server.store.get("a").log._events]
        for event in events:
            state.apply(StreamEvent(event.type, event.data, "", "a", event.number, event.position, event.time))
        document = (await client.get("/openapi.json")).json()
        print(json.dumps({
            "packages": [cfs.__file__, cfs_server.__file__],
            "greeting": (await client.get("/healthz")).json()["status"],
            "reply": reply["reply"],
            "settings": (await client.get("/v1/sessions/a/settings")).json()["suffix"],
            "patch": document["components"]["schemas"]["SettingsPatch"]["properties"].keys() >= {"suffix"},
            "stored": "suffix" in records.plain(Settings()),
            "events": [event.type for event in events],
            "note_of_state": state.note,
            "note": (await client.get("/v1/sessions/a/note")).json(),
            "no_name": (await client.post("/v1/sessions", json={"id": "a/note"})).status_code,
            "target": target_of("GET", b"/v1/sessions/a/note", b"", {}).kind.name,
            "documented": "Note" in document["components"]["schemas"] and "/v1/sessions/{id}/note" in document["paths"],
        }))

asyncio.run(main())
"""


def rows() -> dict[str, tuple[set[str], int]]:
    """Read for each change of docs/where.md the files that its row links, and how many it touches."""
    found = {}
    for line in (ROOT / "docs/where.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and cells[3].strip(" |").isdigit():
            found[cells[0]] = (set(re.findall(r"\]\(\.\./([^)#]+)", cells[1])), int(cells[3].strip(" |")))
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_touches_the_files_that_the_page_names(change: str) -> None:
    files, count = rows()[change]
    assert CHANGES[change].keys() <= files
    assert len(CHANGES[change]) == count


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Make all changes on a copy of the packages, and return what a server says that runs from it."""
    root = tmp_path_factory.mktemp("changed")
    for package in ("client/cfs", "server/cfs_server", "tools"):
        shutil.copytree(ROOT / package, root / package)
    for edits in CHANGES.values():
        for name, replacements in edits.items():
            text = (root / name).read_text(encoding="utf-8")
            for old, new in replacements:
                assert text.count(old) == 1, (name, old)
                text = text.replace(old, new)
            ast.parse(text)
            (root / name).write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(root / "client"), str(root / "server"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "CFS_GREETING": "hello"}
    for arguments in (["tools/make_route_words.py"], ["-c", SCRIPT]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    yield root, json.loads(done.stdout.splitlines()[-1])
    shutil.rmtree(root)


def test_the_changes_work(changed: tuple[Path, dict[str, Any]]) -> None:
    root, result = changed
    assert all(Path(name).is_relative_to(root) for name in result["packages"])
    assert result["greeting"] == "hello", "a setting of the server is a variable, too"
    assert result["reply"].endswith(" and so on")
    assert result["settings"] == " and so on"
    assert result["patch"]
    assert not result["stored"], "records of version 1 keep their form"
    assert "settings.noted" in result["events"]
    assert result["note_of_state"] == "n"
    assert result["note"] == {"text": "a"}
    assert result["no_name"] == 422, "a word of a route is no name of a sub-session"
    assert result["target"] == "SESSION", "replicas send the route to the session's owner"
    assert result["documented"]


def test_the_words_of_routes_are_those_of_the_session_routes() -> None:
    app = create_app(ServerSettings(engine="scripted"), ScriptedEngine())
    paths = {
        str(route.path_format)
        for route in iter_route_contexts(app.routes)
        if isinstance(route.original_route, APIRoute)
    }
    words = {match[1] for path in paths if (match := re.match(r"/v1/sessions/\{id\}/([a-z_]+)", path))}
    assert words == ROUTE_WORDS, "run scripts/docs"


def test_each_reference_of_the_api_document_leads_to_a_schema_and_none_is_left_over() -> None:
    document = json.dumps(create_app(ServerSettings(engine="scripted"), ScriptedEngine()).openapi())
    references = set(re.findall(r"#/components/schemas/(\w+)", document))
    assert references == json.loads(document)["components"]["schemas"].keys()


def test_the_page_of_events_lists_those_of_the_wire() -> None:
    page = (ROOT / "docs/sessions.md").read_text(encoding="utf-8")
    table = page.partition("| event | meaning | data |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([a-z.]+)` \|", table, re.MULTILINE)) == sorted(get_args(EventType))


@pytest.mark.parametrize(
    "name",
    [
        "client/cfs/state/session_state.py",
        "server/cfs_server/dashboard/session_state.js",
        "integrations/mcp/cfs_mcp/changes.py",
    ],
)
def test_readers_of_events_name_only_those_of_the_wire(name: str) -> None:
    """No checker compares the names in these files with `EventType`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    events = re.findall(r'"((?:session|message|turn|question|history|context|settings|state)\.[a-z]+)"', text)
    assert events
    assert set(events) <= set(get_args(EventType))
