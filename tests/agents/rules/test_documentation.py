"""The rules that docs/rules.md shows, and the commands that explain them (A11)."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cfs_agents.main.cli import app
from tests.documentation import ROOT


def check(call: str, *arguments: str) -> tuple[int, str]:
    """Run `cfs agent rules check`; return its exit status and its output."""
    result = CliRunner().invoke(app, ["agent", "rules", "check", call, *arguments])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with the rules of the documentation, in an empty workspace."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    (tmp_path / "config/cfs").mkdir(parents=True)
    (tmp_path / "config/cfs/rules.toml").write_text(text.split("```toml\n")[1].split("```")[0])
    (tmp_path / "w").mkdir()
    monkeypatch.chdir(tmp_path / "w")
    return tmp_path


@pytest.mark.parametrize(
    ("call", "status", "output"),
    [
        ("execute_command(git status | ls)", 0, "allowed: the rule execute_command(ls:*) (rules.toml:4) allows it\n"),
        ("execute_command(git status | head -3)", 3, "asked: no rule allows head -3\n"),
        ("execute_command(head -3 x)", 3, "A pattern that would allow it: execute_command(head:*)\n"),
        ("execute_command(ls; rm x -r --force)", 4, "(rules.toml:11) denies it because of rm x -r --force"),
        ("write_file(src/main.py)", 0, "allowed: the default allows it\n"),
        ("write_file(deploy/x)", 3, "asked: the rule write_file(deploy/**) (rules.toml:8) asks\n"),
        ("mcp(memory/add)", 0, "allowed"),
        ("mcp(other/add)", 3, "asked"),
        ("nonsense", 2, "write the call as TOOL(ARGUMENT)"),
    ],
)
def test_check_says_which_rule_decides(call: str, status: int, output: str) -> None:
    """And its exit status is for scripts."""
    result = check(call)
    assert result[0] == status
    assert output in result[1]


def test_check_can_print_json_and_act_as_if_unattended() -> None:
    """With the reason that a model would read."""
    status, output = check("execute_command(cargo build)", "--json", "--unattended")
    values = json.loads(output)
    assert (status, values["verdict"]) == (4, "denied")
    assert "no person can be asked" in values["reason"]


def test_list_shows_the_rules_in_the_order_in_which_they_decide(user: Path) -> None:
    """With those of the workspace, whose `allow` is ignored with a warning."""
    (user / "w/.cfs").mkdir()
    (user / "w/.cfs/rules.toml").write_text("allow = ['*']\ndeny = ['execute_command(npm publish:*)']")
    result = CliRunner().invoke(app, ["agent", "rules", "list"])
    lines = result.stdout.splitlines()
    assert lines[0] == "deny   execute_command(git push:*)  (rules.toml:10)"
    assert "deny   execute_command(npm publish:*)  (.cfs/rules.toml:2)" in lines
    assert [line.split()[0] for line in lines] == ["deny"] * 5 + ["ask"] + ["allow"] * 5
    assert "`allow` is ignored" in result.stderr
