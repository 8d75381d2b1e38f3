"""The `cfs agent` commands: run and chat for one agent, and the commands for trees of agents.

The state of a single agent is stored in files.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cfs.cli.base.connection import DEFAULT_URL, connect, read_token
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import Background, Json, Session, TokenFile, Url
from cfs.cli.base.output import columns, show
from cfs.errors import CfsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfs.cli.base.checks import Check
    from cfs.state.tree_state import TreeAgent
    from cfs.wire import SessionTree
    from cfs_agents.loop.model import ModelSettings
    from cfs_agents.main.console import CommandQuestions
    from cfs_agents.main.runner import AgentSession, RunnerOptions, TreeRunner
    from cfs_agents.tools import Tool
    from cfs_agents.tree.file_agent import FileSystemAgentConfig
    from cfs_agents.tree.state import FibreConfig


# -- trees of agents: serve, resume, tree, pause, unpause, cancel (B9, S12) -------------------------------------------

TreeRoot = Annotated[
    Path,
    typer.Option(
        "--root", envvar="CFS_TREE_ROOT", metavar="DIR", help="Directory of all trees; each has a folder in it."
    ),
]
Model = Annotated[
    str, typer.Option("--model", envvar="CFS_MODEL", metavar="NAME", help="Model to use, if the server has several.")
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
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=0,
        metavar="TOKENS",
        help="Maximum tokens that all agents of the tree may use together for one task; 0 is no limit."
        " Default: 40 times the model's context window.",
    ),
]


def _seconds(text: str) -> float:
    from cfs_agents.loop.model import seconds_of

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
Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        parser=_seconds,
        metavar="TIME",
        help="How long to wait for a server or model that is away: forever, or a time such as 90s or 2h. With 0 each"
        " request is tried three times.",
    ),
]
Publish = Annotated[
    bool,
    typer.Option(
        "--publish/--no-publish",
        help="Whether the files of the agents are also in the session's workspace on the server.",
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


def serve(
    session: Annotated[str, typer.Option("--session", help="Session that the agent answers.")] = "main",
    root: TreeRoot = Path("agents"),
    instruction: Annotated[
        str, typer.Option("--instruction", help="Instructions for the root agent, added to its system prompt.")
    ] = "",
    model: Model = "",
    temperature: Temperature = None,
    lang: PromptLanguage = "en",
    commands: Commands = "none",
    env: Variables = None,
    tools: ToolFiles = None,
    budget: Budget = None,
    publish: Publish = True,
    patience: Patience = USUAL_PATIENCE,
    in_background: Background = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Attach an agent to a session until Ctrl-C: it answers messages and may start sub-agents (Fibre).

    Each sub-agent has a session below this one. Write to any of these sessions, over any interface, to steer its agent.
    Interrupted work is resumed first, so after any end it is enough to start this again. A server or model that is away
    is waited for; --patience limits that while there is work. With --background, `cfs logs SESSION` shows what it does.
    """
    if in_background:
        from cfs.cli.base import background

        raise typer.Exit(background.start())
    questions = questions_of(commands, in_session=True)
    config = _tree_config(instruction, lang, commands, questions, env, budget, tools, publish=publish)
    options = _options(root, _settings(model, temperature), questions, patience, url, token_file)
    with _tree_runner(session, config, options) as runner:
        runner.serve()


def resume(
    session: Tree = "main",
    root: TreeRoot = Path("agents"),
    instruction: Annotated[
        str, typer.Option("--instruction", help="Instructions for the root agent, added to its system prompt.")
    ] = "",
    model: Model = "",
    temperature: Temperature = None,
    lang: PromptLanguage = "en",
    commands: Commands = "none",
    env: Variables = None,
    tools: ToolFiles = None,
    budget: Budget = None,
    publish: Publish = True,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Resume all interrupted work in a tree, then exit.

    The exit code is 0 if the root agent has answered, and 4 if its answer names files as made or changed that are not.
    """
    questions = questions_of(commands, in_session=True)
    config = _tree_config(instruction, lang, commands, questions, env, budget, tools, publish=publish)
    options = _options(root, _settings(model, temperature), questions, patience, url, token_file)
    with _tree_runner(session, config, options) as runner:
        runner.resume()


def tree(session: Tree = "main", as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Show the agents of a tree: how each ended or what it does, the messages and tokens it took, and its time.

    The time of an agent is that of its tasks, and the time behind a tool is how long that has been running.
    """
    from cfs import api
    from cfs.tree.tree import read_agents
    from cfs_agents.main.tree_lines import tree_lines

    with connect(url, token_file) as client:
        found = client.call(api.sub_sessions(session))
        agents = read_agents(client, found)
        if as_json:
            show(json.dumps(_nested(found, agents)) + "\n")
        else:
            show("".join(f"{line}\n" for line in tree_lines(agents, time.time(), columns(sys.stdout))))


def pause(session: Session, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Pause an agent and all agents below it, each before its next step."""
    _pause(session, url, token_file, paused=True)


def unpause(session: Session, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Resume a paused agent and all agents below it."""
    _pause(session, url, token_file, paused=False)


def cancel(session: Session, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Cancel the tasks of an agent and of all agents below it. They accept new messages afterwards."""
    from cfs import api

    with connect(url, token_file) as client:
        client.call(api.cancel(session, queued=True, cascade=True))


def _pause(session: str, url: str, token_file: Path | None, *, paused: bool) -> None:
    from cfs import api
    from cfs.wire import SettingsPatch

    with connect(url, token_file) as client:
        client.call(api.configure(session, SettingsPatch(paused=paused)))


def _nested(tree: "SessionTree", agents: "Sequence[TreeAgent]") -> dict[str, Any]:
    """Return the sessions as the server lists them, each with what is known of its agent."""
    known = {agent.session: agent for agent in agents}

    def node(info: "SessionTree") -> dict[str, Any]:
        agent = known[info.id]
        return {
            **info.model_dump(mode="json", exclude={"children"}),
            **{name: getattr(agent, name) for name in ("paused", "tool", "tool_since", "seconds")},
            "outcome": None if agent.outcome is None else asdict(agent.outcome),
            "children": [node(child) for child in info.children if child.id in known],
        }

    return node(tree)


def _tree_config(
    instruction: str,
    language: Literal["en", "zh"],
    commands: CommandModeName,
    questions: "CommandQuestions | None",
    env: list[str] | None,
    budget: int | None,
    tools: list[Path] | None,
    *,
    publish: bool,
) -> "FibreConfig":
    from cfs_agents.tools import CommandMode
    from cfs_agents.tree.state import FibreConfig

    return FibreConfig(
        language=language,
        instruction=instruction,
        tree_budget=budget,
        keep_variables=frozenset(env or ()),
        commands=CommandMode(commands),
        ask=questions,
        tools=_loaded(tools),
        publish=publish,
    )


def _tree_runner(session: str, config: "FibreConfig", options: "RunnerOptions") -> "TreeRunner":
    # Everything heavy is imported here, so that --help is quick.
    from cfs_agents.main.runner import TreeRunner

    return TreeRunner(session, config, options)


def _options(
    root: Path,
    model: "ModelSettings",
    questions: "CommandQuestions | None",
    patience: float,
    url: str,
    token_file: Path | None,
    publish: str | None = None,
) -> "RunnerOptions":
    from cfs_agents.main.runner import RunnerOptions

    token = read_token(token_file)
    return RunnerOptions(
        root=root, model=model, url=url, token=token, questions=questions, patience=patience, publish=publish
    )


def questions_of(commands: CommandModeName, *, in_session: bool = False) -> "CommandQuestions | None":
    """Return the consent prompt for each command, for `ask`; None if commands are only asked about in the session.

    Raises `typer.BadParameter` if there is neither a terminal nor a session.
    """
    from cfs_agents.main.console import CommandQuestions, can_ask

    if commands != "ask":
        return None
    if not can_ask() and in_session:
        return None
    if not can_ask():
        raise typer.BadParameter(
            "--commands ask needs a terminal for its questions, on standard input and standard error:"
            " run it at a terminal, or choose none, bwrap or host; `cfs agent serve` can ask in its session instead"
        )
    return CommandQuestions()


app = CommandGroup()
agent = CommandGroup("Agents that work with files and commands.")
app.add_typer(agent, name="agent")

Root = Annotated[
    Path,
    typer.Option(
        "--root", envvar="CFS_AGENT_ROOT", metavar="DIR", help="Directory of the agent, with all of its state."
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


for _command in (serve, resume, tree, pause, unpause, cancel):
    agent.command()(_command)


@agent.command()
def run(
    task: Annotated[str | None, typer.Argument(help="What to do, in words.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted task.")] = False,
    root: Root = Path("agent_root"),
    model: ModelName = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = 100,
    lang: Language = "en",
    commands: Commands = "none",
    sandbox: Sandbox = None,  # noqa: ARG001 - its callback refuses it
    env: Variables = None,
    tools: ToolFiles = None,
    context: Longest = None,
    publish: Publishes = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Let an agent do a task; without a task, with --resume, or with the same task, resume the interrupted one.

    All state of the agent is in its directory, which can be moved. Ctrl-C stops the task and keeps its state, and so
    does anything else that ends the program.

    The exit code is 0 if the model has answered and its last call before the answer did not fail. It is 4 if the answer
    names files as made or changed that are not, and 1 otherwise; a line gives the reason.
    """
    if task is not None and resume:
        raise typer.BadParameter("either a task or --resume")
    if task is not None and not task.strip():
        raise typer.BadParameter("the task is empty")
    questions = questions_of(commands)
    config = _config(rounds, lang, commands, questions, env, context, tools)
    settings = _settings(model, temperature, max_tokens)
    with _session(config, _options(root, settings, questions, patience, url, token_file, publish)) as session:
        if task is None:
            session.resume()
        else:
            session.work(task)


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
    tools: ToolFiles = None,
    context: Longest = None,
    publish: Publishes = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    '''Give an agent tasks, line by line.

    Ctrl-C stops the running task and keeps its state, Ctrl-D ends the chat. /resume resumes an interrupted task, /help
    lists the commands. A task of several lines stands between two """. Piped input is read line by line, until a
    task fails.
    '''
    from cfs.cli.base.line_input import LineEditor, history_file, messages, read_input
    from cfs.cli.base.output import is_terminal

    interactive = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    questions = questions_of(commands)
    config = _config(rounds, lang, commands, questions, env, context, tools)
    settings = _settings(model, temperature, max_tokens)
    with _session(config, _options(root, settings, questions, patience, url, token_file, publish)) as session:
        if interactive:
            session.greet()
        read_line = LineEditor(history_file("agent")).read_line if interactive else read_input
        for entry in messages(read_line):
            if not session.take(entry, interactive=interactive):
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
    tools: list[Path] | None,
) -> "FileSystemAgentConfig":
    from cfs_agents.tools import CommandMode
    from cfs_agents.tree.file_agent import FileSystemAgentConfig

    return FileSystemAgentConfig(
        language=language,
        max_rounds=rounds,
        commands=CommandMode(commands),
        ask=questions,
        keep_variables=frozenset(env or ()),
        context_tokens=context,
        tools=_loaded(tools),
    )


def _loaded(files: list[Path] | None) -> "list[Tool]":
    if not files:
        return []
    from cfs_agents.main.own_tools import load_tools

    return load_tools(files)


def _settings(name: str, temperature: float | None, max_tokens: int | None = None) -> "ModelSettings":
    from cfs_agents.loop.model import ModelSettings

    return ModelSettings(name=name, temperature=temperature, max_tokens=max_tokens)


def _session(config: "FileSystemAgentConfig", options: "RunnerOptions") -> "AgentSession":
    # Everything heavy is imported here, so that --help is quick.
    from cfs_agents.main.runner import AgentSession

    return AgentSession(config, options)


def checks() -> "Iterator[Check]":
    """Look, for `cfs doctor`, whether commands can be confined here."""
    from cfs.cli.base.checks import fine, missing
    from cfs_agents.tools import sandbox_trouble

    if (trouble := sandbox_trouble()) is None:
        yield fine("sandbox", "commands of agents can be confined: cfs agent ... --commands bwrap")
    else:
        yield missing("sandbox", trouble, "--commands bwrap needs bubblewrap 0.8, libseccomp and user namespaces")
