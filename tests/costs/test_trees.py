"""A tree of agents with a budget in money ends within it, also if its runtime is killed (B7, B8, H10)."""

import json
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cfs.contract.money import money
from tests.client.terminal import Running, cfs, ended
from tests.costs.support import Priced, priced_server
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import Speech

CHILDREN = [f"child{number}" for number in range(7)]
PRICE = "5, 5, 20 USD"


def call(name: str, **arguments: object) -> tuple[str, tuple[str, ...]]:
    """A call as the upstream sends it."""
    return name, (json.dumps(arguments),)


class Spendthrifts(OpenAIStub):
    """A root that starts seven children and waits for them; they write files until their budget is used up."""

    def events(self, speech: Speech, words: Iterable[str], prompt: int, most: int) -> Iterator[str]:
        """Play the next line of the agent that asks, as the conversation so far says."""
        body = self.bodies[-1]
        said = sum(message["role"] == "assistant" for message in body["messages"])
        tools = {tool["function"]["name"] for tool in body.get("tools", ())}
        return super().events(replace(speech, calls=_line(said, tools)), words, prompt, most)


def _line(said: int, tools: set[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if "sys_finish_task" in tools:
        return (call("write_file", path=f"{said}.txt", content=f"line {said}"),)
    if said == 0:
        about = {"role_description": "r", "system_instruction": "i", "task_goal": "write"}
        return tuple(call("sys_spawn_agent", agent_name=name, max_turns=1000, **about) for name in CHILDREN)
    return (call("sys_wait_agent", agent_id=CHILDREN[(said - 1) % len(CHILDREN)]),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Priced]:
    """A server with a priced model that never ends its task."""
    with priced_server(tmp_path_factory.mktemp("trees"), stub=Spendthrifts(), price=PRICE) as found:
        yield found


def serve(server: Priced, root: Path, budget: str, *more: str) -> Running:
    """Start an agent with a budget."""
    return Running(server.process.url, "agent", "serve", "--root", str(root), "--budget", budget, *more)


def spent(server: Priced) -> float:
    """What the server has counted, for all principals and sessions."""
    return float(sum(row["cost"] for row in server.costs()))


def tree(server: Priced, session: str) -> dict[str, Any]:
    """The tree of a session, as `cfs agent tree` shows it."""
    found: dict[str, Any] = json.loads(ended(cfs(server.process.url, "agent", "tree", session, "--json"))[1])
    return found


def final_replies(server: Priced, session: str) -> list[str]:
    """The replies of a session that are not calls, when it is idle."""
    found: dict[str, Any] = {}
    while found.get("state") != "idle":  # the test's time-out is the limit
        found = server.client.get(f"/v1/sessions/{session}", params={"wait": 20}).raise_for_status().json()
    return [each["content"] for each in found["history"] if each["role"] == "assistant" and not each.get("tool_calls")]


@pytest.mark.timeout(300)
def test_a_tree_of_eight_that_is_killed_twice_ends_within_its_budget_and_replies_once(
    server: Priced, tmp_path: Path
) -> None:
    server.client.post("/v1/sessions", json={"id": "main", "settings": {"driver": "agent"}}).raise_for_status()
    server.client.post("/v1/sessions/main/messages", content=b"write").raise_for_status()
    for more in (15, 5):  # of about 30: what a kill interrupts counts as reserved
        requests = len(server.stub.bodies) + more
        with serve(server, tmp_path, "$0.50") as running:
            while len(server.stub.bodies) < requests:
                time.sleep(0.02)
            running.process.send_signal(signal.SIGKILL)
    with serve(server, tmp_path, "$0.50"):
        (reply,) = final_replies(server, "main")
        server.client.get("/v1/sessions/main/wait", params={"timeout": 60})
    assert "[Error: the budget of the task is used up: $0." in reply
    assert "of $0.50 are spent" in reply
    assert 0.1 < spent(server) <= 0.5, "requests that a kill has interrupted count as reserved"
    found = tree(server, "main")
    assert len(found["children"]) == len(CHILDREN)
    budget = found["work"]["budget"]
    assert budget["limit"] == "$0.50"
    assert spent(server) <= budget["cost"] <= 0.5, "it counts as much as the server, or more"
    shown = ended(cfs(server.process.url, "agent", "tree", "main"))[1]
    assert f"budget: {money(budget['cost'])} of $0.50 spent, {money(round(0.5 - budget['cost'], 9))} left" in shown
    assert re.search(r"^main +budget ", shown), "how it ended"
    assert 0 < sum(agent["cost"] for agent in (found, *found["children"])) <= spent(server) + 1e-6


@pytest.mark.parametrize(
    ("model", "reason"), [("free", "this one has no price"), ("foreign", "this one has a price in EUR")]
)
def test_a_budget_that_cannot_be_kept_is_refused_at_the_start(
    server: Priced, tmp_path: Path, model: str, reason: str
) -> None:
    with serve(server, tmp_path, "$0.50", "--session", f"with-{model}", "--model", model) as running:
        code, _, errors = running.end()
    assert code != 0
    assert f"a budget of $0.50 needs a model with a price in USD, and {reason}" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("budget", ["$", "five", "-1", "€1", "0.50"])
def test_a_budget_that_is_none_is_refused(server: Priced, tmp_path: Path, budget: str) -> None:
    with serve(server, tmp_path, budget) as running:
        code, _, errors = running.end()
    assert code == 2
    assert "is no budget: give a number of tokens, or dollars such as '$0.50'" in " ".join(errors.split())
