"""The records of changes name who made them: a principal, and the agent and its tool call (P2)."""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from cfs import Session
from cfs.api import acting_as
from tests.server.support import serving


def test_a_record_names_the_agent_and_its_call(tmp_path: Path) -> None:
    with serving("--engine", "scripted", "--data-dir", str(tmp_path)) as server:
        with Session("plain", url=server.url) as session:
            session.send("by hand")
        with acting_as(agent="main/übersetzer", call="call 1"), Session("made", url=server.url) as session:
            session.send("by an agent")
        server.signal(signal.SIGTERM)
        status, log = server.ended()
        assert status == 0, log
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection:
        rows = connection.execute("SELECT author, body FROM records WHERE kind = 'message.added'").fetchall()
    authors = {json.loads(body)["message"]["content"]: json.loads(author) for author, body in rows}
    assert authors["by hand"] == {"principal": "local"}
    assert authors["by an agent"] == {"principal": "local", "agent": "main/übersetzer", "call": "call 1"}
