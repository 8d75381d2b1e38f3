"""The command `cfs acp`. What it needs is imported when it runs, so that `cfs --help` stays fast."""

from typing import Annotated

import typer

from cfs.cli.base.connection import DEFAULT_URL, read_token
from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import TokenFile, Url
from cfs_agents.main.options import (
    CommandModeName,
    HasPlan,
    Language,
    Longest,
    MaxTokens,
    ModelName,
    Patience,
    Rounds,
    Temperature,
    Variables,
    policy_of,
)
from cfs_agents.main.rules_commands import RuleFiles

app = CommandGroup()

Commands = Annotated[
    CommandModeName,
    typer.Option(
        "--commands",
        help="Mode of commands in which a session begins; the editor can change it. none: no commands; ask: as your"
        " user, after you agree to each one in the editor; bwrap: without asking, in a bubblewrap sandbox; host:"
        " without asking, as your user.",
    ),
]
USUAL_PATIENCE: str = "60s"


@app.command()
def acp(
    model: ModelName = "",
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    rounds: Rounds = 100,
    lang: Language = "en",
    commands: Commands = "ask",
    env: Variables = None,
    context: Longest = None,
    plan: HasPlan = True,
    rules: RuleFiles = None,
    patience: Patience = USUAL_PATIENCE,  # type: ignore[assignment]  # the option's parser converts it to seconds
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Let an editor use an agent, by the Agent Client Protocol on standard input and output.

    Editors such as Zed start this command themselves. The agent works in the folder that is open in the editor, and
    each conversation is a session of the server: `cfs ls acp-` lists them, and `cfs cat` shows them while they run.
    Remarks go to standard error. It ends when its input ends.
    """
    from cfs_acp.serve import serve
    from cfs_acp.session import AgentOptions
    from cfs_agents.loop.server_model import ModelSettings
    from cfs_agents.tools import CommandMode

    options = AgentOptions(
        model=ModelSettings(name=model, temperature=temperature, max_tokens=max_tokens),
        max_rounds=rounds,
        plan=plan,
        language=lang,
        commands=CommandMode(commands),
        keep_variables=frozenset(env or ()),
        context_tokens=context,
        patience=patience,
        policy=policy_of(rules),
    )
    serve(options, url, read_token(token_file))
