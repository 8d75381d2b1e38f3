"""Rules about commands: what hides a denied one, and what is harmless (A11)."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import tree_sitter_bash
from hypothesis import given
from hypothesis import strategies as st
from tree_sitter import Language, Parser

from cfs_agents.guards.rules import Decision, Defaults, GatedCall, Rules, Scope, Verdict
from cfs_agents.guards.rules.rules_file import parse_rules
from cfs_agents.guards.rules.words import plain_words, word_of
from tests.agents.rules.variants import HARMLESS, PROVABLE, THROUGH_PROGRAMS, USUAL_ALLOWED, USUAL_RULES

DENIES = parse_rules(
    f"allow = {[f'execute_command({name}:*)' for name in USUAL_ALLOWED.split()]}\ndeny = ['execute_command(victim:*)']",
    Path("rules.toml"),
)
ANY = parse_rules("allow = ['execute_command(*)']\ndeny = ['execute_command(victim:*)']", Path("rules.toml"))
USUAL = parse_rules(f"allow = {USUAL_RULES}\ndeny = ['execute_command(git push:*)']", Path("rules.toml"))


PROGRAMS = {"ed", "gdb", "git", "make", "node", "perl", "python3", "rsync", "scp", "sqlite3", "ssh", "tar", "vim"}


def runs_victim(command: str, folder: Path) -> bool:
    """Return whether bash runs `victim`, which only notes that it ran, in a script."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        home = Path(name)
        programs, workspace, record = home / "bin", home / "workspace", home / "record"
        programs.mkdir()
        workspace.mkdir()
        for program, text in {"victim": f"echo ran >> '{record}'", "sudo": "exit 1"}.items():
            (programs / program).write_text(f"#!/bin/sh\n{text}\n")
            (programs / program).chmod(0o700)
        subprocess.run(
            ["bash", "-c", command],
            cwd=workspace,
            env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)},
            input=b"",
            capture_output=True,
            timeout=60,
            check=False,
        )
        return record.exists()


def decide(command: str, rules: Rules, workspace: Path, defaults: Defaults | None = None) -> Decision:
    """Decide about a command in a workspace."""
    return rules.decide(GatedCall("execute_command", command, {"command": command}), Scope(workspace), defaults)


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


@pytest.mark.parametrize("command", THROUGH_PROGRAMS)
def test_a_denied_command_does_not_run_through_another_program(command: str, tmp_path: Path) -> None:
    """Not even under a rule that allows every command, because none names what runs."""
    for rules in (DENIES, ANY):
        assert decide(command, rules, tmp_path).verdict is not Verdict.ALLOWED
    assert decide(command, DENIES, tmp_path, Defaults(commands=Verdict.ALLOWED)).verdict is not Verdict.ALLOWED


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("python -c 'print(1)'", "python -c:*"),
        ("echo x > a.py; python a.py", "python a.py"),
        ("echo x > a.sh; sh a.sh --fast", "sh a.sh:*"),
        ("echo x > build.conf; npm run build", "npm run build"),
        ("tar cIf pigz x.tar a", "tar cIf -I pigz:*"),
        ("git mine", "git mine"),
    ],
)
def test_a_rule_that_names_what_runs_allows_it(command: str, rule: str, tmp_path: Path) -> None:
    """And a wider one does not."""
    program = rule.split()[0]
    text = "allow = ['execute_command(cat:*)', 'execute_command(echo:*)', 'execute_command({})']"
    named, wide = (parse_rules(text.format(words), Path("r")) for words in (rule, f"{program}:*"))
    assert decide(command, wide, tmp_path).verdict is Verdict.ASKED
    if program != "tar":  # a letter of a cluster cannot be named
        assert decide(command, named, tmp_path).verdict is Verdict.ALLOWED


@pytest.mark.parametrize(
    "command",
    [
        "python --version",
        "curl -sS https://example.com/x | head",
        "tar xzf a.tar.gz -C out",
        "git config --list && git config user.name 'A B'",
        "git clone https://example.com/a/b && git fetch --all",
        "git clean -fdx && git lfs pull",
        "git checkout -b x && git rebase main",
        "sqlite3 a.db 'select * from t'",
        "make -j8 test",
        "echo done > out.txt && npm test",
        "perl script.pl < in.txt > out.txt",
        "sort -u a.txt | uniq > b.txt",
        "ssh -p 22 host ls",
        "rsync -av a/ b/",
        "python use.py < data.json > out.json",
    ],
)
def test_usual_commands_of_these_programs_are_not_asked(command: str, tmp_path: Path) -> None:
    """Neither where a rule allows every command, nor where commands need no question and one is denied."""
    assert decide(command, ANY, tmp_path).verdict is Verdict.ALLOWED
    unasked = parse_rules("deny = ['execute_command(victim:*)']", Path("r"))
    assert decide(command, unasked, tmp_path, Defaults(commands=Verdict.ALLOWED)).verdict is Verdict.ALLOWED


@pytest.mark.timeout(300)
def test_the_variants_run_what_they_hide(tmp_path: Path) -> None:
    """Real bash runs the recording program in each of them, so none is a straw man."""
    idle = [command for command in PROVABLE if not runs_victim(command, tmp_path)]
    assert idle == ["command -p -- victim x"]  # -p looks in the system's folders, where a test puts nothing


@pytest.mark.timeout(300)
def test_the_variants_run_through_programs(tmp_path: Path) -> None:
    """As far as the programs are installed here."""
    commands = [command for command in THROUGH_PROGRAMS if all(map(shutil.which, PROGRAMS & set(command.split())))]
    assert len(commands) >= len(THROUGH_PROGRAMS) // 2
    assert [command for command in commands if not runs_victim(command, tmp_path)] == []


PARTS = [
    *(
        "ls",
        "-la",
        "a/b.py",
        "--x",
        "3",
        "%s",
        "a:b",
        "'a b'",
        "''",
        "'$x `y`'",
        '"a b"',
        '""',
        '"$f"',
        "$f",
        '"a $f b"',
    ),
    *("x@y", "+x", "$f$g", "~", "*.py", "{a,b}", "a'b'", "a=b", "$1", "$?", '"!x"', '"a\\b"', "a;b", "#c"),
]


@given(
    st.lists(
        st.sampled_from(PARTS),
        min_size=1,
        max_size=6,
    )
)
def test_plain_commands_are_read_as_the_grammar_reads_them(parts: list[str]) -> None:
    """The short way, without nodes, gives the same words."""
    text = " ".join(parts)
    words = plain_words(text)
    if words is None:
        return
    root = Parser(Language(tree_sitter_bash.language())).parse(text.encode()).root_node
    if root.child_count == 1 and root.children[0].type == "command":  # another form is judged by its own nodes
        assert words == tuple(map(word_of, root.children[0].children))


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
        f"docker run {'-e A=b ' * 40}sh -c 'npx git push'",
        "ssh -vo ProxyCommand='git push' host",
        "psql -c 'select 1' '--command=\\! git push'",
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
        "ls > .git/hooks/pre-commit",
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
        f"make {'x ' * 101}",
        "echo 'print(1)' | python script.py; echo 'print(1)' | python -v",
        "sub/tool; echo x > sub/tool",
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
