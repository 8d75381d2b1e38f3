"""The `cfs agent` commands: run and chat for one agent, whose state is in files; and those for trees of agents."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cfs.cli.base.connection import DEFAULT_URL
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import TokenFile, Url
from cfs_agents.main.options import (
    USUAL_PATIENCE,
    USUAL_ROOT,
    CommandModeName,
    Commands,
    HasPlan,
    Language,
    Longest,
    MaxTokens,
    McpFiles,
    ModelName,
    Patience,
    Publishes,
    Root,
    Rounds,
    Sandbox,
    TaskBudget,
    Temperature,
    ToolFiles,
    Variables,
    Workspace,
    budget_limits,
    loaded_tools,
    model_settings,
    own_skills,
    policy_of,
    questions_of,
    runner_options,
)
from cfs_agents.main.rules_commands import RuleFiles
from cfs_agents.main.rules_commands import rules as rules_group
from cfs_agents.main.skills_command import skills
from cfs_agents.main.tree_commands import cancel, pause, resume, serve, tree, unpause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfs.cli.base.checks import Check
    from cfs_agents.main.agent_session import AgentSession
    from cfs_agents.main.questions import CommandQuestions
    from cfs_agents.main.runner import RunnerOptions
    from cfs_agents.tree.file_config import FileSystemAgentConfig

app = CommandGroup()
agent = CommandGroup("Agents that work with files and commands.")
app.add_typer(agent, name="agent")
agent.add_typer(rules_group, name="rules")


for _command in (serve, resume, tree, pause, unpause, cancel, skills):
    agent.command()(_command)


@agent.command()
def run(
    task: Annotated[str | None, typer.Argument(help="What to do, in words.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted task.")] = False,
    root: Root = None,
    workspace: Workspace = None,
    model: ModelName = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = 100,
    lang: Language = "en",
    commands: Commands = "none",
    sandbox: Sandbox = None,  # noqa: ARG001 - its callback refuses it
    env: Variables = None,
    tools: ToolFiles = None,
    mcp: McpFiles = None,
    rules: RuleFiles = None,
    context: Longest = None,
    budget: TaskBudget = None,
    plan: HasPlan = True,
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
    config = _config(rounds, lang, commands, questions, env, context, tools, rules, budget=budget, plan=plan)
    settings = model_settings(model, temperature, max_tokens)
    options = runner_options(root, USUAL_ROOT, settings, questions, patience, url, token_file, publish, mcp, workspace)
    with _session(config, options) as session:
        if task is None:
            session.resume()
        else:
            session.work(task)


@agent.command()
def chat(
    root: Root = None,
    workspace: Workspace = None,
    model: ModelName = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = 100,
    lang: Language = "en",
    commands: Commands = "none",
    sandbox: Sandbox = None,  # noqa: ARG001 - its callback refuses it
    env: Variables = None,
    tools: ToolFiles = None,
    mcp: McpFiles = None,
    rules: RuleFiles = None,
    context: Longest = None,
    budget: TaskBudget = None,
    plan: HasPlan = True,
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
    config = _config(rounds, lang, commands, questions, env, context, tools, rules, budget=budget, plan=plan)
    settings = model_settings(model, temperature, max_tokens)
    options = runner_options(root, USUAL_ROOT, settings, questions, patience, url, token_file, publish, mcp, workspace)
    with _session(config, options) as session:
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
    rules: list[Path] | None,
    *,
    budget: str | None,
    plan: bool,
) -> "FileSystemAgentConfig":
    from cfs_agents.tools import CommandMode
    from cfs_agents.tree.file_config import FileSystemAgentConfig

    tokens, cost = budget_limits(budget)
    return FileSystemAgentConfig(
        language=language,
        max_rounds=rounds,
        commands=CommandMode(commands),
        ask=questions,
        keep_variables=frozenset(env or ()),
        context_tokens=context,
        tools=loaded_tools(tools),
        skills=own_skills(),
        policy=policy_of(rules),
        plan=plan,
        task_budget=tokens,
        task_cost=cost,
    )


def _session(config: "FileSystemAgentConfig", options: "RunnerOptions") -> "AgentSession":
    # Everything heavy is imported here, so that --help is quick.
    from cfs_agents.main.agent_session import AgentSession

    return AgentSession(config, options)


def checks() -> "Iterator[Check]":
    """Look, for `cfs doctor`, whether commands can be confined here."""
    from cfs.cli.base.checks import fine, missing
    from cfs_agents.tools import sandbox_trouble

    if (trouble := sandbox_trouble()) is None:
        yield fine("sandbox", "commands of agents can be confined: cfs agent ... --commands bwrap")
    else:
        yield missing("sandbox", trouble, "--commands bwrap needs bubblewrap 0.8, libseccomp and user namespaces")
