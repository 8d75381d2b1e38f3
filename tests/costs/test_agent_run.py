"""An agent with a budget for its task ends within it, also if it is killed, and goes on with a larger one (B7, H10)."""

import json
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.terminal import Running
from tests.costs.support import Priced, priced_server
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import Speech


class Writer(OpenAIStub):
    """A model that writes one file after the other and never answers."""

    def events(self, speech: Speech, words: Iterable[str], prompt: int, most: int) -> Iterator[str]:
        """Write the next file."""
        replies = sum(message["role"] == "assistant" for message in self.bodies[-1]["messages"])
        arguments = json.dumps({"path": f"{replies}.txt", "content": f"line {replies}"})
        return super().events(replace(speech, calls=(("write_file", (arguments,)),)), words, prompt, most)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Priced]:
    """A server with a priced model that never ends its task."""
    with priced_server(tmp_path, stub=Writer(), price="5, 5, 20 USD") as found:
        yield found


def run(server: Priced, root: Path, *arguments: str) -> Running:
    """Start the agent."""
    return Running(server.process.url, "agent", "run", *arguments, "--root", str(root))


def failure(running: Running) -> str:
    """Wait for its end, which is a failure; return its output and its errors on one line."""
    code, output, errors = running.end()
    assert code == 1, errors
    assert "Traceback" not in errors
    return " ".join((output + errors).split())


def spent(server: Priced) -> float:
    """What the server has counted."""
    return float(sum(row["cost"] for row in server.costs()))


def test_a_killed_agent_stays_within_its_budget_in_money(server: Priced, tmp_path: Path) -> None:
    root = tmp_path / "agent"
    with run(server, root, "write", "--budget", "$0.10") as running:
        while len(server.stub.bodies) < 2:
            time.sleep(0.02)
        running.process.send_signal(signal.SIGKILL)
    with run(server, root, "--resume", "--budget", "$0.10") as running:
        errors = failure(running)
    assert "the budget of the task is used up: $0.0" in errors
    assert "of $0.10 are spent" in errors
    assert "resume the task with a larger budget to continue" in errors
    first = spent(server)
    assert 0.02 < first <= 0.1
    assert json.loads((root / "budget.json").read_text())["cost"] >= first - 1e-6

    with run(server, root, "--resume", "--budget", "$0.15") as running:
        assert "of $0.15 are spent" in failure(running)
    second = spent(server)
    assert first < second <= 0.15, "a resumed task goes on with what it has used"
    with run(server, root, "write more", "--budget", "$0.10") as running:
        assert "of $0.10 are spent" in failure(running)
    assert spent(server) > second, "another task has a budget of its own"


def test_an_agent_stays_within_its_budget_in_tokens(server: Priced, tmp_path: Path) -> None:
    with run(server, tmp_path / "agent", "write", "--budget", "6000") as running:
        errors = failure(running)
    assert "the token budget of agent is used up: " in errors
    used = json.loads((tmp_path / "agent" / "budget.json").read_text())["tokens"]
    assert f"{used} of 6000" in errors
    assert 0 < used <= 6000 + 3000, "one reply more at most"
    (row,) = server.costs()
    assert row["prompt_tokens"] + row["completion_tokens"] == used


def test_a_damaged_file_of_what_was_used_is_kept_aside(server: Priced, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "agent", tmp_path / "elsewhere"
    file = root / "budget.json"
    with run(server, root, "write", "--budget", "$0.05") as running:
        failure(running)
    file.write_text("{")
    with run(server, root, "--resume", "--budget", "$0.05") as running:
        errors = failure(running)
    assert "cannot be read: the budget of the task begins anew; the damaged file is kept as" in errors
    assert "of $0.05 are spent" in errors
    elsewhere.write_text("mine")
    file.unlink()
    file.symlink_to(elsewhere)
    with run(server, root, "--resume", "--budget", "$0.05") as running:
        assert "budget.json" in failure(running)
    assert elsewhere.read_text() == "mine"
    assert not file.is_symlink()


def test_a_budget_in_money_needs_a_price(server: Priced, tmp_path: Path) -> None:
    with run(server, tmp_path / "agent", "write", "--model", "free", "--budget", "$0.50") as running:
        assert "a budget of $0.50 needs a model with a price in USD, and this one has no price" in failure(running)
    with run(server, tmp_path / "agent", "write", "--budget", "five") as running:
        code, _, errors = running.end()
    assert code == 2
    assert "is no budget: give a number of tokens, or dollars such as '$0.50'" in " ".join(errors.split())
