"""Dialogues of the real agents: an agent of ours works on a task, and the model that it asks is a script that knows it.

So what the embedded model is trained on is what an agent sends, letter by letter: prompts, schemas, results of tools.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

from cfs import wire
from cfs_agents.base.messages import Language
from cfs_agents.loop.model import CompleteResponse
from cfs_agents.tools import CommandMode
from cfs_agents.tree.config import DEFAULT_FILE_TOOLS, FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.session_folder import WORKSPACE_FOLDER
from demo_model import agent_tasks, window_tasks  # noqa: F401 - they enter their tasks
from demo_model.agent_jobs import MAKERS, Desk, Job, Steps
from demo_model.chat_format import Message, Tool, ToolCall
from demo_model.dialogues import SYSTEM, Dialogue, language_of
from demo_model.scenes import SCENES, Cast, Exchange
from demo_model.tree_tasks import asked, part_steps, parts_of, root_steps

_TIME = re.compile(r"(?<=\ncurrent_time: )\S+")


class Script:
    """A model that knows what is to be done. `asked` keeps what it was sent, and each reply that it gave."""

    def __init__(self, pause: Callable[[], float] = lambda: 0.0) -> None:
        self._pause = pause
        self.steps: Steps | None = None
        self.dialogues: list[Dialogue] = []
        self._begun = False

    def play(self, steps: Steps) -> None:
        """Take over a task."""
        self.steps, self._begun = steps, False

    async def context_window(self) -> int:
        """Return what the embedded model reads: agents send it the short prompts, and tools without paging."""
        return 2048

    async def stream(
        self, messages: Sequence[wire.Message], tools: Sequence[dict[str, Any]] = ()
    ) -> AsyncGenerator[CompleteResponse]:
        """Give the next reply, and keep the conversation with it."""
        assert self.steps is not None
        if seconds := self._pause():
            await asyncio.sleep(seconds)
        try:
            said = self.steps.send(_last_result(messages)) if self._begun else next(self.steps)
        except StopIteration as answer:
            said = answer.value
        self._begun = True
        reply = wire.Message(role="assistant", content="" if isinstance(said, ToolCall) else said)
        if isinstance(said, ToolCall):
            call = wire.ToolCall(id=uuid4().hex[:8], name=said.name, arguments=dict(said.arguments))
            reply = reply.model_copy(update={"tool_calls": (call,)})
        self._keep(Dialogue([*map(_message, messages), _message(reply)], [*map(_tool, tools)], "chat"))
        yield CompleteResponse(
            message=reply, finish_reason="stop", usage=wire.Usage(prompt_tokens=0, completion_tokens=0)
        )

    def _keep(self, dialogue: Dialogue) -> None:
        """Keep a conversation in the place of its beginning."""
        last = self.dialogues[-1] if self.dialogues else None
        if last and list(dialogue.messages[: len(last.messages)]) == last.messages and last.tools == dialogue.tools:
            self.dialogues.pop()
        self.dialogues.append(dialogue)


def _last_result(messages: Sequence[wire.Message]) -> str:
    """The last result of a tool; messages to the agent may have come after it."""
    return next(message.content for message in reversed(messages) if message.role == "tool" or len(messages) < 3)


def _message(message: wire.Message) -> Message:
    """The message in the form of the training."""
    if message.tool_calls:
        (call,) = message.tool_calls
        return Message(message.role, message.content, ToolCall(call.name, call.arguments))
    return Message(message.role, message.content)


def _tool(schema: dict[str, Any]) -> Tool:
    function = schema["function"]
    kinds = {name: str(kind.get("type", "any")) for name, kind in function["parameters"]["properties"].items()}
    return Tool(function["name"], kinds)


def _talk(exchange: Exchange) -> Job:
    def steps() -> Steps:
        return exchange[1].content
        yield  # makes this a generator

    return Job(exchange[0].content, steps())


def _jobs(cast: Cast, desk: Desk) -> list[Job]:
    """What an agent is asked to do: mostly one task, some small talk."""
    pick = cast.rng.random()
    if pick < 0.08:
        name = cast.rng.choice(("own_name", "small_talk", "joke", "beyond", "total", "remembered"))
        return [_talk(exchange) for exchange in SCENES[name][1](cast)[:3]]
    names, weights = list(MAKERS), [weight for weight, _ in MAKERS.values()]
    count = cast.rng.choice((1, 1, 1, 1, 1, 2, 2, 3))
    return [MAKERS[name][1](cast, desk) for name in cast.rng.choices(names, weights, k=count)]


def put(workspace: Path, files: dict[str, str]) -> None:
    """Lay the files that a task finds; one whose place is taken is left out."""
    for path, content in files.items():
        place = workspace / path
        if any(above.is_file() for above in place.parents) or place.is_dir():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)


async def file_agent_dialogues(cast: Cast, language: Language, folder: Path) -> list[Dialogue]:
    """What is said while a file agent works on some tasks in an empty folder."""
    desk, script = Desk(), Script()
    jobs = _jobs(cast, desk)
    (folder / "workspace").mkdir(parents=True)
    put(folder / "workspace", desk.files)
    async with FileSystemAgent(
        project_root=folder, model=script, config=FileSystemAgentConfig(language=language, commands=CommandMode.HOST)
    ) as agent:
        for job in jobs:
            script.play(job.steps)
            await agent.run(job.task)
    return script.dialogues


async def tree_dialogues(cast: Cast, language: Language, folder: Path) -> list[Dialogue]:
    """What is said in a tree of agents: by the root, and by each sub-agent."""
    rng = cast.rng
    scripts: dict[str, Script] = {}

    def pause() -> float:
        return rng.choice((0.0, 0.0, 0.003, 0.01))

    def script(name: str) -> Script:
        return scripts.setdefault(name, Script(pause))

    config = FibreConfig(
        language=language,
        prompt="short",
        max_depth=rng.choice((1, 2, 2, 2)),
        file_tools=rng.choice(
            (DEFAULT_FILE_TOOLS, DEFAULT_FILE_TOOLS, (*DEFAULT_FILE_TOOLS, "edit_file", "search_files"))
        ),
    )
    async with FibreAgent(folder, script, config) as agent:
        first = 1
        for _ in range(rng.choice((1, 1, 1, 1, 1, 2))):
            if rng.random() < 0.15:
                job = MAKERS[rng.choice(("write", "write_and_read", "look", "read_missing"))][1](cast, Desk())
                script("main").play(job.steps)
                await agent.run(job.task)
                continue
            parts = parts_of(cast, first)
            first += len(parts)
            if rng.random() < 0.06:  # one of them fails: there is a folder of that name
                (folder / "main" / WORKSPACE_FOLDER / parts[0].path).mkdir(parents=True, exist_ok=True)
            for part in parts:
                script(part.name).play(part_steps(cast, part))
            script("main").play(root_steps(cast, parts))
            await agent.run(asked(cast, parts))
    when = datetime.fromtimestamp(rng.randrange(1_700_000_000, 2_000_000_000), UTC).isoformat(timespec="seconds")
    return [_at(when, dialogue) for one in scripts.values() for dialogue in one.dialogues]


def _at(when: str, dialogue: Dialogue) -> Dialogue:
    """The same dialogue at another time: the model is not to learn today's date."""
    first, *rest = dialogue.messages
    return replace(dialogue, messages=[replace(first, content=_TIME.sub(when, first.content)), *rest])


def _bare(rng: Random, dialogue: Dialogue) -> Dialogue:
    """The same behind a short system message, which costs less; as it is where the agent copies its context window."""
    first, *rest = dialogue.messages
    if any(message.call and message.call.name == "sync_context" for message in rest):
        return dialogue
    return replace(dialogue, messages=[replace(first, content=rng.choice(SYSTEM)), *rest])


class Lives:
    """Draws dialogues of agents; their folders are in memory where the machine has such a place.

    `trees` is the share of trees, `bare` that of dialogues without the agent's own prompt.
    """

    def __init__(self, trees: float = 0.4, bare: float = 0.0) -> None:
        self._trees, self._bare = trees, bare
        memory = Path("/dev/shm")  # noqa: S108 - the folders have names of their own
        self._folder = Path(mkdtemp(prefix="agents-", dir=memory if memory.is_dir() else None))
        self._runner = asyncio.Runner()
        self._count = 0

    def close(self) -> None:
        """Remove the folders."""
        self._runner.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def draw(self, rng: Random) -> list[Dialogue]:
        """The dialogues of one agent's life."""
        self._count += 1
        folder = self._folder / str(self._count)
        spoken = language_of(rng)
        language: Language = spoken if rng.random() < 0.5 else "en"  # type: ignore[assignment]
        try:
            life = tree_dialogues if rng.random() < self._trees else file_agent_dialogues
            dialogues = self._runner.run(life(Cast(rng, spoken), language, folder))
            return [_bare(rng, each) for each in dialogues] if rng.random() < self._bare else dialogues
        finally:
            shutil.rmtree(folder, ignore_errors=True)
