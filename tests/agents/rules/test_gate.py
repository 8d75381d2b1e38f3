"""The gate of real agents: what rules deny does not happen, what they ask about waits, and answers last (A11)."""

import asyncio
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cfs_agents.guards.rules import Policy, Remembered
from cfs_agents.guards.rules.rules_file import parse_rules
from cfs_agents.main.testing import Line, ScriptedModel, calls, says
from cfs_agents.tools import Answer, CommandMode, CommandRequest
from tests.agents.fibre.test_questions import answered, here, open_question
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait, write
from tests.agents.file_agent.support import agent, events_of
from tests.server.support import ServerHarness, until

__all__ = ["here"]


def policy(folder: Path, text: str = "", *, remembered: bool = False) -> Policy:
    """Return a policy with rules of a user."""
    answers = Remembered(folder / "remembered.toml") if remembered else None
    return Policy(rules=parse_rules(text, Path("rules.toml")), remembered=answers)


def command(text: str) -> Line:
    return calls("execute_command", command=text)


class Person:
    """Gives the same answer to every question, and notes what was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.patterns: list[tuple[str, ...]] = []

    async def __call__(self, _: str, request: CommandRequest) -> Answer:
        self.asked.append(request.command)
        self.patterns.append(request.patterns)
        return self.answer


async def results(folder: Path, script: Iterable[Line], **config: Any) -> list[str]:
    """Run an agent that works alone, and return the results of its calls."""
    made, model = agent(folder, *script, says("ok"), **config)
    async with made:
        await events_of(made, "go")
    return results_of(model)


def results_of(model: ScriptedModel) -> list[str]:
    return [message.content for message in model.asked[-1].messages if message.role == "tool"]


async def test_a_denied_write_does_not_happen_and_the_model_reads_the_rule(tmp_path: Path) -> None:
    rules = policy(tmp_path, 'deny = ["write_file(secret/**)"]')
    script = [write("secret/key.txt"), write("notes.txt")]
    denied, written = await results(tmp_path / "agent", script, commands=CommandMode.NONE, policy=rules)
    assert denied.startswith("Error: write_file was not run: the rule write_file(secret/**) (rules.toml:1) denies it")
    assert "created" in written
    workspace = tmp_path / "agent/workspace"
    assert not (workspace / "secret").exists()
    assert (workspace / "notes.txt").exists()


@pytest.mark.external
async def test_a_denied_command_does_not_run_where_commands_need_no_consent(tmp_path: Path) -> None:
    rules = policy(tmp_path, 'deny = ["execute_command(touch secret:*)"]')
    script = [command("true && bash -c 'touch secret'"), command("touch notes")]
    denied, _ = await results(tmp_path / "agent", script, commands=CommandMode.HOST, policy=rules)
    assert "denies it" in denied
    workspace = tmp_path / "agent/workspace"
    assert not (workspace / "secret").exists()
    assert (workspace / "notes").exists()


@pytest.mark.external
async def test_an_allowed_command_runs_without_a_question_and_others_are_asked_about(tmp_path: Path) -> None:
    rules, person = policy(tmp_path, 'allow = ["execute_command(touch:*)"]'), Person(Answer.NO)
    script = [command("touch notes"), command("touch more; ls")]
    _, refused = await results(tmp_path / "agent", script, commands=CommandMode.ASK, ask=person, policy=rules)
    assert person.asked == ["touch more; ls"]
    assert "the user did not allow this command" in refused
    assert (tmp_path / "agent/workspace/notes").exists()
    assert not (tmp_path / "agent/workspace/more").exists()


@pytest.mark.external
async def test_always_outlives_the_program_for_exactly_this_call_in_this_workspace(tmp_path: Path) -> None:
    person = Person(Answer.ALWAYS)
    for root, script in (
        ("agent", [command("touch one"), command("touch one")]),
        ("agent", [command("touch one"), command("touch two")]),  # another program
        ("other", [command("touch one")]),
    ):
        rules = policy(tmp_path, remembered=True)
        await results(tmp_path / root, script, commands=CommandMode.ASK, ask=person, policy=rules)
    assert person.asked == ["touch one", "touch two", "touch one"]


@pytest.mark.external
async def test_a_pattern_outlives_the_program_and_does_not_outweigh_rules(tmp_path: Path) -> None:
    """Each command of a compound has its own; a call that a rule asks about is asked about again."""
    person = Person(Answer.PATTERN)
    for root, lines in (
        ("agent", ["touch one && ls", "touch two; ls -a"]),
        ("agent", ["ls && touch three", "touch secret", "ls; mkdir x"]),  # another program
        ("other", ["ls"]),
    ):
        rules = policy(tmp_path, 'ask = ["execute_command(touch secret)"]', remembered=True)
        await results(tmp_path / root, map(command, lines), commands=CommandMode.ASK, ask=person, policy=rules)
    assert person.asked == ["touch one && ls", "touch secret", "ls; mkdir x", "ls"]
    assert person.patterns == [
        ("execute_command(touch:*)", "execute_command(ls:*)"),
        (),
        ("execute_command(mkdir:*)",),
        ("execute_command(ls:*)",),
    ]
    stored = tomllib.loads((tmp_path / "remembered.toml").read_text())["answer"]
    assert [entry["pattern"] for entry in stored if entry["workspace"].endswith("agent/workspace")] == [
        *("execute_command(touch:*)", "execute_command(ls:*)", "execute_command(mkdir:*)")
    ]


@pytest.mark.external
async def test_a_pattern_holds_in_this_program_where_nothing_is_stored(tmp_path: Path) -> None:
    person = Person(Answer.PATTERN)
    script = [command("touch one"), command("touch two"), command("sh -c 'touch three; make'")]
    refused = (await results(tmp_path, script, commands=CommandMode.ASK, ask=person))[-1]
    assert person.asked == ["touch one", "sh -c 'touch three; make'"]
    assert person.patterns[-1] == ()
    assert "the user did not allow this command" in refused, "no pattern was shown, so the answer is none"


async def test_a_workspace_restricts_at_once_and_cannot_allow(tmp_path: Path) -> None:
    root = tmp_path / "agent"
    own = root / "workspace/.cfs/rules.toml"
    own.parent.mkdir(parents=True)
    own.write_text('deny = ["write_file(a.txt)"]\nallow = ["execute_command(*)"]')
    warnings: list[str] = []
    made, model = agent(
        root, write("a.txt"), says("1"), write("a.txt"), says("2"), commands=CommandMode.NONE, warn=warnings.append
    )
    async with made:
        await events_of(made, "go")
        own.write_text("")
        await events_of(made, "go on")
    first, second = results_of(model)
    assert "the rule write_file(a.txt) (.cfs/rules.toml:1) denies it" in first
    assert "created" in second
    (warning,) = warnings
    assert "`allow` is ignored" in warning


async def test_damaged_rules_of_a_workspace_stop_all_calls(tmp_path: Path) -> None:
    own = tmp_path / "workspace/.cfs/rules.toml"
    own.parent.mkdir(parents=True)
    own.write_text("deny = [")
    (refused,) = await results(tmp_path, [write("a.txt")], commands=CommandMode.NONE)
    assert "write_file was not run" in refused
    assert "not TOML" in refused
    assert not (tmp_path / "workspace/a.txt").exists()


async def test_a_damaged_file_of_lasting_answers_stops_all_calls_and_is_named(tmp_path: Path) -> None:
    rules = policy(tmp_path, remembered=True)
    (tmp_path / "remembered.toml").write_text("[[answer")
    (refused,) = await results(tmp_path / "agent", [write("a.txt")], commands=CommandMode.NONE, policy=rules)
    assert refused.startswith("Error: write_file was not run: ")
    assert "remembered.toml" in refused
    assert "correct the file, or remove it" in refused


async def test_a_refused_call_that_is_no_command_is_not_called_one(tmp_path: Path) -> None:
    rules, person = policy(tmp_path, 'ask = ["write_file(**)"]'), Person(Answer.NO)
    (refused,) = await results(tmp_path, [write("a.txt")], commands=CommandMode.NONE, ask=person, policy=rules)
    assert "the user did not allow this call, and it was not run" in refused
    assert person.asked == ['write_file {"path": "a.txt", "content": "x"}']


async def test_an_agent_cannot_change_the_rules_of_its_workspace_by_itself(tmp_path: Path) -> None:
    (refused,) = await results(tmp_path, [write(".cfs/rules.toml")], commands=CommandMode.NONE)
    assert "holds rules for agents, and no person can be asked" in refused
    assert not (tmp_path / "workspace/.cfs/rules.toml").exists()


@pytest.mark.server
async def test_a_call_of_a_child_is_asked_about_in_its_session(tmp_path: Path, here: ServerHarness) -> None:
    rules = policy(tmp_path, 'ask = ["write_file(**)"]')
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[write("a.txt"), finish("made", "a.txt")])
    async with tree(tmp_path, scripted, here.url, policy=rules) as fibre:
        work = asyncio.create_task(fibre.run("go"))
        await until(open_question(here, "main/a"))
        (question,) = here.store.get("main/a").questions.values()
        assert question.text == 'write_file {"path": "a.txt", "content": "x"}'
        assert not (tmp_path / "main/agent_workspace/a.txt").exists()
        await answered(here, "allow", "main/a")
        assert (await work).summary == "ok"
    assert (tmp_path / "main/agent_workspace/a.txt").exists()


@pytest.mark.server
async def test_what_would_be_asked_is_denied_if_no_person_attends(tmp_path: Path, here: ServerHarness) -> None:
    rules = policy(tmp_path, 'ask = ["write_file(**)"]')
    scripted = ScriptedModels(main=[write("a.txt"), says("ok")])
    async with tree(tmp_path, scripted, here.url, policy=rules, attended=False) as fibre:
        await fibre.run("go")
    assert "no person can be asked" in results_of(scripted.models["main"])[0]
    assert not (tmp_path / "main/agent_workspace/a.txt").exists()
