"""The `cfs agent rules` commands: which rules there are, and which one decides a call (A11)."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from cfs.cli.base.groups import CommandGroup
from cfs.cli.base.options import Json
from cfs.cli.base.output import note, show

rules = CommandGroup("Rules about what agents may do.")

RuleFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--rules",
        metavar="FILE",
        help="File of rules, instead of ~/.config/cfs/rules.toml. Can be given several times.",
    ),
]
_Workspace = Annotated[
    Path, typer.Option("--workspace", metavar="DIR", help="The agent's workspace, whose .cfs/rules.toml can restrict.")
]
_CALL = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\((.*)\)\s*", re.DOTALL)


@rules.command()
def check(
    call: Annotated[
        str,
        typer.Argument(
            help="The call, such as 'execute_command(git push)', 'write_file(src/a.py)', 'mcp(server/tool)'."
        ),
    ],
    files: RuleFiles = None,
    workspace: _Workspace = Path(),
    unattended: Annotated[bool, typer.Option("--unattended", help="As if no person could be asked.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether a call would be allowed, asked or denied, and why. Nothing is run.

    The exit status is 0 if it is allowed, 3 if it is asked and 4 if it is denied.
    """
    from cfs_agents.guards.rules import Defaults, GatedCall, Remembered, Scope, Verdict, load_rules

    form = _CALL.fullmatch(call)
    if form is None:
        raise typer.BadParameter("write the call as TOOL(ARGUMENT), such as 'execute_command(git status)'")
    workspace = workspace.absolute()
    loaded = load_rules(workspace, files)
    _warn(loaded.warnings)
    answers = Remembered().answers(workspace)
    decision = loaded.decide(GatedCall(form[1], form[2]), Scope(workspace), Defaults(attended=not unattended), answers)
    if as_json:
        values = {
            "verdict": decision.verdict,
            "rule": decision.rule,
            "source": decision.source,
            "reason": decision.reason,
            "patterns": list(decision.patterns),
        }
        show(json.dumps(values) + "\n")
    else:
        show(f"{decision.verdict}: {decision.reason}\n")
        if decision.patterns:
            patterns = "A pattern that would" if len(decision.patterns) == 1 else "Patterns that would together"
            show(f"{patterns} allow it: {', '.join(decision.patterns)}\n")
    raise typer.Exit({Verdict.ALLOWED: 0, Verdict.ASKED: 3, Verdict.DENIED: 4}[decision.verdict])


@rules.command(name="list")
def list_rules(files: RuleFiles = None, workspace: _Workspace = Path(), as_json: Json = False) -> None:
    """List the rules in the order in which they decide: deny, ask, allow, and what you have always allowed."""
    from cfs_agents.guards.rules import Remembered, load_rules

    workspace = workspace.absolute()
    loaded = load_rules(workspace, files)
    _warn(loaded.warnings)
    answers = Remembered().answers(workspace)
    rows = [
        (name, rule.pattern.text, rule.source)
        for name, group in (("deny", loaded.deny), ("ask", loaded.ask), ("allow", loaded.allow + answers.patterns))
        for rule in group
    ]
    if as_json:
        values = [{"list": name, "pattern": pattern, "source": source} for name, pattern, source in rows]
        show(json.dumps({"rules": values, "exact_calls": len(answers.digests)}) + "\n")
        return
    for name, pattern, source in rows:
        show(f"{name:<6} {pattern}  ({source})\n")
    if answers.digests:
        show(f"allow  {len(answers.digests)} exact calls  (remembered)\n")
    if not rows and not answers.digests:
        show("no rules: file tools run in the workspace, commands and MCP calls are asked about\n")


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        note(f"warning: {warning}")
