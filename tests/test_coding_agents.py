"""Coding agents work as docs/how-to/coding-agents.md says: the real programs do its blocks, with a scripted model.

Each does ten steps with tools, of which one meets an error of the server. What it was asked to do is done once.
"""

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cfs.errors import EngineError
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from tests.documentation import BLOCKS, Reader
from tests.programs import AI_SDK, AIDER, CLAUDE_CODE, CODEX, OPENAI_AGENTS, OPENCODE, QWEN_CODE, Program
from tests.server.support import ServerHarness, environment, running_server, until

PAGE = "docs/how-to/coding-agents.md"
STEPS = 10
SESSION = "my-task"
pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]
"""Installations take their time; the programs themselves some seconds."""


class Worker:
    """A model that does a task in ten steps, each a call of one tool. The server fails once in the middle."""

    def __init__(self, tool: str, arguments: Callable[[int], dict[str, Any]]) -> None:
        """`arguments` are those of a step."""
        self.steps = 0
        self.failures = 0
        self.summaries = 0
        self._tool = tool
        self._arguments = arguments

    def __call__(self, request: GenerationRequest) -> Iterator[str | Delta]:
        """Answer a request: with the next step, or with a summary where one is asked for."""
        if is_summary(request):
            self.summaries += 1
            yield "Summary: I count to ten."
        elif self.steps == STEPS or not request.options.tools:
            yield from ("All", " done.")
        elif self.steps == STEPS // 2 and not self.failures:
            self.failures += 1
            raise EngineError("the engine broke")
        else:
            self.steps += 1
            arguments = json.dumps(self._arguments(self.steps))
            yield Delta("Next. ", 1, calls=(CallDelta(0, f"call_{self.steps}", self._tool, arguments),))


def is_summary(request: GenerationRequest) -> bool:
    """Return whether Codex or Claude Code asks for a summary of the conversation."""
    asked = question(request)
    return "CONTEXT CHECKPOINT COMPACTION" in asked or "Respond with TEXT ONLY" in asked


def question(request: GenerationRequest) -> str:
    """Return the last message of a user. Claude Code sends messages of the system behind it."""
    return next(message.content for message in reversed(request.messages) if message.role == "user")


def count(number: int) -> str:
    """The command of a step."""
    return f"echo {number} >> steps.txt"


def whole_file(_: GenerationRequest) -> Iterable[str]:
    """Write the file as aider asks for it."""
    return ["steps.txt\n```\n", *(f"{number}\n" for number in range(1, STEPS + 1)), "```\n"]


@dataclass(frozen=True, slots=True)
class Client:
    """A program, the name of its blocks on the page, and how a model does a step with it."""

    program: Program
    mark: str
    tool: str = ""
    arguments: Callable[[int], dict[str, Any]] = lambda _: {}
    replace: tuple[tuple[str, str], ...] = ()
    """What is another text here: programs that ask a person, or that have a sandbox of their own."""


CODEX_CLIENT = Client(
    CODEX,
    "codex",
    "exec_command",
    lambda number: {"cmd": count(number)},
    (("codex exec", "codex exec --dangerously-bypass-approvals-and-sandbox"),),
)
CLAUDE_CLIENT = Client(
    CLAUDE_CODE, "claude code", "Bash", lambda number: {"command": count(number), "description": "Count."}
)
CLIENTS = (
    CODEX_CLIENT,
    CLAUDE_CLIENT,
    Client(AI_SDK, "ai sdk", "write", lambda number: {"line": str(number)}),
    Client(OPENAI_AGENTS, "openai agents", "write", lambda number: {"line": str(number)}),
    Client(OPENCODE, "opencode", "bash", lambda number: {"command": count(number), "description": "Count."}),
    Client(
        QWEN_CODE,
        "qwen code",
        "run_shell_command",
        lambda number: {"command": count(number), "is_background": False, "description": "Count."},
    ),
    Client(AIDER, "aider"),
)
QUICK = (CODEX, CLAUDE_CODE, AI_SDK)
"""Those that are installed in seconds. The others are slow tests."""


def cases(*clients: Client) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "client",
        [pytest.param(each, marks=() if each.program in QUICK else pytest.mark.slow, id=each.mark) for each in clients],
    )


def shell_environment(client: Client, home: Path) -> dict[str, str]:
    """The variables of a shell that finds the program."""
    path = f"{client.program.executables}{os.pathsep}{os.environ['PATH']}"
    return environment(PATH=path, HOME=str(home), LC_ALL="C.UTF-8", NO_PROXY="127.0.0.1,localhost")


@asynccontextmanager
async def reading(client: Client, server: ServerHarness, home: Path) -> AsyncIterator[Reader]:
    """A reader of the page who has the program, and types into a shell of its own."""
    await asyncio.to_thread(client.program.install)
    port = int(server.url.rpartition(":")[2])
    reader = Reader(home, port, dict(client.replace), shell_environment(client, home))
    (home / "node_modules").symlink_to(client.program.folder / "node_modules")
    try:
        yield reader
    finally:
        reader.leave()


async def follow(reader: Reader, client: Client) -> None:
    """Do the blocks of a program."""
    blocks = [block for block in BLOCKS if (block.page, block.mark) == (PAGE, f"tested: {client.mark}")]
    assert blocks
    for block in blocks:
        await asyncio.to_thread(reader.follow, block)


@cases(*CLIENTS)
async def test_a_program_does_what_the_page_says(client: Client, tmp_path: Path) -> None:
    """Ten steps with an error between them, recorded in one session whose title is the user's."""
    worker = Worker(client.tool, client.arguments)
    async with running_server(worker if client.tool else whole_file, may_block=True) as server:
        async with reading(client, server, tmp_path) as reader:
            await follow(reader, client)
        assert (tmp_path / "steps.txt").read_text().split() == [str(number) for number in range(1, STEPS + 1)]
        assert (worker.steps, worker.failures) == ((STEPS, 1) if client.tool else (0, 0))
        (session,) = server.store
        assert session.id == SESSION or client.program in (AI_SDK, OPENAI_AGENTS)
        assert "Count to ten" in (session.title or "")
        assert session.history.messages[-1].content.strip().endswith(("All done.", "```"))


# -- cancelled and summarised -----------------------------------------------------------------------------------------

COMMANDS = {
    CODEX: ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    CLAUDE_CODE: ("claude", "-p", "--allowedTools", "Bash", "--"),
}
TASK = "Count to ten in the file steps.txt."


def environment_for(client: Client, server: ServerHarness, home: Path) -> dict[str, str]:
    """What a program is told where nothing is recorded: what the page exports, without the name of a session."""
    told = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": "any",
        "ANTHROPIC_MODEL": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return shell_environment(client, home) | (told if client.program is CLAUDE_CODE else {})


@asynccontextmanager
async def started(client: Client, server: ServerHarness, home: Path, *words: str) -> AsyncIterator[Process]:
    """A program that works while the test goes on."""
    process = await asyncio.create_subprocess_exec(
        *COMMANDS[client.program],
        *words,
        cwd=home,
        env=environment_for(client, server, home),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@cases(CODEX_CLIENT, CLAUDE_CLIENT)
async def test_a_program_that_is_cancelled_ends_the_generation(client: Client, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a reply: the model stops at once, and the next question is answered."""
    worker = Worker(client.tool, client.arguments)
    async with running_server(worker, may_block=True) as server:
        async with reading(client, server, tmp_path) as reader:
            await follow(reader, client)  # writes the configuration
        server.engine.hold()
        async with started(client, server, tmp_path, TASK) as process:
            await until(lambda: server.parts.completions.running)
            os.killpg(process.pid, signal.SIGINT)
            await process.wait()
            await until(lambda: not server.parts.completions.running)
        server.engine.release()
        before = len(server.engine.requests)
        async with started(client, server, tmp_path, "Are you there?") as process:
            assert await process.wait() == 0
        assert "Are you there?" in question(server.engine.requests[before])


async def test_codex_summarises_a_conversation_that_becomes_too_long(tmp_path: Path) -> None:
    """The result of a step is large: Codex asks for a summary, and goes on with it in the same session."""
    large = "seq -s ' ' 4000"
    worker = Worker("exec_command", lambda number: {"cmd": f"{count(number)}; {large if number == 3 else 'true'}"})
    client = replace(
        CODEX_CLIENT, replace=(*CODEX_CLIENT.replace, ("model = ", "model_auto_compact_token_limit = 5000\nmodel = "))
    )
    async with running_server(worker, may_block=True) as server:
        async with reading(client, server, tmp_path) as reader:
            await follow(reader, client)
        assert (tmp_path / "steps.txt").read_text().split() == [str(number) for number in range(1, STEPS + 1)]
        assert worker.summaries == 1
        history = server.store.get(SESSION).history.messages
        assert any("Summary: I count to ten." in message.content for message in history)
        assert not any("3999 4000" in message.content for message in history)


async def test_claude_code_summarises_its_conversation(tmp_path: Path) -> None:
    """`/compact`, and what follows has the summary in the place of the steps."""
    client = CLAUDE_CLIENT
    worker = Worker(client.tool, client.arguments)
    async with running_server(worker, may_block=True) as server:
        async with reading(client, server, tmp_path) as reader:
            await follow(reader, client)
            await asyncio.to_thread(reader.type, "claude -c -p /compact\nclaude -c -p 'What have you done?'\n")
        assert worker.summaries == 1
        last = server.engine.requests[-1]
        assert "What have you done?" in question(last)
        assert any("Summary: I count to ten." in message.content for message in last.messages)
        assert not any(message.role == "tool" for message in last.messages)
