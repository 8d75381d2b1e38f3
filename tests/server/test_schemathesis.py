"""The OpenAPI document says what the server does, and the server does what it says (H5): schemathesis holds them
against one another, with every check that it has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.support import environment, serving

CONFIG = """
# A request can be valid in itself and still name a version that is not the present one, or outlast its wait. That is a
# 504 where it is documented, as another check sees to; the waits here are short, and the machine may be busy.
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "403", "404", "409", "412", "428", "504"]
[checks.missing_required_header]
expected-statuses = ["428"]
[checks.negative_data_rejection]
expected-statuses = ["400", "404", "405", "406", "409", "412", "413", "415", "422", "428"]
# The members of a completion or a message can be valid each by itself and still contradict one another: a tool that
# must be called and is not among the tools. A schema cannot say that.
[[operations]]
include-path-regex = "/v1/(chat/)?completions"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "409"]
[[operations]]
include-path-regex = "/v1/(responses|conversations)"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "404", "409"]
[[operations]]
include-path = "/v1/messages"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "409"]
[[operations]]
include-path = "/v1/messages/count_tokens"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400"]
[[operations]]
include-path-regex = "/api/(chat|generate)"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "409"]
# The server of this test has no model for embeddings.
[[operations]]
include-path-regex = "/(v1|api)/(embeddings|embed)"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "501"]
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]
# A session begins with messages or with a transcript, not with both.
[[operations]]
include-path = "/v1/sessions"
checks.positive_data_acceptance.expected-statuses = ["2xx", "403", "404", "409", "422", "504"]
# The number of a version belongs to one workspace, which the prefix must name.
[[operations]]
include-path = "/v1/files"
checks.positive_data_acceptance.expected-statuses = ["2xx", "304", "404", "422"]
[[operations]]
include-path = "/v1/sessions/{id}/messages"
checks.positive_data_acceptance.expected-statuses = ["2xx", "403", "409", "412", "422", "504"]
"""

_FEW = "--suppress-health-check=filter_too_much"  # the paths of files are hard to guess


def explore(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis against a server whose streams and waits end soon."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    program = Path(sys.executable).with_name("schemathesis")
    flags = ("--engine", "scripted", "--stream-seconds", "0.05", "--max-wait", "0.05", "--log-level", "warning")
    with serving(*flags) as process:
        found = subprocess.run(
            [program, f"--config-file={config}", "run", f"{process.url}/openapi.json", "--checks=all", _FEW, *options],
            cwd=tmp_path,
            env=environment(PYTHONWARNINGS="ignore", COLUMNS="200", PATH=os.environ["PATH"]),
            capture_output=True,
            text=True,
            check=False,
        )
        process.signal()
        code, errors = process.ended()
    assert code == 0
    assert "request.defect" not in errors
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_exploration_finds_no_contradiction(tmp_path: Path) -> None:
    found = explore(tmp_path, "--max-examples=1", "--seed=1", "--generation-deterministic", "--phases=examples,fuzzing")
    assert found.returncode == 0, found.stdout[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_long_exploration_finds_none_either(tmp_path: Path, seed: int) -> None:
    found = explore(tmp_path, "--max-examples=100", f"--seed={seed}", "--phases=examples,coverage,fuzzing,stateful")
    assert found.returncode == 0, found.stdout[-6000:]
