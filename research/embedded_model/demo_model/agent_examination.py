"""What agents with the model are examined on: tasks that training never saw, and what is right of each.

What is right comes from the same scripts that training comes from: the files that are left, and the answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cfs_agents.base.messages import Language
from cfs_agents.loop.model import Model
from cfs_agents.tools import CommandMode
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig
from cfs_agents.tree.session_folder import WORKSPACE_FOLDER
from demo_model.agent_jobs import MAKERS, Desk, Job
from demo_model.agent_life import Script, put
from demo_model.scenes import Cast
from demo_model.tree_tasks import Part, asked, part_steps, parts_of, root_steps

TREE, COMMAND = "tree", "run"


@dataclass(frozen=True)
class Work:
    """One task. `parts` are those of a tree of agents."""

    kind: str
    spoken: str
    language: Language
    job: Job
    files: dict[str, str]
    cast: Cast
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Done:
    """What came of a task: the files that are left, by their paths, and the answer."""

    files: dict[str, bytes]
    answer: str


def works(seed: int, count: int, kinds: tuple[str, ...] = (*MAKERS, TREE)) -> Iterator[Work]:
    """`count` tasks of each kind, half of them in English; agents of both languages."""
    for kind in kinds:
        rng = Random(f"agents {seed} {kind}")
        for index in range(count):
            spoken = ("en", "zh")[index % 2]
            language: Language = "zh" if spoken == "zh" and index % 4 == 1 else "en"
            cast, desk = Cast(rng, spoken, held_out=True), Desk()
            if kind == TREE:
                parts = tuple(parts_of(cast, 1))
                job = Job(asked(cast, list(parts)), root_steps(cast, list(parts)))
                yield Work(kind, spoken, language, job, {}, cast, parts)
            else:
                job = MAKERS[kind][1](cast, desk)
                yield Work(kind, spoken, language, job, desk.files, cast)


async def right(work: Work, folder: Path) -> Done:
    """What a task should come to, by its script."""
    scripts = {"main": Script(), **{part.name: Script() for part in work.parts}}
    scripts["main"].play(work.job.steps)
    for part in work.parts:
        scripts[part.name].play(part_steps(work.cast, part))
    return await _done(work, scripts, folder)


async def done(work: Work, model: Model, folder: Path) -> Done:
    """What an agent makes of a task with a model."""
    return await _done(work, {"main": model}, folder)


async def _done(work: Work, models: "dict[str, Model] | dict[str, Script]", folder: Path) -> Done:
    if work.kind == TREE:
        config = FibreConfig(
            prompt="short", language=work.language, root_max_turns=12, max_turns=5, max_agents=5, timeout=60
        )
        async with FibreAgent(folder, lambda name: models.get(name, models["main"]), config) as tree:
            report = await tree.run(work.job.task)
        return Done(_left(folder / "main" / WORKSPACE_FOLDER), report.summary)
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    put(workspace, work.files)
    commands = CommandMode.HOST if work.kind == COMMAND else CommandMode.NONE  # the rest as users have it
    usual = FileSystemAgentConfig(language=work.language, commands=commands)
    async with FileSystemAgent(project_root=folder, model=models["main"], config=usual) as agent:
        outcome = await agent.run(work.job.task)
    return Done(_left(workspace), outcome.text)


def _left(workspace: Path) -> dict[str, bytes]:
    files = (path for path in sorted(workspace.rglob("*")) if path.is_file())
    return {path.relative_to(workspace).as_posix(): path.read_bytes() for path in files}
