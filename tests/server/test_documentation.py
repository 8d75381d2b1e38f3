"""What is generated from the code is up to date, and the code's own table is complete (P3)."""

import subprocess
from pathlib import Path

import pytest

from cfs_server.config.settings import ServerSettings, flag_of
from tests.server.support import run_cfs

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow  # `scripts/check` does the same, and `scripts/test` begins with it
def test_the_generated_pages_are_up_to_date() -> None:
    checked = subprocess.run([ROOT / "scripts/docs", "--check"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", ServerSettings.model_fields)
def test_every_setting_is_described(name: str) -> None:
    assert (ServerSettings.model_fields[name].description or "").endswith(".")


def test_every_setting_has_a_flag() -> None:
    shown = run_cfs("serve", "--help", COLUMNS="200", TERM="dumb").stdout
    assert [name for name in ServerSettings.model_fields if flag_of(name) not in shown] == []


def test_the_program_says_its_version_and_refuses_what_it_does_not_know() -> None:
    assert run_cfs("--version").stdout.startswith("cfs ")
    unknown = run_cfs("frobnicate")
    assert (unknown.returncode, "frobnicate" in unknown.stderr) == (2, True)
