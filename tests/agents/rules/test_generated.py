"""Generated scripts that hide a denied command: none that bash would run it in is allowed (A11)."""

import shutil
from pathlib import Path

import pytest

from cfs_agents.guards.rules import Defaults, Verdict
from tests.agents.rules.generated import scripts
from tests.agents.rules.test_commands import ANY, DENIES, decide, runs_victim


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(4))
def test_no_generated_script_runs_a_denied_command_unasked(seed: int, tmp_path: Path) -> None:
    """Under generous rules, under one that allows all, and where commands need no question."""
    unasked = Defaults(commands=Verdict.ALLOWED)
    allowed = {
        script
        for script in scripts(seed, 500, shutil.which)
        for rules, defaults in ((DENIES, None), (ANY, None), (DENIES, unasked))
        if decide(script, rules, tmp_path, defaults).verdict is Verdict.ALLOWED
    }
    assert [script for script in sorted(allowed) if runs_victim(script, tmp_path)] == []


@pytest.mark.timeout(300)
def test_most_generated_scripts_run_what_they_hide(tmp_path: Path) -> None:
    """Some do not: a layer breaks what the one below needs."""
    sample = scripts(99, 40, shutil.which)
    ran = [script for script in sample if runs_victim(script, tmp_path)]
    assert len(ran) >= len(sample) * 3 // 5
