"""An agent that runs a command that never ends. Run by test_commands_left.py as a program, to be killed.

python commanding_agent.py tree FOLDER          a child of a tree runs it
python commanding_agent.py odd-names FOLDER     the same, after it has made files whose names are no text
python commanding_agent.py file-agent FOLDER
python commanding_agent.py job FOLDER           a file agent, which has started a job before
"""

import asyncio
import sys
from pathlib import Path

from cfs_agents.main.testing import Line, ScriptedModel, calls
from cfs_agents.tools import CommandMode
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.file_config import FileSystemAgentConfig

HANGS = "echo $$ > own; sleep 1357 & echo $! > other; sleep 1357"
ODD_NAMES = (
    r"echo 1 > $'\xff'; echo 2 > $'a\nb'; echo 3 > $'\u202etxt'; mkdir $'d\xfe'; echo 4 > $'d\xfe/back\\slash*'; "
)
TASK = {"role_description": "hangs", "system_instruction": "Hang.", "task_goal": "Hang."}


async def tree(folder: Path, command: str = HANGS) -> None:
    """Let a child hang."""
    models = {
        "main": ScriptedModel(
            [calls("sys_spawn_agent", agent_name="a", **TASK), calls("sys_wait_agent", agent_id="a")]
        ),
        "a": ScriptedModel([calls("execute_command", command=command)]),
    }
    async with FibreAgent(folder, models.__getitem__, FibreConfig(commands=CommandMode.HOST)) as agent:
        await agent.run("go")


async def odd_names(folder: Path) -> None:
    """Let a child make odd files, and hang."""
    await tree(folder, ODD_NAMES + HANGS)


async def job(folder: Path) -> None:
    """Let a file agent start a job, and hang."""
    await file_agent(folder, calls("execute_command", command="echo $BASHPID > job; exec sleep 1357", background=True))


async def file_agent(folder: Path, *before: Line) -> None:
    """Let a file agent hang."""
    model = ScriptedModel([*before, calls("execute_command", command=HANGS)])
    async with FileSystemAgent(
        project_root=folder, model=model, config=FileSystemAgentConfig(commands=CommandMode.HOST)
    ) as agent:
        await agent.run("go")


if __name__ == "__main__":
    asyncio.run(
        {"tree": tree, "odd-names": odd_names, "file-agent": file_agent, "job": job}[sys.argv[1]](Path(sys.argv[2]))
    )
