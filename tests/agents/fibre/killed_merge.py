"""Kill a tree while it merges the copy of an isolated child, or fill its disk then. Run by test_killed_merge.py.

    python killed_merge.py FOLDER kill N SEED  lives killed at N points drawn by a seed, each followed by whole ones
    python killed_merge.py FOLDER fill N SEED  lives whose disk becomes full at such a point, and has room at the next

A life is killed at its merge, the next one where it finishes that merge, if it does; the third is whole. Points are
before and after every system call of the merge that changes the disk, and at every statement of `versions.db`. Prints,
as JSON, what was wrong. It is a separate program, because a process with threads must not fork.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from cfs.errors import StorageFull
from cfs.wire import Message
from cfs_agents.base.disk import DiskError
from cfs_agents.loop.model import Item
from cfs_agents.main.testing import Line, ScriptedModel, calls, says
from cfs_agents.tools import CommandMode
from cfs_agents.tree import merging, orchestrator, sub_agent
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent

LINES = "one\ntwo\nthree\nfour\nfive\n"
BEFORE = {"text.md": LINES.replace("five", "FIVE"), "gone.txt": "gone", "both.txt": "of the parent", "mine.txt": "mine"}
"""The shared files when the merge begins."""
CHILD = {
    "text.md": LINES.replace("one", "ONE"),
    "both.txt": "of the child",
    "new/made.txt": "made\n" * 200_000,
    "new/link": "-> made.txt",
}
MERGED = {
    **{name: text for name, text in CHILD.items() if name.startswith("new/")},
    "text.md": "ONE\ntwo\nthree\nfour\nFIVE\n",
    "mine.txt": "mine",
    "both.txt": "of the parent",
    "both.txt.conflict-main": "of the parent",
    "both.txt.conflict-coder": "of the child",
}
COMMAND = "mkdir -p new && yes made | head -n 200000 > new/made.txt && ln -sfn made.txt new/link && rm -f gone.txt"
ROOM = 512 << 10
"""Bytes of a disk that is full for the largest file, and not for reports."""
_CHANGING = [
    "chmod",
    "fchmod",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "mkdir",
    "open",
    "rename",
    "replace",
    "rmdir",
    "symlink",
    "unlink",
    "utime",
    "write",
]


def _write(path: str, content: str) -> Line:
    return calls("write_file", path=path, content=content)


SCRIPTS: dict[str, list[Line]] = {
    "main": [
        _write("text.md", LINES),
        _write("gone.txt", "gone"),
        _write("both.txt", "base"),
        calls(
            "sys_spawn_agent",
            agent_name="coder",
            role_description="it codes",
            system_instruction="You are the coder.",
            task_goal="change all",
            isolated=True,
        ),
        _write("text.md", BEFORE["text.md"]),
        _write("both.txt", BEFORE["both.txt"]),
        _write("mine.txt", "mine"),
        calls("sys_wait_agent", agent_id="coder"),
        says("All is there."),
    ],
    "coder": [
        calls("read_file", path="text.md"),
        _write("text.md", CHILD["text.md"]),
        calls("read_file", path="both.txt"),
        _write("both.txt", CHILD["both.txt"]),
        calls("execute_command", command=COMMAND),
        calls("sys_finish_task", status="success", summary="all changed", details={}),
    ],
}
AGAIN: dict[str, list[Line]] = {
    "main": [
        calls("sys_send_message", agent_id="coder", content="merge it now"),
        calls("sys_wait_agent", agent_id="coder"),
        says("Now it is there."),
    ],
    "coder": [calls("sys_finish_task", status="success", summary="merged", details={})],
}
"""A second task, for a merge that has failed."""


class Player:
    """Plays the script of a task; where it is it reads in the conversation since a message.

    The child reports when the parent has written all, which the file `after` says.
    """

    def __init__(self, script: Sequence[Line], since: str, after: Path | None) -> None:
        self._script = script
        self._since = since
        self._after = after

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Say what comes next."""
        orders = [n for n, entry in enumerate(messages) if entry.role == "user" and entry.content.endswith(self._since)]
        said = sum(message.role == "assistant" for message in messages[orders[-1] :])
        if self._after is not None and said == len(self._script) - 1:
            while not self._after.exists():  # noqa: ASYNC110 - the parent writes it
                await asyncio.sleep(0.01)
        more = says(f"nothing to add, {said}") if self._after is None else SCRIPTS["coder"][-1]
        async for item in ScriptedModel([[*self._script, more][min(said, len(self._script))]]).stream(messages, tools):
            yield item


class Points:
    """Calls `act` at the point of a number, and counts the points. Only those within a merge count."""

    def __init__(self, number: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self._number = number
        self._act = act
        self._inside = 0
        self.passed = 0

    def __call__(self, *_: object) -> None:
        """Pass a point."""
        if self._inside:
            self.passed += 1
            if self.passed == self._number:
                self._act()

    def set(self) -> None:
        """Let everything that changes the disk pass points, in this process."""
        for name in _CHANGING:
            setattr(os, name, self._around(getattr(os, name)))
        connect = sqlite3.connect

        def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(*arguments, **options)
            database.set_trace_callback(self)
            return database

        sqlite3.connect = connected  # type: ignore[assignment]
        merged, finish = merging.merged, merging.finish_merge
        sub_agent.merged = self._within(merged)  # type: ignore[attr-defined]
        orchestrator.finish_merge = self._within(finish)  # type: ignore[attr-defined]

    def _around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self()
            try:
                return real(*arguments, **options)
            finally:
                self()

        return call

    def _within(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            self._inside += 1
            try:
                return await real(*arguments)
            finally:
                self._inside -= 1

        return call


async def live(folder: Path, scripts: dict[str, list[Line]]) -> None:
    """Begin a task, or go on with it."""
    task, order = ("go", "change all") if scripts is SCRIPTS else ("once more", "merge it now")
    after = folder / "main/agent_workspace/mine.txt"
    models = {"main": Player(scripts["main"], task, None), "coder": Player(scripts["coder"], order, after)}
    config = FibreConfig(tick_seconds=0.02, commands=CommandMode.HOST)
    async with FibreAgent(folder, models.__getitem__, config, session="main") as agent:
        if agent.unfinished:
            await agent.resume()
        elif agent.report is None or scripts is AGAIN:
            await agent.run(task)


def life(folder: Path, points: Points, scripts: dict[str, list[Line]] = SCRIPTS) -> tuple[int, bool]:
    """Let a tree live in a process; return the number of points that it passed, and whether it was killed."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            points.set()
            asyncio.run(live(folder, scripts))
            status = 0
        except* (StorageFull, DiskError):
            status = 0
        except* BaseException:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            os.write(writing, str(points.passed).encode())
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        passed = pipe.read()
    status = os.waitpid(process, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise AssertionError(f"a life in {folder} ended with the status {status}")
    return int(passed or 0), status == signal.SIGKILL


def files(folder: Path) -> dict[str, str]:
    """The files below a folder, without those of agents for themselves."""
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and ".cfs" not in path.parts
    }


def violations(folder: Path) -> list[str]:
    """Compare the files of both sides, and what the parent has read of them, with what must be there."""
    root = folder / "main"
    shared, copy = files(root / "agent_workspace"), files(root / "sub_sessions/coder/agent_workspace")
    stored = [json.loads((root / name).read_text()) for name in ("messages.json", "session_status.json")]
    text = json.dumps(stored, ensure_ascii=False)  # what the parent has read, and what is in its inbox
    wrong = []
    if copy != CHILD:
        wrong.append(f"the copy has {copy}")
    if shared != MERGED:
        wrong.append(f"the files are {shared}")
    if "not merged yet" in text and f"they are in {root / 'sub_sessions/coder/agent_workspace'}" not in text:
        wrong.append("the copy is not named")
    if "conflict: both.txt was changed by both" not in text:
        wrong.append("the conflict is not named")
    if left := [str(path) for path in root.rglob("*") if ".cfs-write-" in path.name or path.name.endswith(".new")]:
        wrong.append(f"left over: {left}")
    return wrong


def kill(folder: Path, point: int, second: int) -> tuple[int, list[str]]:
    """Kill a life, and the next one if it gets to that point. Return the number of kills, and what is wrong then."""
    kills = 0
    for number in (point, second, 0):
        _, killed = life(folder, Points(number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        kills += killed
    return kills, violations(folder)


def fill(disk: Path, folder: Path, point: int, room: int) -> tuple[int, list[str]]:
    """Fill the disk at a point up to some bytes, and make room when the life is over.

    Return 1 if it came to that, and what is wrong.
    """
    filler = disk / "filler"

    def use_all() -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1 << 8, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass
            file.truncate(file.tell() - room)

    life(folder, Points(point, use_all))
    filled, wrong = filler.exists(), []
    if point == 1 and files(folder / "main/agent_workspace") != BEFORE:
        wrong.append("files were changed although there was no room for all")
    filler.unlink(missing_ok=True)
    for scripts in (SCRIPTS, AGAIN):
        life(folder, Points(), scripts)
        wrong += violations(folder)
    return int(filled), wrong


def main() -> None:
    """Do what the command line says."""
    disk, mode, number, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    points, killed = life(disk / "whole", Points())
    assert not killed
    found: dict[str, list[str]] = {"whole": violations(disk / "whole")}
    chance = random.Random(seed)
    kills = 0
    for run in range(number):
        folder, second = disk / f"tree{run}", chance.randint(1, points)
        point = chance.randint(1, points) if run else 1
        if mode == "kill":
            count, found[f"{point} and {second}"] = kill(folder, point, second)
        else:
            room = chance.choice((0, ROOM)) if run else ROOM
            count, found[f"{point}, room {room}"] = fill(disk, folder, point, room)
        kills += count
        shutil.rmtree(folder)
    answer = {"points": points, "kills": kills, "violations": {key: wrong for key, wrong in found.items() if wrong}}
    print(json.dumps(answer))  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
