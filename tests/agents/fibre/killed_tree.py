"""Kill a tree of agents at many points, and let other processes go on with it. Run by test_killed.py as a program.

    python killed_tree.py FOLDER URL every N        a life killed at a point, and one that is not; each Nth point
    python killed_tree.py FOLDER URL random N SEED  the same at N points drawn by a seed
    python killed_tree.py FOLDER URL stumbling N    one task in lives that are each killed at their point N
    python killed_tree.py FOLDER URL victims SESSION N=FILE ...
                                                    one task; at point N the process that FILE names gets a signal:
                                                    FILE contains its pid and the signal, and `self` is the runtime

With CFS_VICTIM=server the server is killed at the point instead, and with both the server and then the runtime. Its pid
is in the file CFS_SERVER_PID, and the test starts it again.

Points are before and after everything that is written, asked of the server or of a model. Prints, as JSON, what was
found. A program of its own, since a test run with threads must not fork.
"""

import asyncio
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from cfs import api
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message
from cfs_agents.base.disk import AppendedFile
from cfs_agents.loop.model import Item
from cfs_agents.loop.retries import Retries
from cfs_agents.main.testing import Line, ScriptedModel, calls, says, together
from cfs_agents.tree import session_folder as session_files
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent

MOST_KILLS = 400
VICTIM = os.environ.get("CFS_VICTIM", "runtime")
SERVER = Path(os.environ.get("CFS_SERVER_PID", "/nowhere"))
REACHED = SERVER.with_name("reached")
"""Exists if the server was killed in this life."""
TASK = "Let two agents make files."
ANSWER = "All files are there."


def _spawn(name: str) -> Line:
    role, goal = f"{name} works", f"{name}: make your file"
    return calls(
        "sys_spawn_agent", agent_name=name, role_description=role, system_instruction=f"You are {name}.", task_goal=goal
    )


def _wait(name: str) -> Line:
    return calls("sys_wait_agent", agent_id=name)


def _work(name: str) -> list[Line]:
    done = calls("sys_finish_task", status="success", summary=f"{name} is done", details={})
    return [calls("write_file", path=f"{name}.txt", content=name), calls("read_file", path=f"{name}.txt"), done]


SCRIPTS = {
    "root": [
        together(_spawn("lead"), _spawn("b")),
        _wait("lead"),
        calls("sys_send_message", agent_id="b", content="look again"),
        _wait("b"),
        says(ANSWER),
    ],
    "lead": [_spawn("leaf"), _wait("leaf"), *_work("lead")],
    "leaf": _work("leaf"),
    "b": [
        *_work("b"),
        calls("list_directory"),
        calls("sys_finish_task", status="success", summary="again", details={}),
    ],
}


class Player:
    """Plays a script; where it is it reads in the conversation."""

    def __init__(self, script: Sequence[Line], point: Callable[[], None]) -> None:
        self._script = script
        self._point = point

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Say what comes next; one who is written to after the last line has nothing to add."""
        self._point()
        said = sum(message.role == "assistant" for message in messages)
        more = f"nothing to add, {said}"  # so that no two replies are the same
        script = [*self._script, calls("sys_finish_task", status="success", summary=more, details={})]
        async for item in ScriptedModel([script[min(said, len(script) - 1)]]).stream(messages, tools):
            yield item
        self._point()


def dying_at(number: int) -> Callable[[], None]:
    """Make a function that kills this process when it is called for this time; 0 is never."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == number:
            if VICTIM != "runtime":
                os.kill(int(SERVER.read_text()), signal.SIGKILL)
                REACHED.touch()
            if VICTIM != "server":
                os.kill(os.getpid(), signal.SIGKILL)

    return point


def killing(victims: dict[int, str]) -> Callable[[], None]:
    """Make a function that sends each of the signals when it is called for that time."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if victim := victims.get(passed):
            pid, number = Path(victim).read_text().split() if victim != "self" else (os.getpid(), signal.SIGKILL)
            os.kill(int(pid), int(number))

    return point


def set_points(point: Callable[[], None]) -> None:
    """Let every step that changes something pass a point before and after it."""
    real_replace, real_append, real_call = session_files._replace, AppendedFile.append, AsyncClient.call

    def replace(path: Path, text: str) -> None:
        point()
        real_replace(path, text)
        point()

    def append(steps: AppendedFile, record: Mapping[str, Any], *, wait: bool = True) -> None:
        point()
        real_append(steps, record, wait=wait)
        point()

    async def call(client: AsyncClient, what: Any, *, idempotency_key: str | None = None) -> Any:
        point()
        answer = await real_call(client, what, idempotency_key=idempotency_key)
        point()
        return answer

    session_files._replace = replace
    AppendedFile.append = append  # type: ignore[method-assign, assignment]
    AsyncClient.call = call  # type: ignore[method-assign, assignment]


async def live(folder: Path, url: str, session: str, point: Callable[[], None]) -> None:
    """Begin the task, or go on with it."""
    models = {name: Player(script, point) for name, script in SCRIPTS.items()}
    config = FibreConfig(lease_seconds=2.0, tick_seconds=0.05)

    def model(name: str) -> Player:
        return models.get(name, models["root"])

    async with AsyncClient(url) as client, FibreAgent(folder, model, config, session=session, client=client) as agent:
        if agent.report is None or agent.unfinished:
            report = await (agent.resume() if agent.unfinished else agent.run(TASK))
            assert report.summary == ANSWER, report


def life(folder: Path, url: str, session: str, number: int) -> bool:
    """Let a tree live that is killed at its point of this number; whether it came to its end before."""
    return life_with(dying_at(number), folder, url, session)


def life_with(point: Callable[[], None], folder: Path, url: str, session: str) -> bool:
    """Let a tree live that calls this at each point; whether it came to its end."""
    REACHED.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            set_points(point)
            asyncio.run(live(folder, url, session, point))
            status = 0
        except BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitpid(process, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise AssertionError(f"a life of {session} ended with the status {status}")
    return status == 0 and not REACHED.exists()


def violations(folder: Path, url: str, session: str) -> list[str]:
    """Compare what is on the disk and on the server with what must be there at the end."""
    place, found = folder / session, []
    made = {path.name for path in (place / "agent_workspace").iterdir()}
    if made != {"lead.txt", "leaf.txt", "b.txt"}:
        found.append(f"the files are {made}")
    if left := [path.name for path in place.rglob("*.new")]:
        found.append(f"left over: {left}")
    for name, path in ((session, place), *((each.name, each) for each in (place / "sub_sessions").iterdir())):
        kept = [Message(**each) for each in json.loads((path / "messages.json").read_text())]
        record = json.loads((path / "session_status.json").read_text())
        if record["state"] != "done" or record["held"]:
            found.append(f"{name} is {record['state']}, and holds {record['held']}")
        found += [f"{name}: {wrong}" for wrong in _doubled(kept)]
        found += asyncio.run(_shown(url, record["session_id"], kept))
    return found


def _doubled(kept: Iterable[Message]) -> list[str]:
    """Find calls that were made twice, and messages that were taken in twice."""
    texts = [f"{message.role} {message.content} {message.tool_calls}" for message in kept if message.role != "tool"]
    return [f"twice: {text}" for text in set(texts) if texts.count(text) > 1]


async def _shown(url: str, session: str, kept: Sequence[Message]) -> list[str]:
    """Compare a session of the server with what is kept: no message is missing, and none is there twice."""
    async with AsyncClient(url) as client:
        detail = await Retries().call(lambda: client.call(api.read(session)))
    found = [f"{session} is {detail.state} on the server"] if detail.state != "idle" or detail.queue else []
    here = [_told(message) for message in kept]
    there = [_told(message) for message in detail.history]
    if missing := [text for text in here if text not in there]:
        found.append(f"{session}: the server does not show {missing}")
    if doubled := [text for text in set(there) if there.count(text) > max(1, here.count(text))]:
        found.append(f"{session}: the server shows twice {doubled}")
    return found


def _told(message: Message) -> str:
    calls = [(call.name, sorted(call.arguments.items())) for call in message.tool_calls]
    return f"{message.role} {message.content} {calls}"


def each(folder: Path, url: str, points: Iterable[int]) -> dict[str, Any]:
    """Kill one life at a point, and let another one go on: for each of these points, while there are so many."""
    found: dict[str, list[str]] = {}
    kills = 0
    for point in points:
        session = f"tree{point}-{os.getpid()}"
        if not life(folder, url, session, point):
            kills += 1
            life(folder, url, session, 0)
        elif isinstance(points, count):
            break
        if wrong := violations(folder, url, session):
            found[str(point)] = wrong
    return {"kills": kills, "violations": found}


def stumbling(folder: Path, url: str, point: int) -> dict[str, Any]:
    """Kill each life at the same point of it, until one comes to the end."""
    kills, session = 0, f"stumbling{point}-{os.getpid()}"
    while not life(folder, url, session, point):
        kills += 1
        if kills == MOST_KILLS:
            return {"kills": kills, "violations": {"end": "it never comes"}}
    return {"kills": kills, "violations": violations(folder, url, session)}


def with_victims(folder: Path, url: str, session: str, victims: dict[int, str]) -> dict[str, Any]:
    """Let the victims of one task die, and what has been killed of it go on."""
    lives = 1
    if not life_with(killing(victims), folder, url, session):
        lives += 1
        life(folder, url, session, 0)
    return {"lives": lives, "violations": violations(folder, url, session)}


def main() -> None:
    """Do what the command line says."""
    if sys.argv[3] == "victims":
        victims = {int(number): file for number, _, file in (each.partition("=") for each in sys.argv[5:])}
        found = with_victims(Path(sys.argv[1]), sys.argv[2], sys.argv[4], victims)
        print(json.dumps(found))  # noqa: T201 - the answer to the test
        return
    folder, url, mode, number = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    if mode == "every":
        found = each(folder, url, count(1, number))
    elif mode == "random":
        found = each(folder, url, random.Random(int(sys.argv[5])).sample(range(1, 400), number))
    else:
        found = stumbling(folder, url, number)
    print(json.dumps(found))  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
