"""The `cfs agent` commands for trees of agents: serve, resume, tree, pause, unpause, cancel (B9, S12)."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cfs.cli.base.connection import DEFAULT_URL, connect
from cfs.cli.base.options import Background, Json, Session, TokenFile, Url
from cfs.cli.base.output import columns, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfs.state.tree_state import TreeAgent
    from cfs.wire import SessionTree
    from cfs_agents.main.questions import CommandQuestions
    from cfs_agents.main.runner import RunnerOptions
    from cfs_agents.main.tree_runner import TreeRunner
    from cfs_agents.tree.config import FibreConfig
from cfs_agents.main.options import (
    USUAL_PATIENCE,
    USUAL_TREE_ROOT,
    Budget,
    CommandModeName,
    Commands,
    HasPlan,
    McpFiles,
    ModelName,
    Patience,
    PromptLanguage,
    Publish,
    Temperature,
    ToolFiles,
    Tree,
    TreeRoot,
    Unattended,
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


def serve(
    session: Annotated[str, typer.Option("--session", help="Session that the agent answers.")] = "main",
    root: TreeRoot = None,
    workspace: Workspace = None,
    instruction: Annotated[
        str, typer.Option("--instruction", help="Instructions for the root agent, added to its system prompt.")
    ] = "",
    model: ModelName = "",
    temperature: Temperature = None,
    lang: PromptLanguage = "en",
    commands: Commands = "none",
    env: Variables = None,
    tools: ToolFiles = None,
    mcp: McpFiles = None,
    rules: RuleFiles = None,
    unattended: Unattended = False,
    budget: Budget = None,
    plan: HasPlan = True,
    publish: Publish = None,
    patience: Patience = USUAL_PATIENCE,
    in_background: Background = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Attach an agent to a session until Ctrl-C: it answers messages and may start sub-agents (Fibre).

    Each sub-agent has a session below this one. Write to any of these sessions, over any interface, to steer its agent.
    Interrupted work is resumed first, so after any end it is enough to start this again. If the server or the model
    cannot be reached, the agents wait; --patience limits how long while there is work. With --background,
    `cfs logs SESSION` shows what they do.
    """
    if in_background:
        from cfs.cli.base import background

        raise typer.Exit(background.start())
    questions = questions_of(commands, in_session=True)
    config = _tree_config(
        instruction,
        lang,
        commands,
        questions,
        env,
        budget,
        tools,
        rules,
        publish=publish,
        attended=not unattended,
        plan=plan,
    )
    settings, usual = model_settings(model, temperature), USUAL_TREE_ROOT
    options = runner_options(root, usual, settings, questions, patience, url, token_file, mcp=mcp, workspace=workspace)
    with _tree_runner(session, config, options) as runner:
        runner.serve()


def resume(
    session: Tree = "main",
    root: TreeRoot = None,
    workspace: Workspace = None,
    instruction: Annotated[
        str, typer.Option("--instruction", help="Instructions for the root agent, added to its system prompt.")
    ] = "",
    model: ModelName = "",
    temperature: Temperature = None,
    lang: PromptLanguage = "en",
    commands: Commands = "none",
    env: Variables = None,
    tools: ToolFiles = None,
    mcp: McpFiles = None,
    rules: RuleFiles = None,
    unattended: Unattended = False,
    budget: Budget = None,
    plan: HasPlan = True,
    publish: Publish = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Resume all interrupted work in a tree, then exit.

    The exit code is 0 if the root agent has answered, and 4 if its answer names files as made or changed that are not.
    """
    questions = questions_of(commands, in_session=True)
    config = _tree_config(
        instruction,
        lang,
        commands,
        questions,
        env,
        budget,
        tools,
        rules,
        publish=publish,
        attended=not unattended,
        plan=plan,
    )
    settings, usual = model_settings(model, temperature), USUAL_TREE_ROOT
    options = runner_options(root, usual, settings, questions, patience, url, token_file, mcp=mcp, workspace=workspace)
    with _tree_runner(session, config, options) as runner:
        runner.resume()


def tree(session: Tree = "main", as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Show the agents of a tree: how each ended or what it does, the messages and tokens it took, and its time.

    Below an agent stand its plan and its jobs in the background, and below the root what is left of the tree's budget.
    The time of an agent is that of its tasks, and the time behind a tool is how long that has been running.
    """
    from cfs import api
    from cfs.tree.tree import read_agents
    from cfs_agents.main.tree_lines import tree_lines

    with connect(url, token_file) as client:
        sessions = client.call(api.sub_sessions(session))
        agents = read_agents(client, sessions)
        if as_json:
            show(json.dumps(_nested(sessions, agents)) + "\n")
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
    by_session = {agent.session: agent for agent in agents}

    def node(info: "SessionTree") -> dict[str, Any]:
        agent = by_session[info.id]
        return {
            **info.model_dump(mode="json", exclude={"children"}),
            **{name: getattr(agent, name) for name in ("paused", "tool", "tool_since", "seconds")},
            "outcome": None if agent.outcome is None else asdict(agent.outcome),
            "work": None if agent.work is None else agent.work.model_dump(mode="json"),
            "children": [node(child) for child in info.children if child.id in by_session],
        }

    return node(tree)


def _tree_config(
    instruction: str,
    language: Literal["en", "zh"],
    commands: CommandModeName,
    questions: "CommandQuestions | None",
    env: list[str] | None,
    budget: str | None,
    tools: list[Path] | None,
    rules: list[Path] | None,
    *,
    publish: bool | None,
    attended: bool,
    plan: bool,
) -> "FibreConfig":
    from cfs_agents.tools import CommandMode
    from cfs_agents.tree.config import FibreConfig

    tokens, cost = budget_limits(budget)
    return FibreConfig(
        language=language,
        instruction=instruction,
        tree_budget=tokens,
        tree_cost=cost,
        keep_variables=frozenset(env or ()),
        commands=CommandMode(commands),
        ask=questions,
        tools=loaded_tools(tools),
        skills=own_skills(),
        policy=policy_of(rules),
        attended=attended,
        publish=publish,
        plan=plan,
    )


def _tree_runner(session: str, config: "FibreConfig", options: "RunnerOptions") -> "TreeRunner":
    # Everything heavy is imported here, so that --help is quick.
    from cfs_agents.main.tree_runner import TreeRunner

    return TreeRunner(session, config, options)
