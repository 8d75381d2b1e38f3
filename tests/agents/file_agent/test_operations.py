"""The operation log: one JSON line for each operation, whatever is in it and whatever happens (A6)."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cfs.errors import InvalidRequest
from cfs_agents.base.events import Warned
from cfs_agents.main.testing import calls, raises, says
from cfs_agents.tree.operations import Operation, OperationLogger
from tests.agents.file_agent.support import agent, events_of, operations

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def operation(number: int = 1, outcome: str = "done", **params: object) -> Operation:
    return Operation(f"0.{number}", "write_file", params, outcome, success=True)


async def test_every_operation_is_a_line(tmp_path: Path) -> None:
    """Task, replies, calls with parameters and results, errors, and the end, in their order."""
    made, _ = agent(tmp_path, calls("write_file", path="a", content="b"), calls("read_file", path="c"), says("Done."))
    async with made:
        await made.run("Go.")
    records = operations(tmp_path)
    names = [record["operation"] for record in records]
    assert names == ["task", "model", "write_file", "model", "read_file", "model", "task_ended"]
    write, read = operations(tmp_path, "write_file", "read_file")
    assert write["params"] == {"path": "a", "content": "b"}
    assert write["result"] == "created /workspace/a: 1 lines, 1 bytes"
    assert (write["success"], read["success"]) == (True, False)
    assert read["error"].startswith("Error: there is no '/workspace/c'")
    assert "result" not in read
    times = [datetime.fromisoformat(record["timestamp"]) for record in records]
    assert times == sorted(times)
    assert len({record["id"] for record in records}) == len(records)


@pytest.mark.parametrize("text", ["a\nb\r\nc", "\u2028\u2029\x85\x0b\x0c", '"}\n{"', "漢字😀", "\ud800"])
def test_a_line_is_a_line_whatever_is_in_it(tmp_path: Path, text: str) -> None:
    """No text can end a line or forge another, however a reader splits lines."""
    OperationLogger(tmp_path).write(operation(outcome=text, content=text))
    (path,) = tmp_path.iterdir()
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["params"]["content"] == text


def test_long_values_are_shortened_inside_the_json(tmp_path: Path) -> None:
    """The line stays JSON, and of bounded length: long texts, long lists, deep nesting, many keys."""
    deep: object = "bottom"
    for _ in range(50):
        deep = {"deeper": deep}
    many = {f"key {number}": "y" * 1_999 for number in range(500)}
    OperationLogger(tmp_path).write(operation(outcome="x" * 1_000_000, items=list(range(10_000)), deep=deep, many=many))
    (path,) = tmp_path.iterdir()
    line = path.read_text()
    assert len(line) < 100_000
    assert "998,000 of 1,000,000 characters left out" in json.loads(line)["result"]


async def test_a_person_is_told_of_secrets_that_went_to_disk_without(tmp_path: Path) -> None:
    """The running turn has them, the file has not, and a warning says so once."""
    made, model = agent(
        tmp_path,
        calls("execute_command", command="seq 900; echo DB_PASSWORD=hunter2-hunter3"),
        calls("list_directory"),
        says("Seen."),
        offload_token_threshold=400,
    )
    async with made:
        events = await events_of(made, "Look.")
    (warned,) = [event.text for event in events if isinstance(event, Warned)]
    assert warned.startswith("secrets (1 × password) were taken out of")
    assert "hunter2-hunter3" in model.asked[1].last.content
    assert "hunter2-hunter3" not in "".join(map(str, model.asked[2].messages[-3:]))
    kept = [path for path in (tmp_path / "storage/offloaded").rglob("*") if path.is_file()]
    assert len(kept) == 3
    assert not any(b"hunter2-hunter3" in path.read_bytes() for path in kept)


async def test_secrets_do_not_reach_the_log(tmp_path: Path) -> None:
    """Neither those of a call nor those of a result, also where a long text is cut."""
    secret = "sk-" + "a1B2c3D4e5F6" * 4
    made, _ = agent(
        tmp_path,
        calls("write_file", path=".env", content=f"API_KEY={secret}\n"),
        calls("execute_command", command=f"export DB_PASSWORD=hunter2horse; seq 900; echo {secret}; cat .env"),
        says("Done."),
    )
    async with made:
        await made.run(f"My key is {secret}")
    text = "".join(log.read_text() for log in (tmp_path / "logs").iterdir())
    assert "redacted" in text
    assert secret not in text
    assert "hunter2horse" not in text
    assert f"API_KEY={secret}" in (tmp_path / "workspace/.env").read_text(), "the agent's own file has it"


@pytest.mark.parametrize("place", [990, 500_000, 999_600])
def test_no_part_of_a_secret_is_left_where_a_text_is_shortened(tmp_path: Path, place: int) -> None:
    """Wherever in a long result it stands: also when only its beginning, or its end, would be shown."""
    body = "\n".join("MIIEowIBAAKCAQEAq9" * 3 for _ in range(300))
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----\n"
    text = ("some words of a log\n" * 50_000)[: place - 200]
    text += (
        f"{key}{text}"[-1_000_000:] if place > 900_000 else f"DB_PASSWORD=hunter2-hunter3 {key}" + "words\n" * 100_000
    )
    OperationLogger(tmp_path).write(operation(outcome=text))
    (log,) = tmp_path.iterdir()
    assert "MIIEow" not in log.read_text()
    assert "hunter2" not in log.read_text()


@pytest.mark.parametrize("torn", [b'{"timestamp": "2026', b"{", b'{"id": "0.2"}'])
def test_a_torn_last_line_is_cut_off_at_the_start(tmp_path: Path, torn: bytes) -> None:
    """What a crash left in pieces goes, whole lines stay, and the next line begins a line."""
    path = tmp_path / "operations_20260102.jsonl"
    OperationLogger(tmp_path, lambda: NOW).write(operation(1))
    with path.open("ab") as file:
        file.write(torn)
    log = OperationLogger(tmp_path, lambda: NOW)
    assert "0.1" in log
    assert "0.2" not in log
    log.write(operation(3))
    assert [json.loads(line)["id"] for line in path.read_bytes().splitlines()] == ["0.1", "0.3"]


def test_a_log_that_is_all_torn_is_emptied(tmp_path: Path) -> None:
    """Also when the very first line was never completed."""
    path = tmp_path / "operations_20260102.jsonl"
    path.write_bytes(b'{"times')
    OperationLogger(tmp_path, lambda: NOW).write(operation(1))
    assert len(path.read_bytes().splitlines()) == 1


def test_each_day_has_its_file(tmp_path: Path) -> None:
    """So that old ones can be put away."""
    OperationLogger(tmp_path, lambda: NOW).write(operation(1))
    OperationLogger(tmp_path, lambda: NOW.replace(day=3)).write(operation(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "operations_20260102.jsonl",
        "operations_20260103.jsonl",
    ]


# -- agent.log ---------------------------------------------------------------------------------------------------------


def log_of(root: Path) -> str:
    """Read the agent's log."""
    return (root / "logs/agent.log").read_text()


async def test_a_defect_of_a_tool_leaves_a_traceback(tmp_path: Path) -> None:
    """The model reads a sentence; who looks for the cause finds where it happened."""

    def divide() -> float:
        """Divide."""
        return 1 / 0

    made, model = agent(tmp_path, calls("divide"), says("It cannot be done."), tools=[divide])
    async with made:
        await made.run("Divide.")
    assert model.asked[1].last.content == "Error: ZeroDivisionError: division by zero"
    assert "INFO main: a task begins" in log_of(tmp_path)
    assert "ERROR main: the tool divide failed\nTraceback (most recent call last):" in log_of(tmp_path)
    assert "return 1 / 0" in log_of(tmp_path)
    assert (tmp_path / "logs/agent.log").stat().st_mode & 0o777 == 0o600


async def test_a_failed_task_leaves_a_traceback_without_secrets(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, raises(InvalidRequest("refused: password=hunter2")))
    async with made:
        await made.run("Work.")
    assert "the task ended as failed: refused" in log_of(tmp_path)
    assert "cfs.errors.InvalidRequest" in log_of(tmp_path)
    assert "hunter2" not in log_of(tmp_path)


async def test_reasons_for_the_model_are_no_defects(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, calls("read_file", path="missing"), says("There is none."))
    async with made:
        await made.run("Read.")
    assert "Traceback" not in log_of(tmp_path)
    assert "the task ended as answered" in log_of(tmp_path)
