"""What the tests of tools share: a shell of each kind."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cfs_agents.shell import ShellSettings
from tests.agents.tools.shells import KINDS, AnyShell


@pytest.fixture
def settings(tmp_path: Path) -> ShellSettings:
    """A shell that starts in an empty directory; a busy machine has the time to answer Ctrl-C."""
    return ShellSettings(directory=tmp_path / "workspace", timeout=60, grace=10.0)


@pytest.fixture
def hasty(settings: ShellSettings) -> ShellSettings:
    """The same for commands that ignore Ctrl-C: they are killed soon."""
    return replace(settings, grace=2.0)


@pytest.fixture(params=KINDS)
def shell(request: pytest.FixtureRequest, settings: ShellSettings) -> Iterator[AnyShell]:
    """The blocking shell and the asynchronous one: both must do the same."""
    made = KINDS[request.param](settings)
    yield made
    made.close()
