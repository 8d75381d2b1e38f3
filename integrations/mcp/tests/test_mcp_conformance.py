"""The scenarios for servers of the protocol's conformance suite, against `cfs mcp --http`."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import MCP_CONFORMANCE

PASSED = {
    *("completion-complete", "dns-rebinding-protection", "ping", "prompts-list", "resources-list", "server-initialize"),
    *("server-sse-multiple-streams", "tools-list"),
}
FIXTURE = re.compile(
    r"there is no (?:tool|prompt) 'test_\w+'|'test://[\w/-]+' is not the URI of a resource"
    r"|Tool 'json_schema_2020_12_tool' not found"
)
"""The scenario calls a tool, a prompt or a resource that the suite's own example server has."""

NO_LOGGING = {"logging-set-level", "tools-call-with-logging"}
NO_RESUMPTION = {"server-sse-polling"}
_SCENARIO = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT.*")


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.server
@pytest.mark.timeout(300)
def test_each_scenario_passes_or_fails_for_a_reason_that_the_documentation_gives(http_url: str, tmp_path: Path) -> None:
    """All 32: eight pass, and what the others miss is no part of this server."""
    MCP_CONFORMANCE.install()
    programs = str(MCP_CONFORMANCE.executables)
    subprocess.run(
        [f"{programs}/conformance", "server", "--url", http_url, "--suite", "all", "--output-dir", str(tmp_path)],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        timeout=240,
        check=False,  # 1 if a scenario fails
    )
    results: dict[str, list[tuple[str, str]]] = {}
    for file in tmp_path.glob("*/checks.json"):
        match = _SCENARIO.fullmatch(file.parent.name)
        assert match is not None
        checks = json.loads(file.read_text())
        results[match[1]] = [(check["status"], check.get("errorMessage") or "") for check in checks]
    assert len(results) == 32
    assert {name for name, checks in results.items() if {status for status, _ in checks} == {"SUCCESS"}} == PASSED
    for name in results.keys() - PASSED:
        ((status, message),) = [check for check in results[name] if check[0] not in ("INFO", "SUCCESS")][:1]
        if name in NO_LOGGING:
            assert (status, message) == ("FAILURE", "Failed: MCP error -32601: Method not found"), name
        elif name in NO_RESUMPTION:
            assert (status, "recommended for resumability" in message) == ("WARNING", True), name
        else:
            assert (status, FIXTURE.search(message) is not None) == ("FAILURE", True), (name, message)
