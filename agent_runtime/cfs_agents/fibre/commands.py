"""The commands of `cfs agent` for trees of agents: serve, resume, tree, pause, unpause, cancel (B9, S12)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cfs.cli.app import DEFAULT_URL, Json, Session, TokenFile, Url, connect, read_token
from cfs.cli.screen import show
from cfs.errors import CfsError

if TYPE_CHECKING:
    from cfs.wire import SessionTree
    from cfs_agents.console.question import CommandQuestions
    from cfs_agents.fibre.seat import TreeSeat

TreeRoot = Annotated[
    Path,
    typer.Option("--root", envvar="CFS_TREE_ROOT", metavar="DIR", help="Where trees are kept: each has a folder."),
]
Model = Annotated[
    str, typer.Option("--model", envvar="CFS_MODEL", metavar="NAME", help="Which of the server's models.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, max=5, help="How freely the model chooses; else the server's.")
]
PromptLanguage = Annotated[
    Literal["en", "zh"], typer.Option("--lang", help="PromptLanguage of the prompts and of the runtime's own words.")
]
CommandModeName = Literal["none", "ask", "bwrap", "host"]
Commands = Annotated[
    CommandModeName,
    typer.Option(
        "--commands",
        help="Whether agents may run shell commands. none: never; ask: as your user, after you agree to each one at"
        " this terminal; bwrap: without asking, in a bubblewrap sandbox; host: without asking, as your user. Anyone who"
        " can write to an agent's session can have it run what this allows.",
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
    int | None, typer.Option("--budget", min=1, metavar="TOKENS", help="What all agents may use together.")
]


def _seconds(text: str) -> float:
    from cfs_agents.retries import seconds_of

    try:
        return seconds_of(text)
    except CfsError as error:
        raise typer.BadParameter(error.detail) from None


Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        parser=_seconds,
        metavar="TIME",
        help="How long to wait for a server that does not answer, such as 90s or 2h. With 0 each request is tried three"
        " times.",
    ),
]
USUAL_PATIENCE: Any = "15m"
"""As a user writes it; the option's parser makes seconds of it."""
Tree = Annotated[str, typer.Argument(help="Session of the root; main unless given.", show_default=False)]


def serve(
    session: Annotated[str, typer.Option("--session", help="Session that the agent answers.")] = "main",
    root: TreeRoot = Path("agents"),
    instruction: Annotated[str, typer.Option("--instruction", help="The root's own part of its system prompt.")] = "",
    model: Model = "",
    temperature: Temperature = None,
    lang: PromptLanguage = "en",
    commands: Commands = "none",
    env: Variables = None,
    budget: Budget = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Attach an agent to a session, until Ctrl-C: it answers what is written there, and may become many.

    Each sub-agent has a session below it. Write to any of them, on any face, to steer its agent. What was broken off,
    by whatever, is gone on with first. While the server does not answer, an agent with work waits for as long as
    --patience says, and an idle one without end.
    """
    with _tree_seat(
        root, session, instruction, model, temperature, lang, commands, env, budget, patience, url, token_file
    ) as seat:
        seat.serve()


def resume(
    session: Tree = "main",
    root: TreeRoot = Path("agents"),
    instruction: Annotated[str, typer.Option("--instruction", help="The root's own part of its system prompt.")] = "",
    model: Model = "",
    temperature: Temperature = None,
    lang: PromptLanguage = "en",
    commands: Commands = "none",
    env: Variables = None,
    budget: Budget = None,
    patience: Patience = USUAL_PATIENCE,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Go on with all that was broken off in a tree, and end with it.

    The exit code is 0 when the root has answered, and 4 when it names files as made or changed that are not.
    """
    with _tree_seat(
        root, session, instruction, model, temperature, lang, commands, env, budget, patience, url, token_file
    ) as seat:
        seat.resume()


def tree(session: Tree = "main", as_json: Json = False, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Show a tree of agents: what each is doing, how many messages it has, and how many wait."""
    from cfs import api

    with connect(url, token_file) as client:
        found = client.call(api.sub_sessions(session))
        if as_json:
            show(found.model_dump_json() + "\n")
            return
        paused = {each.id for each in _all(found) if client.call(api.settings(each.id)).paused}
        show("".join(f"{line}\n" for line in _lines(found, paused)))


def pause(session: Session, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Let an agent, and all below it, wait before their next steps."""
    _pause(session, url, token_file, paused=True)


def unpause(session: Session, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """Let an agent that was paused go on."""
    _pause(session, url, token_file, paused=False)


def cancel(session: Session, url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """End what an agent, and all below it, are doing; what is written next finds them ready."""
    from cfs import api

    with connect(url, token_file) as client:
        client.call(api.cancel(session, queued=True, cascade=True))


def _pause(session: str, url: str, token_file: Path | None, *, paused: bool) -> None:
    from cfs import api
    from cfs.wire import SettingsPatch

    with connect(url, token_file) as client:
        client.call(api.configure(session, SettingsPatch(paused=paused)))


def _all(tree: "SessionTree") -> list["SessionTree"]:
    return [tree, *(each for child in tree.children for each in _all(child))]


def _lines(tree: "SessionTree", paused: set[str], depth: int = 0) -> list[str]:
    name = tree.id if depth == 0 else tree.id.rpartition("/")[2]
    state = "paused" if tree.id in paused else "agent?" if tree.state == "waiting_for_agent" else tree.state
    queued = f" +{tree.queued}" if tree.queued else ""
    line = f"{'  ' * depth + name:<32} {state:<10} {tree.messages:>4} messages{queued}"
    return [line, *(each for child in tree.children for each in _lines(child, paused, depth + 1))]


def _tree_seat(
    root: Path,
    session: str,
    instruction: str,
    name: str,
    temperature: float | None,
    language: Literal["en", "zh"],
    commands: CommandModeName,
    env: list[str] | None,
    budget: int | None,
    patience: float,
    url: str,
    token_file: Path | None,
) -> "TreeSeat":
    # Everything heavy comes in here, so that --help is quick.
    from cfs_agents.fibre.config import FibreConfig
    from cfs_agents.fibre.seat import TreeSeat
    from cfs_agents.server_model import ModelSettings
    from cfs_agents.tools import CommandMode

    config = FibreConfig(
        language=language,
        instruction=instruction,
        tree_budget=budget,
        keep_variables=frozenset(env or ()),
        commands=CommandMode(commands),
        ask=(questions := questions_of(commands)),
    )
    settings = ModelSettings(name=name, temperature=temperature)
    token = read_token(token_file)
    return TreeSeat(root, session, config, model=settings, url=url, token=token, questions=questions, patience=patience)


def questions_of(commands: CommandModeName) -> "CommandQuestions | None":
    """Return what asks before each command, for `ask`; raises `typer.BadParameter` where there is no terminal."""
    from cfs_agents.console.question import CommandQuestions, can_ask

    if commands != "ask":
        return None
    if not can_ask():
        raise typer.BadParameter(
            "--commands ask needs a terminal for its questions, on standard input and standard error:"
            " run it at a terminal, or choose none, bwrap or host"
        )
    return CommandQuestions()
