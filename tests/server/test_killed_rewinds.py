"""A server that is killed during rewinds of a tree: all of it is as before, or all of it as after (S17)."""

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import NewMessage, RedoRequest, RewindRequest
from tests.server.restarting import Restarting, send_once

NAMES = ("main", "main/a", "main/b")
MESSAGES = 12
WINDOW = 0.03
"""Seconds after the request within which the server is killed: more than a rewind takes."""


@pytest.mark.external
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "kills", [pytest.param(20, id="20 kills"), pytest.param(1000, id="1000 kills", marks=pytest.mark.slow)]
)
def test_a_tree_goes_back_as_a_whole_or_not_at_all(tmp_path: Path, kills: int) -> None:
    chance = random.Random(11)
    with ExitStack() as stack:
        here = Restarting(tmp_path, stack)
        for number in range(MESSAGES):
            for name in NAMES:
                message = NewMessage(content=f"{name} {number}", generate=False, role="assistant")
                here.direct.call(api.post(name, message))
        full = texts(here)
        half = ["".join(text.splitlines(keepends=True)[:count]) for text, count in zip(full, (7, 6, 6), strict=True)]
        seen = {"before": 0, "after": 0}
        for _ in range(kills):
            before = texts(here)
            assert before in (full, half)
            call = (
                api.rewind("main", RewindRequest(to=7, sub_sessions=True))
                if before == full
                else api.redo("main", RedoRequest())
            )
            after = half if before == full else full
            asking = threading.Thread(target=send_once, args=(here.process.url, call))
            asking.start()
            time.sleep(chance.uniform(0, WINDOW))
            here.kill()
            asking.join()
            here.start()
            now = texts(here)
            assert now in (before, after)
            seen["after" if now == after else "before"] += 1
        assert min(seen.values()) > 0, f"the kills came too early or too late: {seen}"


def texts(here: Restarting) -> list[str]:
    """The transcripts of the tree."""
    with Client(here.process.url) as client:
        return [client.call(api.transcript(name)).text for name in NAMES]
