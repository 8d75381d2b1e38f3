"""An editor and a mount answer the same question at the same moment, after everything has been killed (A10, F5)."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import Question
from tests.fuse.support import Mount, mounting, reason_to_skip, unmount, until
from tests.server.restarting import Restarting

from .test_acp import ask, editor

pytestmark = [pytest.mark.external]
CALL = json.dumps({"name": "execute_command", "arguments": {"command": "echo x >> log"}})
PROMPT = f"<tool_call>{CALL}</tool_call>"
"""The server's model repeats the message."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test has started is ended."""
    with ExitStack() as stack:
        yield stack


def question_of(client: Client, session: str) -> Question:
    """Wait for the open question of a session."""
    until(lambda: client.call(api.questions(session)))
    return client.call(api.questions(session))[0]


def events_of(client: Client, session: str, last: int) -> list[str]:
    """The types of the events of a session up to a number."""
    found: list[str] = []
    with closing(client.events(api.events(session, after="0"))) as events:
        for event in events:
            found.append(event.type)
            if event.number >= last:
                break
    return found


async def test_the_editor_and_the_mount_answer_at_the_same_moment(stack: ExitStack, tmp_path: Path) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    folder = tmp_path / "site"
    folder.mkdir()
    server = await asyncio.to_thread(Restarting, tmp_path / "data", stack)
    url, client = server.process.url, server.direct
    mount = await asyncio.to_thread(stack.enter_context, mounting(url, tmp_path / "first"))
    async with editor(tmp_path, url=url, status=-9) as (mine, connection):
        mine.choose = lambda: "never"
        session = (await connection.new_session(cwd=str(folder))).session_id
        prompt = asyncio.create_task(ask(connection, session, PROMPT))
        before = await asyncio.to_thread(question_of, client, session)
        await mine.until(lambda: bool(mine.asked))
        mine.process.kill()
        with pytest.raises(ConnectionError):
            await prompt
    await asyncio.to_thread(kill, server, mount)
    assert not (folder / "log").exists()

    await asyncio.to_thread(server.start)
    second = await asyncio.to_thread(stack.enter_context, mounting(url, tmp_path / "second"))
    answered: list[int] = []

    def echo(question: str) -> None:
        path = f"$M/.questions/{session}/{question}"
        answered.append(second.shell(f"echo allow > {path}").returncode)

    async with editor(tmp_path, url=url) as (mine, connection):
        await connection.load_session(cwd=str(folder), session_id=session)
        at_once = threading.Event()
        threads: list[threading.Thread] = []

        def choose() -> str:
            question = question_of(client, session)
            until((second / ".questions" / session / question.id).exists)
            threads.append(threading.Thread(target=echo, args=(question.id,)))
            threads[-1].start()
            at_once.set()
            return "yes"

        mine.choose = choose
        assert (await ask(connection, session, PROMPT)).stop_reason == "end_turn"
        assert at_once.is_set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert len(mine.asked) == len(answered) == 1
    assert (folder / "log").read_text() == "x\n"
    late = await asyncio.to_thread(second.shell, f"echo allow > $M/.questions/{session}/{before.id}")
    assert late.returncode != 0, "the question of the prompt that was killed is over"
    detail = await asyncio.to_thread(client.call, api.read(session))
    types = await asyncio.to_thread(events_of, client, session, detail.event)
    assert (types.count("question.asked"), types.count("question.answered")) == (2, 2)
    assert types.count("call.decided") == 1
    assert (folder / "log").read_text() == "x\n"


def kill(server: Restarting, mount: Mount) -> None:
    """Kill the server and the mount at once."""
    server.kill()
    mount.process.kill()
    mount.process.wait()
    unmount(mount.path)
