"""The agents' command of `cfs`: agent run, agent chat, and those of trees of agents."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cfs.cli.app import DEFAULT_URL, TokenFile, Url, read_token
from cfs_agents.fibre import commands as trees
from cfs_agents.fibre.commands import (
    USUAL_PATIENCE,
    CommandModeName,
    Commands,
    Patience,
    Variables,
    questions_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfs.cli.doctor import Check
    from cfs_agents.console.question import CommandQuestions
    from cfs_agents.file_agent import FileAgentConfig
    from cfs_agents.seat import Seat
    from cfs_agents.server_model import ModelSettings

app = typer.Typer(no_args_is_help=True)
agent = typer.Typer(no_args_is_help=True, help="Agents that work with files and commands.")
app.add_typer(agent, name="agent")

Root = Annotated[
    Path,
    typer.Option("--root", envvar="CFS_AGENT_ROOT", metavar="DIR", help="The agent's directory: all of its state."),
]
ModelName = Annotated[
    str, typer.Option("--model", envvar="CFS_MODEL", metavar="NAME", help="Which of the server's models.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, max=5, help="How freely the model chooses; else the server's.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help="How long a reply may be; what is cut off is gone on with."),
]
Rounds = Annotated[int, typer.Option("--steps", "--rounds", min=1, help="Most steps of a task: replies of the model.")]
Language = Annotated[
    Literal["en", "zh"], typer.Option("--lang", help="Language of the guideline and of the runtime's own words.")
]


def _no_sandbox(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter(
            "this option has become --commands none|ask|bwrap|host:"
            " say --commands bwrap for --sandbox bwrap, --commands host for --sandbox none"
        )


Sandbox = Annotated[str | None, typer.Option("--sandbox", hidden=True, callback=_no_sandbox)]
Longest = Annotated[
    int | None,
    typer.Option(
        "--context", min=500, metavar="TOKENS", help="Compact longer conversations; else when the model refuses them."
    ),
]


for _command in (trees.serve, trees.resume, trees.tree, trees.pause, trees.unpause, trees.cancel):
    agent.command()(_command)


@agent.command()
def run(
    task: Annotated[str | None, typer.Argument(help="What to do, in words.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the task that was broken off.")] = False,
    root: Root = Path("agent_root"),
    model: ModelName = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = 100,
    lang: Language = "en",
    commands: Commands = "none",
    sandbox: Sandbox = None,  # noqa: ARG001 - its callback refuses it
    env: Variables = None,
    context: Longest = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Let an agent do a task. Without a task, or with --resume, it goes on with the one that was broken off.

    The agent knows what is in its directory, and nothing else; the directory can be moved. Ctrl-C stops the task and
    keeps its state, so does anything that ends the program.

    The exit code is 0 only when the model came to an answer and its last call before did not fail; otherwise it is 1,
    and a line says why. It is 4 when the answer names files as made or changed that are not.
    """
    if task is not None and resume:
        raise typer.BadParameter("either a task or --resume")
    if task is not None and not task.strip():
        raise typer.BadParameter("the task is empty")
    questions = questions_of(commands)
    config = _config(rounds, lang, commands, questions, env, context)
    settings = _settings(model, temperature, max_tokens)
    with _seat(root, config, settings, patience, url, token_file, questions) as seat:
        if task is None:
            seat.resume()
        else:
            seat.work(task)


@agent.command()
def chat(
    root: Root = Path("agent_root"),
    model: ModelName = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = 100,
    lang: Language = "en",
    commands: Commands = "none",
    sandbox: Sandbox = None,  # noqa: ARG001 - its callback refuses it
    env: Variables = None,
    context: Longest = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    '''Give an agent tasks, line by line.

    Ctrl-C stops the running task and keeps its state, Ctrl-D ends. /resume goes on with a task that was broken off,
    /help lists the commands. A task of several lines stands between two """. What is piped in is taken line by line,
    until a task fails.
    '''
    from cfs.cli import prompt
    from cfs.cli.screen import is_terminal

    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    questions = questions_of(commands)
    config = _config(rounds, lang, commands, questions, env, context)
    settings = _settings(model, temperature, max_tokens)
    with _seat(root, config, settings, patience, url, token_file, questions) as seat:
        if interactive:
            seat.greet()
        read_line = prompt.LineEditor(prompt.history_file("agent")).read_line if interactive else prompt.read_input
        for entry in prompt.messages(read_line):
            if not seat.take(entry, interactive=interactive):
                return
        if interactive:
            typer.echo()


def _config(
    rounds: int,
    language: Literal["en", "zh"],
    commands: CommandModeName,
    questions: "CommandQuestions | None",
    env: list[str] | None,
    context: int | None,
) -> "FileAgentConfig":
    from cfs_agents.file_agent import FileAgentConfig
    from cfs_agents.tools import CommandMode

    return FileAgentConfig(
        language=language,
        max_rounds=rounds,
        commands=CommandMode(commands),
        ask=questions,
        keep_variables=frozenset(env or ()),
        context_tokens=context,
    )


def _settings(name: str, temperature: float | None, max_tokens: int | None) -> "ModelSettings":
    from cfs_agents.server_model import ModelSettings

    return ModelSettings(name=name, temperature=temperature, max_tokens=max_tokens)


def _seat(
    root: Path,
    config: "FileAgentConfig",
    model: "ModelSettings",
    patience: float,
    url: str,
    token_file: Path | None,
    questions: "CommandQuestions | None",
) -> "Seat":
    # Everything heavy comes in here, so that --help is quick.
    from cfs_agents.seat import Seat

    return Seat(
        root, config, model=model, url=url, token=read_token(token_file), questions=questions, patience=patience
    )


def checks() -> "Iterator[Check]":
    """Look, for `cfs doctor`, whether commands can be confined here."""
    from cfs.cli.doctor import fine, missing
    from cfs_agents.tools import sandbox_trouble

    if (trouble := sandbox_trouble()) is None:
        yield fine("sandbox", "commands of agents can be confined: cfs agent ... --commands bwrap")
    else:
        yield missing("sandbox", trouble, "--commands bwrap needs bubblewrap 0.8, libseccomp and user namespaces")
