"""Imports of recorded conversations: files that the real programs wrote, with a CFS server as their model.

Long texts of the programs' makers are cut out of the recordings, and the paths are those of nobody.
"""

import sqlite3
from pathlib import Path

from cfs import api
from cfs.transports.http import Client
from cfs.wire import SessionDetail
from tests.client.terminal import cfs, ended

RECORDED = Path(__file__).parent / "recorded"


def recorded(program: str, tmp_path: Path) -> Path:
    """Return the folder of a program's sessions. That of opencode is made from the dump of its database."""
    if program != "opencode":
        return RECORDED / program
    folder = tmp_path / "opencode"
    folder.mkdir(exist_ok=True)
    database = sqlite3.connect(folder / "opencode.db")
    database.executescript((RECORDED / "opencode/opencode.sql").read_text())
    database.close()
    return folder


def cfs_import(url: str, program: str, *arguments: Path) -> tuple[int, str]:
    """Run `cfs import --from`; return the exit code and what it says."""
    code, _, errors = ended(cfs(url, "import", "--from", program, *map(str, arguments)))
    return code, errors


def imported(url: str) -> dict[str, SessionDetail]:
    """Read all sessions of a server."""
    with Client(url) as client:

        def below(prefix: str) -> dict[str, SessionDetail]:
            details = {}
            for info in client.call(api.list_sessions(prefix)).sessions:
                details[info.id] = client.call(api.read(info.id))
                details |= below(f"{info.id}/")
            return details

        return below("")
