"""A tree of agents finishes its task when its runtime, the replica with its sessions, and the database are killed."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cfs_server.journal.postgres_database import prepare
from tests.agents.fibre import killed_tree
from tests.cluster.support import SLOTS, replicas
from tests.postgres import running_postgres
from tests.server.support import environment


@pytest.mark.external
@pytest.mark.timeout(400)
def test_a_tree_of_agents_survives_the_death_of_each_part(tmp_path: Path) -> None:
    """Each is killed once, in the middle of the task. All files are right, and no message is missing or there twice."""
    with running_postgres() as server:
        url = server.url(server.new_database())
        prepare(url, SLOTS)
        with replicas(3, url) as found:
            owner, other = found.owner_of("task"), found.others("task")[0]
            database = server._process
            assert database is not None
            (tmp_path / "owner").write_text(f"{owner.process.pid} {int(signal.SIGKILL)}")
            (tmp_path / "database").write_text(f"{database.pid} {int(signal.SIGQUIT)}")
            victims = [f"30={tmp_path / 'owner'}", f"60={tmp_path / 'database'}", "90=self"]
            command = [sys.executable, killed_tree.__file__, str(tmp_path / "trees"), other.url, "victims", "task"]
            with subprocess.Popen(
                [*command, *victims], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
            ) as program:
                while program.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        database.wait(0.05)
                        if server._process is database:
                            server.stop()
                            server.start()
                    with suppress(subprocess.TimeoutExpired):
                        program.wait(0.1)
                output, errors = program.communicate()
            assert program.returncode == 0, errors[-3000:]
            report: dict[str, Any] = json.loads(output.splitlines()[-1])
            assert report == {"lives": 2, "violations": []}
            assert owner.process.poll() == -signal.SIGKILL
            assert server._process is not database
