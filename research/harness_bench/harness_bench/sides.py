"""The harnesses: what each needs, how it is started, and where it works."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bench.environments import Environment
from harness_bench.tasks import Ability, ServerKind

RUNNERS = Path(__file__).parent / "runners"


@dataclass(frozen=True, slots=True)
class Side:
    """One harness. `packages` are installed for it alone; without, it is ours.

    `oldest` is the oldest Python that it runs on; where there is none, the side is left out. `abilities` are those
    that its tasks may need.
    """

    name: str
    runner: str = ""
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    oldest: tuple[int, int] = (3, 11)
    directory: str = "work"
    resumes: bool = False
    abilities: tuple[Ability, ...] = ()

    def python(self, bases: Sequence[str]) -> Path | None:
        """Return the interpreter to run it with, its environment made; None where none of `bases` is new enough."""
        if not self.packages:
            return Path(sys.executable)
        base = next((found for name in bases if (found := _interpreter(name, self.oldest))), None)
        name = self.name.replace(" ", "-").lower()
        return Environment(name, self.packages, base=base).python() if base else None

    def command(self, python: Path, url: str, place: Path, task: str, server: ServerKind, *, resume: bool) -> list[str]:
        """Return the command line that works on a task below `place`, with this MCP server."""
        servers = place / "mcp.json"
        if server:
            entry = {"command": sys.executable, "args": [str(RUNNERS / "mcp_server.py"), server]}
            servers.write_text(json.dumps({"mcpServers": {"stock": entry}}), encoding="utf-8")
        if self.name == "CFS file agent":
            program = [str(python), "-m", "cfs", "agent", "run"]
            rest = ["--commands", "host", "--root", str(place / "agent"), "--url", url]
            rules = place / "rules.toml"
            rules.write_text('allow = ["mcp(stock/*)"]\n', encoding="utf-8")
            mcp = ["--mcp", str(servers), "--rules", str(rules)] if server else []
            return [*program, *(["--resume"] if resume else [task]), *rest, *mcp]
        work, state = place / self.directory, place / "state"
        words = [str(python), str(RUNNERS / self.runner), url, str(work), str(state), task, *self.arguments]
        return [*words, "--resume"] if resume else words


def _interpreter(name: str, oldest: tuple[int, int]) -> Path | None:
    """Return the path of an interpreter that works and is new enough."""
    script = f"import sys; print(sys.executable) if sys.version_info[:2] >= {oldest} else sys.exit(1)"
    try:
        done = subprocess.run([name, "-c", script], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(done.stdout.strip())


_OURS: tuple[Ability, ...] = ("MCP", "AGENTS.md", "skills")

SIDES = (
    Side("CFS file agent", directory="agent/workspace", resumes=True, abilities=_OURS),
    Side(
        "CFS Fibre",
        "fibre_runner.py",
        directory="state/main/agent_workspace",
        resumes=True,
        abilities=_OURS,
    ),
    Side(
        "smolagents tools", "smolagents_runner.py", ("tools",), ("smolagents[openai,mcp]==1.26.0",), abilities=("MCP",)
    ),
    Side("smolagents code", "smolagents_runner.py", ("code",), ("smolagents[openai,mcp]==1.26.0",), abilities=("MCP",)),
    Side("mini-swe-agent", "mini_runner.py", (), ("mini-swe-agent==2.4.6",)),
    Side(
        "deepagents",
        "deepagents_runner.py",
        (),
        ("deepagents==0.7.32", "langchain-openai==1.7.3", "langgraph-checkpoint-sqlite==3.1.2"),
        resumes=True,
        abilities=("AGENTS.md", "skills"),
    ),
    Side(
        "OpenHands SDK",
        "openhands_runner.py",
        (),
        ("openhands-sdk==1.58.0", "openhands-tools==1.58.0"),
        (3, 12),
        resumes=True,
    ),
)
