"""The options that commands of agents share, and what they make of them."""

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cfs.cli.base.connection import read_token
from cfs.cli.base.output import note
from cfs.contract.user_folders import state_folder
from cfs.errors import CfsError

if TYPE_CHECKING:
    from cfs_agents.guards.rules import Policy
    from cfs_agents.loop.server_model import ModelSettings
    from cfs_agents.main.questions import CommandQuestions
    from cfs_agents.main.runner import RunnerOptions
    from cfs_agents.mcp.config import McpServer
    from cfs_agents.tools import Tool

USUAL_ROOT, USUAL_TREE_ROOT = "agent_root", "agents"
"""The directories of agents that work on no folder of the user."""
_STATE = "with --workspace, a directory of that name in ~/.local/state/cfs"
TreeRoot = Annotated[
    Path | None,
    typer.Option(
        "--root",
        envvar="CFS_TREE_ROOT",
        metavar="DIR",
        show_default=f"{USUAL_TREE_ROOT}; {_STATE}",
        help="Directory of all trees; each has a folder in it.",
    ),
]
Workspace = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        metavar="DIR",
        show_default="that of the last time, or one in the agent's own directory",
        help="Folder that the agent works on, such as . for the present one: it can read, change and delete all files"
        " there.",
    ),
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, max=5, help="Sampling temperature (default: the server's).")
]
PromptLanguage = Annotated[
    Literal["en", "zh"], typer.Option("--lang", help="Language of the prompts and of the runtime's messages.")
]
CommandModeName = Literal["none", "ask", "bwrap", "host"]
Commands = Annotated[
    CommandModeName,
    typer.Option(
        "--commands",
        help="Whether agents may run shell commands. none: never; ask: as your user, after you agree to each one, at"
        " this terminal or (serve, resume) in the agent's session; bwrap: without asking, in a bubblewrap sandbox;"
        " host: without asking, as your user. Anyone who can write to an agent's session can then run commands.",
    ),
]


def _variables(names: list[str] | None) -> list[str]:
    for name in names or []:
        if name not in os.environ:
            raise typer.BadParameter(f"there is no variable {name!r} in the environment")
    return names or []


Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME",
        callback=_variables,
        show_default=False,
        help="Pass this environment variable to commands, besides PATH, HOME, LANG, LC_*, TERM, TZ and USER"
        " (repeatable).",
    ),
]
_BUDGET = re.compile(r"\$[0-9]{1,9}(\.[0-9]{1,6})?|[0-9]{1,15}")


def _budget(text: str) -> str:
    if not _BUDGET.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is no budget: give a number of tokens, or dollars such as '$0.50'")
    return text


Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        parser=_budget,
        metavar="TOKENS|$AMOUNT",
        help="The most that all agents of the tree may use together for one task: a number of tokens (0 is no limit),"
        " or US dollars such as '$0.50', if the model has a price. Default: 40 times the model's context window.",
    ),
]


TaskBudget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        parser=_budget,
        metavar="TOKENS|$AMOUNT",
        show_default=False,
        help="The most that the agent may use for one task: a number of tokens (0 is no limit), or US dollars such as"
        " '$0.50', if the model has a price. A resumed task goes on with what it has used. Default: no limit.",
    ),
]


def budget_limits(budget: str | None) -> tuple[int | None, float | None]:
    """Return the limit in tokens, and that in US dollars."""
    if budget is None:
        return None, None
    return (None, float(budget[1:])) if budget.startswith("$") else (int(budget), None)


def _seconds(text: str) -> float:
    from cfs_agents.loop.retries import seconds_of

    try:
        return seconds_of(text)
    except CfsError as error:
        raise typer.BadParameter(error.detail) from None


ToolFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--tools",
        metavar="FILE",
        show_default=False,
        help="Python file with tools that agents may call besides their own: functions with @tool() of cfs_agents.tools"
        " (repeatable). It runs as your user.",
    ),
]
McpFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--mcp",
        metavar="FILE",
        show_default=False,
        help="File of MCP servers whose tools agents may call, an mcp.json as other programs have it, besides"
        " ~/.config/cfs/mcp.json (repeatable).",
    ),
]
Unattended = Annotated[
    bool,
    typer.Option(
        "--unattended",
        help="Deny what would be asked about, instead of waiting for a person who answers in the session.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        parser=_seconds,
        metavar="TIME",
        help="How long to wait if the server or the model cannot be reached: forever, or a time such as 90s or 2h. With"
        " 0, each request is tried three times.",
    ),
]
Publish = Annotated[
    bool | None,
    typer.Option(
        "--publish/--no-publish",
        show_default="publish, but with --workspace no-publish",
        help="Whether the files of the agents are also in the session's workspace on the server.",
    ),
]
HasPlan = Annotated[
    bool,
    typer.Option(
        "--plan/--no-plan",
        help="Whether models with a context of 16,384 tokens or more may show you a plan (the tool update_plan).",
    ),
]
Publishes = Annotated[
    str | None,
    typer.Option(
        "--publish",
        metavar="NAME",
        show_default=False,
        help="Also keep the agent's files in this workspace on the server while it works, where every interface"
        " shows them, and changes them.",
    ),
]
USUAL_PATIENCE: Any = "forever"
"""As a user writes it; the option's parser converts it to seconds."""
Tree = Annotated[str, typer.Argument(help="Session of the root agent (default: main).", show_default=False)]


def runner_options(
    root: Path | None,
    usual: str,
    model: "ModelSettings",
    questions: "CommandQuestions | None",
    patience: float,
    url: str,
    token_file: Path | None,
    publish: str | None = None,
    mcp: list[Path] | None = None,
    workspace: Path | None = None,
) -> "RunnerOptions":
    """Return the options of a runner, with the token that a file or the environment holds.

    Without a `root` the state is in the `usual` directory, or with a workspace in that of the user, by the name of the
    folder and a digest of its path.
    """
    from cfs_agents.main.runner import RunnerOptions

    options = RunnerOptions(
        root=root or (Path(usual) if workspace is None else _state_of(workspace, usual)),
        model=model,
        url=url,
        token=read_token(token_file),
        questions=questions,
        patience=patience,
        publish=publish,
        mcp=mcp_servers(mcp),
        workspace=workspace,
    )
    if root is None and workspace is None and not options.root.exists():
        note(f"[the agent's files are in {usual}; to let it work on the present folder: --workspace .]")
    return options


def _state_of(workspace: Path, usual: str) -> Path:
    folder = workspace.expanduser().resolve()
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return state_folder() / usual / f"{folder.name or 'root'}-{digest}"


def questions_of(commands: CommandModeName, *, in_session: bool = False) -> "CommandQuestions | None":
    """Return what asks the person at the terminal; None if there is none.

    Raises `typer.BadParameter` if each command is to be asked about, and there is neither a terminal nor a session.
    """
    from cfs_agents.main.questions import CommandQuestions, can_ask

    if not can_ask() and (in_session or commands != "ask"):
        return None
    if not can_ask():
        raise typer.BadParameter(
            "--commands ask needs a terminal for its questions, on standard input and standard error:"
            " run it at a terminal, or choose none, bwrap or host; `cfs agent serve` can ask in its session instead"
        )
    return CommandQuestions()


Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        envvar="CFS_AGENT_ROOT",
        metavar="DIR",
        show_default=f"{USUAL_ROOT}; {_STATE}",
        help="Directory of the agent, with all of its state.",
    ),
]
ModelName = Annotated[
    str, typer.Option("--model", envvar="CFS_MODEL", metavar="NAME", help="Model to use, if the server has several.")
]

MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="Maximum tokens per reply; truncated replies are continued."),
]
Rounds = Annotated[
    int, typer.Option("--steps", "--rounds", min=1, help="Maximum steps of a task; a step is one reply of the model.")
]
Language = Annotated[
    Literal["en", "zh"], typer.Option("--lang", help="Language of the guideline and of the runtime's messages.")
]


def _no_sandbox(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter(
            "this option has become --commands none|ask|bwrap|host:"
            " use --commands bwrap for --sandbox bwrap, --commands host for --sandbox none"
        )


Sandbox = Annotated[str | None, typer.Option("--sandbox", hidden=True, callback=_no_sandbox)]
Longest = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=500,
        metavar="TOKENS",
        help="Compact conversations longer than this (default: when the model rejects them).",
    ),
]


def loaded_tools(files: list[Path] | None) -> "list[Tool]":
    """Load the tools of a user's Python files."""
    if not files:
        return []
    from cfs_agents.main.own_tools import load_tools

    return load_tools(files)


def mcp_servers(files: list[Path] | None) -> "dict[str, McpServer]":
    """Read the user's file of MCP servers, if there is one, and further files."""
    from cfs_agents.mcp.config import load_servers, user_file

    user_path = user_file()
    return load_servers([*([user_path] if user_path.exists() else []), *(files or [])])


def policy_of(files: list[Path] | None) -> "Policy":
    """Return the user's rules, or those of files, and the user's lasting answers."""
    from cfs_agents.guards.rules import Policy, Remembered, load_rules

    return Policy(rules=load_rules(None, files), remembered=Remembered())


def own_skills() -> Path:
    """Return the folder of the user's own skills."""
    from cfs_agents.project.skills import user_folder

    return user_folder()


def model_settings(name: str, temperature: float | None, max_tokens: int | None = None) -> "ModelSettings":
    """Return the settings of a model."""
    from cfs_agents.loop.server_model import ModelSettings

    return ModelSettings(name=name, temperature=temperature, max_tokens=max_tokens)
