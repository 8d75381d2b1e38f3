"""`cfs token`, run as people and scripts run it (G9, C10)."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import typer

from cfs.cli.app import GROUP, build
from cfs_server.access.tokens import Token, digest, load
from tests.access.support import granted, make
from tests.server.support import run_cfs


def token(file: Path, *arguments: str) -> CompletedProcess[str]:
    """Run `cfs token` with a file."""
    return run_cfs("token", *arguments, "--tokens", str(file))


def refusal(ended: CompletedProcess[str]) -> str:
    """The one line that says what was wrong."""
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("cfs: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr


def created(file: Path, *arguments: str) -> Token:
    """Make a token named `x`; return what the file holds of it."""
    ended = token(file, "create", "x", *arguments)
    assert ended.returncode == 0, ended.stderr
    return load(file)["x"]


def test_the_secret_stands_alone_on_stdout_so_that_it_can_go_into_a_variable(file: Path) -> None:
    ended = token(file, "create", "alice", "--grant", "/")
    secret = ended.stdout.removesuffix("\n")
    assert ended.returncode == 0
    assert load(file)["alice"].hash == digest(secret)
    assert secret not in ended.stderr
    assert str(file) in ended.stderr, "what comes next is said to the person"


def test_out_writes_the_secret_to_a_new_file_of_the_owner(file: Path) -> None:
    """The same command, typed again, leaves the token where it is; `>` would empty the file first."""
    out = file.with_name("x.token")
    ended = token(file, "create", "x", "--grant", "/", "--out", str(out))
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert (out.stat().st_mode & 0o777, digest(out.read_text().strip())) == (0o600, load(file)["x"].hash)
    before = out.read_text()
    assert f"{out} exists" in refusal(token(file, "create", "y", "--grant", "/", "--out", str(out)))
    assert (out.read_text(), list(load(file))) == (before, ["x"])
    other = file.with_name("y.token")
    assert "revoke it first" in refusal(token(file, "create", "x", "--grant", "/", "--out", str(other)))
    assert not other.exists()
    assert "give --out another name" in refusal(token(file, "create", "y", "--grant", "/", "--out", str(file / "y")))


def test_grants_are_a_prefix_with_operations_behind_it(file: Path) -> None:
    made = created(
        file,
        *("--grant", "/sessions/alice"),
        *("--grant", "/workspaces/=ro"),
        *("--grant", "/sessions/a=b=all"),
        *("--grant", "/sessions/bob=list, file"),
    )
    assert made.grants == (
        granted("/sessions/alice"),
        granted("/workspaces/=list,file,read"),
        granted("/sessions/a=b=list,file,read,write,delete"),
        granted("/sessions/bob=list,file"),
    )


def test_all_that_can_be_said_of_a_token_can_be_said_to_the_command(file: Path) -> None:
    limits = ["--sessions", "3", "--bytes", "1000", "--streams", "0", "--requests", "0.5"]
    limits += ["--daily-tokens", "7", "--daily-cost", "0.25"]
    made = created(file, "--grant", "/", "--expires", "2031-02-03T04:05:06+02:00", *limits)
    assert made.limits.model_dump() == {
        "sessions": 3,
        "bytes": 1000,
        "streams": 0,
        "requests": 0.5,
        "daily_tokens": 7,
        "daily_cost": 0.25,
    }
    assert made.expires == datetime(2031, 2, 3, 2, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
        ("1y", timedelta(days=365)),
    ],
)
def test_a_time_span_counts_from_now(file: Path, text: str, span: timedelta) -> None:
    began = datetime.now(UTC).replace(microsecond=0)
    expires = created(file, "--grant", "/", "--expires", text).expires
    assert expires is not None
    assert began + span <= expires <= datetime.now(UTC) + span


def test_a_date_is_its_beginning_in_utc(file: Path) -> None:
    assert created(file, "--grant", "/", "--expires", "2031-02-03").expires == datetime(2031, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grant", "/", "--expires", "soon"], "'soon' is no time"),
        (["--grant", "/", "--expires", "30"], "'30' is no time"),
        (["--grant", "/", "--expires", "999999y"], "'999999y' is no time"),
        (["--grant", "/", "--expires", "0d"], "'0d' is over"),
        (["--grant", "/", "--expires", "2020-01-01"], "'2020-01-01' is over"),
        (["--grant", "sessions"], "prefix: 'sessions'"),
        (["--grant", ""], "prefix: "),
        (["--grant", "/Sessions/A"], "prefix: '/Sessions/A' is neither '/' nor within /sessions/ or /workspaces/"),
        (["--grant", "/=rw"], "ops: there is no operation 'rw'; there are list, file, read,"),
        (["--grant", "/="], "ops: there is no operation ''"),
        (["--grant", "/sessions/a=b"], "ops: there is no operation 'b'"),
        (["--grant", "/=list,,file"], "ops: there is no operation ''"),
        (["--grant", "/", "--requests", "0"], "requests"),
        (["--grant", "/", "--requests", "nan"], "requests"),
    ],
)
def test_what_makes_no_token_is_told_in_one_line(file: Path, arguments: list[str], said: str) -> None:
    assert said in refusal(token(file, "create", "x", *arguments))
    assert not file.exists()


def test_usage_errors_have_the_same_exit_code(file: Path) -> None:
    for arguments in (["create", "x"], ["create", "--grant", "/"], ["create", "x", "--grant", "/", "--bytes", "-1"]):
        ended = token(file, *arguments)
        assert (ended.returncode, ended.stdout, "Usage" in ended.stderr) == (2, "", True)
    ended = run_cfs("token", "list")
    assert (ended.returncode, "--tokens" in ended.stderr, "CFS_TOKENS" in ended.stderr) == (2, True, True)


def test_errors_of_the_file_are_one_line(file: Path) -> None:
    for command in (["list"], ["revoke", "x"]):
        assert "there is no such file" in refusal(token(file, *command))
    make(file, "x", "/")
    assert "there is a token 'x' already" in refusal(token(file, "create", "x", "--grant", "/"))
    assert "there is no token 'y'" in refusal(token(file, "revoke", "y"))
    assert "letters, digits" in refusal(token(file, "create", "a b", "--grant", "/"))
    file.write_text("[tokens")
    for command in (["list"], ["revoke", "x"], ["create", "y", "--grant", "/"]):
        assert "no TOML" in refusal(token(file, *command))


def test_the_list_is_for_people_and_with_json_for_programs(file: Path) -> None:
    secret = make(file, "alice", "/sessions/alice", "/workspaces/alice/=list,file,read", sessions=3)
    make(file, "bob", "/=list")
    with file.open("a") as out:
        out.write('[tokens.carol]\nexpires = 2020-01-02T01:00:00+02:00\nhash = "sha256:' + "0" * 64 + '"\n')
    listed = token(file, "list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [line.split("  ") for line in listed.stdout.splitlines()] == [
        ["alice", "for ever", "/sessions/alice=all", "/workspaces/alice/=ro"],
        ["bob", "for ever", "/=list"],
        ["carol", "expired 2020-01-01 23:00Z"],
    ]
    for_programs = token(file, "list", "--json")
    found = json.loads(for_programs.stdout)
    assert list(found) == ["alice", "bob", "carol"]
    assert found["alice"]["grants"][1] == {"prefix": "/workspaces/alice/", "ops": ["file", "list", "read"]}
    assert (found["alice"]["limits"]["sessions"], found["carol"]["grants"]) == (3, [])
    for text in (listed.stdout, for_programs.stdout):
        assert secret not in text
        assert "sha256" not in text


def test_a_revoked_token_is_gone(file: Path) -> None:
    make(file, "alice", "/")
    make(file, "bob", "/")
    ended = token(file, "revoke", "alice")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert set(load(file)) == {"bob"}


def test_the_file_can_be_named_by_the_environment(file: Path) -> None:
    made = run_cfs("token", "create", "alice", "--grant", "/", CFS_TOKENS=str(file))
    assert load(file)["alice"].hash == digest(made.stdout.strip())
    assert run_cfs("token", "list", CFS_TOKENS=str(file)).stdout.startswith("alice  ")
    assert run_cfs("token", "revoke", "alice", CFS_TOKENS=str(file)).returncode == 0
    assert load(file) == {}


def parameters() -> Iterator[tuple[str, Any]]:
    """Every parameter of every command of the program, with the command's name."""
    root: Any = typer.main.get_command(build(list(entry_points(group=GROUP))))
    open_ones = [("cfs", root)]
    while open_ones:
        name, command = open_ones.pop()
        if hasattr(command, "list_commands"):  # they are loaded when they are asked for
            below = command.list_commands(typer.Context(command))
            open_ones += [(f"{name} {each}", command.get_command(typer.Context(command), each)) for each in below]
        context = command.make_context(name, [], resilient_parsing=True)  # some get their parameters when they run
        yield from ((name, parameter) for parameter in context.command.params)


NO_SECRETS = {
    "allow_remote_without_tokens",  # yes or no
    "idempotency_key",  # identifies a message
    "max_tokens",  # numbers
    "token_bytes",
    "token_daily_cost",
    "token_daily_tokens",
    "daily_tokens",
    "token_requests",
    "token_sessions",
    "token_streams",
    "upstream_thinking_tokens",
    "token_file",  # paths of files
    "upstream_key_file",
    "tokens",
}


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Arguments stand in the list of processes and in the shell's history: a file or the environment holds secrets."""
    found = list(parameters())
    assert {"cfs serve", "cfs send", "cfs mount", "cfs token create", "cfs token revoke"} <= {name for name, _ in found}
    telling = ("token", "secret", "passw", "credential", "auth", "key", "bearer")
    suspect = {(name, each.name) for name, each in found if any(word in each.name for word in telling)}
    assert {pair for pair in suspect if pair[1] not in NO_SECRETS} == set(), "is it a secret? if not, add it above"
