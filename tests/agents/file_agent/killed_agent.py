"""Kill an agent at every point of a task of ten steps, and let others go on. Run by test_killed.py as a program.

    python killed_agent.py FOLDER every N      a life that is killed at a point, then one that is not; at each Nth point
    python killed_agent.py FOLDER stumbling N  one task in lives that are each killed at their point N

Points are before and after everything that the agent writes, runs or asks. Prints, as JSON, what was found. A program
of its own, since a test run with threads must not fork.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from cfs.wire import Message
from cfs_agents.context import ContextFileSystem
from cfs_agents.context.items import text_of
from cfs_agents.loop.model import Item
from cfs_agents.main.testing import Line, ScriptedModel, calls, cut_off, says
from cfs_agents.shell import AsyncPersistentShell
from cfs_agents.tools import CommandMode
from cfs_agents.tree.directory import AgentRoot, default
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.operations import OperationLogger
from cfs_agents.tree.run_log import RunLog

STEPS = 10
SYNC_AT = 5
MOST_KILLS = 300
TASK = "Make ten steps."
ANSWER = "Ten steps are made."


class SteppingModel:
    """Makes ten steps, each a line in a file, and syncs after the fifth; where it is it reads in the conversation.

    What it reads of a step is long enough to be off-loaded, and its answer is cut off in its middle.

    When it is told that a step may or may not have happened, it looks before it does it again.
    """

    def __init__(self, point: Callable[[], None]) -> None:
        self._point = point

    async def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Item]:
        """Say what comes next."""
        self._point()
        async for item in ScriptedModel([self._line(messages)]).stream(messages, tools):
            yield item
        self._point()

    def _line(self, messages: Sequence[Message]) -> Line:
        made, doubt, synced = _progress(messages)
        if doubt:
            return calls("execute_command", command="cat steps")
        if made == SYNC_AT and not synced:
            return calls("sync_context", new_context_content=f"# Current Task\n{TASK}\nSteps made: {made}\n")
        if made == STEPS:
            return says("made.") if "cut off" in messages[-1].content else cut_off(says("Ten steps are"))
        return calls("execute_command", command=f"echo {made + 1} >> steps; seq 200")


def _progress(messages: Sequence[Message]) -> tuple[int, bool, bool]:
    """Read from a conversation how many steps are made, whether one is in doubt, and whether it was synchronised."""
    found = re.search(r"Steps made: (\d+)", messages[0].content)
    made, doubt = int(found[1]) if found else 0, False
    for call, result in pairwise(messages):
        if result.role != "tool" or not call.tool_calls:
            continue
        if "may or may not have happened" in result.content:
            doubt = True
        elif "cat steps" in text_of(call):
            made, doubt = len(re.findall(r"^\d+$", result.content, re.MULTILINE)), False
        elif "echo" in text_of(call) and not result.content.startswith("Error"):
            made += 1
    return made, doubt, found is not None


def dying_at(number: int) -> Callable[[], None]:
    """Make a function that kills this process when it is called for this time; 0 is never."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return point


def set_points(point: Callable[[], None]) -> None:
    """Let every step that changes something pass a point before and after it."""

    def pointed(method: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **named: Any) -> Any:
            point()
            value = method(*arguments, **named)
            point()
            return value

        return around

    async def run(shell: AsyncPersistentShell, *arguments: Any, **named: Any) -> Any:
        point()
        value = await real_run(shell, *arguments, **named)
        point()
        return value

    real_run = AsyncPersistentShell.run
    AsyncPersistentShell.run = run  # type: ignore[assignment, method-assign]
    for owner, names in (
        (RunLog, ["_append", "restart"]),
        (OperationLogger, ["write"]),
        (AgentRoot, ["archive_window", "write_window"]),
    ):
        for name in names:
            setattr(owner, name, pointed(getattr(owner, name)))


async def live(root: Path, point: Callable[[], None]) -> None:
    """Begin the task, or go on with it."""
    async with FileSystemAgent(
        project_root=root,
        model=SteppingModel(point),
        config=FileSystemAgentConfig(offload_token_threshold=150, commands=CommandMode.HOST),
    ) as agent:
        ended = not agent.unfinished and any(
            b'"task_ended"' in log.read_bytes() for log in (root / "logs").glob("*.jsonl")
        )
        if ended:
            return
        for _ in range(3):  # ten rounds are the limit of one run
            outcome = await (agent.resume() if agent.unfinished else agent.run(TASK))
            if outcome.ok and outcome.text == ANSWER:
                return
        raise AssertionError(f"not finished: {outcome}")


def life(root: Path, number: int) -> bool:
    """Let an agent live that is killed at its point of this number; whether it came to its end before."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            point = dying_at(number)
            set_points(point)
            asyncio.run(live(root, point))
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(process, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise AssertionError(f"a life ended with the status {status}")
    return status == 0


def violations(root: Path) -> list[str]:
    """Compare what is on the disk with what must be there after ten steps."""
    found = []
    steps = (root / "workspace/steps").read_text().split()
    if steps != [str(number) for number in range(1, STEPS + 1)]:
        found.append(f"the steps are {steps}")
    window = (root / "context_window_main.md").read_text()
    if window != f"# Current Task\n{TASK}\nSteps made: {SYNC_AT}\n":
        found.append(f"the window is {window!r}")
    archives = [path.read_text() for path in (root / "storage/history").iterdir()]
    if archives != [default("/context_window_main.md", "en")]:
        found.append(f"the archives are {archives}")
    records = [json.loads(line) for log in (root / "logs").glob("*.jsonl") for line in log.read_bytes().splitlines()]
    ids = [record["id"] for record in records if record["operation"] in ("execute_command", "sync_context")]
    if len(ids) != len(set(ids)):
        found.append("an operation is in the log twice")
    done = [record["params"]["command"] for record in records if record["success"] and "command" in record["params"]]
    made = [command for command in done if command.startswith("echo")]
    if len(made) != len(set(made)):
        found.append(f"what the log says was done was done again: {made}")
    with ContextFileSystem(root / "storage/offloaded", "conversation") as files:
        found += files.check_integrity()
        if len(files.history()) < STEPS // 2:
            found.append(f"off-loaded are {files.history()}")
    if sum(record["operation"] == "sync_context" and record["success"] for record in records) != 1:
        found.append("the log does not have the one sync")
    return found


def every(folder: Path, stride: int) -> dict[str, Any]:
    """Kill one life at a point, and let another one go on: for the points from the first to the last."""
    found: dict[str, list[str]] = {}
    for kills, point in enumerate(count(1, stride)):
        root = folder / str(point)
        if life(root, point):
            return {"kills": kills, "violations": found}
        life(root, 0)
        if wrong := violations(root):
            found[str(point)] = wrong
    raise AssertionError


def stumbling(folder: Path, point: int) -> dict[str, Any]:
    """Kill each life at the same point of it, until one comes to the end."""
    kills = 0
    while not life(folder, point):
        kills += 1
        if kills == MOST_KILLS:
            return {"kills": kills, "violations": {"end": "it never comes"}}
    return {"kills": kills, "violations": violations(folder)}


if __name__ == "__main__":
    kill = {"every": every, "stumbling": stumbling}[sys.argv[2]]
    print(json.dumps(kill(Path(sys.argv[1]), int(sys.argv[3]))))  # noqa: T201 - the answer to the test
