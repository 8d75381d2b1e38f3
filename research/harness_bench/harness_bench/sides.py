"""The harnesses: what each needs, how it is started, and where it works."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bench.environments import Environment
from harness_bench.tasks import Ability, Task

RUNNERS = Path(__file__).parent / "runners"


@dataclass(frozen=True, slots=True)
class Side:
    """One harness. `packages` are installed for it alone; without, it is ours.

    `oldest` is the oldest Python that it runs on; where there is none, the side is left out. `abilities` are those
    that its tasks may need. `question` is what it shows at a terminal to ask about a command, and `consent` what is
    typed then; a side without asks its runner. `serves` is its runner for questions and budgets, with a server.
    """

    name: str
    runner: str = ""
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    oldest: tuple[int, int] = (3, 11)
    directory: str = "work"
    resumes: bool = False
    abilities: tuple[Ability, ...] = ()
    question: str = ""
    consent: str = ""
    serves: str = ""

    def python(self, bases: Sequence[str]) -> Path | None:
        """Return the interpreter to run it with, its environment made; None where none of `bases` is new enough."""
        if not self.packages:
            return Path(sys.executable)
        base = next((found for name in bases if (found := _interpreter(name, self.oldest))), None)
        name = self.name.replace(" ", "-").lower()
        return Environment(name, self.packages, base=base).python() if base else None

    def command(self, python: Path, url: str, place: Path, task: Task, *, resume: bool) -> list[str]:
        """Return the command line that works on a task below `place`."""
        if task.server:
            entry = {"command": sys.executable, "args": [str(RUNNERS / "mcp_server.py"), task.server]}
            (place / "mcp.json").write_text(json.dumps({"mcpServers": {"stock": entry}}), encoding="utf-8")
        open_question = 0 if resume else task.open_question
        command = self._program(python, url, place, task, open_question, resume=resume and self.resumes)
        if task.open_question and self.question:
            terminal = [sys.executable, str(RUNNERS / "terminal.py"), str(place / "state"), str(open_question)]
            return [*terminal, self.question, self.consent, *command]
        return command

    def _program(
        self, python: Path, url: str, place: Path, task: Task, open_question: int, *, resume: bool
    ) -> list[str]:
        if self.name == "CFS file agent":
            program = [str(python), "-m", "cfs", "agent", "run"]
            mode = "ask" if task.open_question else "host"
            rest = ["--commands", mode, "--root", str(place / "agent"), "--url", url]
            rules = place / "rules.toml"
            rules.write_text('allow = ["mcp(stock/*)"]\n', encoding="utf-8")
            mcp = ["--mcp", str(place / "mcp.json"), "--rules", str(rules)] if task.server else []
            return [*program, *(["--resume"] if resume else [task.words]), *rest, *mcp]
        runner = self.serves if self.serves and (task.open_question or task.budget) else self.runner
        work, state = place / self.directory, place / "state"
        words = [str(python), str(RUNNERS / runner), url, str(work), str(state), task.words, *self.arguments]
        asks = ["--ask", str(open_question)] if task.open_question else []
        budget = ["--budget", str(task.budget)] if task.budget else []
        children = ["--children", ",".join(child.name for child in task.children)] if task.children else []
        return [*words, *asks, *budget, *children, *(["--resume"] if resume else [])]


def _interpreter(name: str, oldest: tuple[int, int]) -> Path | None:
    """Return the path of an interpreter that works and is new enough."""
    script = f"import sys; print(sys.executable) if sys.version_info[:2] >= {oldest} else sys.exit(1)"
    try:
        done = subprocess.run([name, "-c", script], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(done.stdout.strip())


_OURS: tuple[Ability, ...] = ("MCP", "AGENTS.md", "skills", "questions")
_SMOLAGENTS = ("smolagents[openai,mcp]==1.26.0", "mcp==1.30.0")  # it cannot do with a later one

SIDES = (
    Side(
        "CFS file agent",
        directory="agent/workspace",
        resumes=True,
        abilities=_OURS,
        question="Run it?",
        consent="y",
    ),
    Side(
        "CFS Fibre",
        "fibre_runner.py",
        directory="state/main/agent_workspace",
        resumes=True,
        abilities=(*_OURS, "children", "budgets"),
        serves="served_runner.py",
    ),
    Side("smolagents tools", "smolagents_runner.py", ("tools",), _SMOLAGENTS, abilities=("MCP", "children")),
    Side("smolagents code", "smolagents_runner.py", ("code",), _SMOLAGENTS, abilities=("MCP", "children")),
    Side(
        "mini-swe-agent",
        "mini_runner.py",
        (),
        ("mini-swe-agent==2.4.6",),
        abilities=("questions",),
        question="to confirm",
    ),
    Side(
        "deepagents",
        "deepagents_runner.py",
        (),
        ("deepagents==0.7.32", "langchain-openai==1.7.3", "langgraph-checkpoint-sqlite==3.1.2"),
        resumes=True,
        abilities=("AGENTS.md", "skills", "questions", "children"),
    ),
    Side(
        "OpenHands SDK",
        "openhands_runner.py",
        (),
        ("openhands-sdk==1.58.0", "openhands-tools==1.58.0"),
        (3, 12),
        resumes=True,
        abilities=("MCP", "AGENTS.md", "skills", "questions", "children", "budgets"),
    ),
)
