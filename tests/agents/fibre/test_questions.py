"""Commands of agents that answer a session are asked about there, and at the terminal if there is one (A5).

The model of the server repeats the last message, so a message is the calls that answer it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from cfs import api
from cfs.transports.http import Client
from cfs.wire import NewMessage, Question, SettingsPatch
from cfs_agents.guards.rules import Policy, load_rules
from cfs_agents.main.testing import calls, says
from cfs_agents.tools import Answer, CommandMode, CommandRequest
from tests.agents.fibre.test_commands import call, detail, until
from tests.agents.fibre.trees import ScriptedModels, messages, spawn, tree, wait
from tests.agents.fibre.trees import finish as report
from tests.client.terminal import CTRL_C, Running, cfs, ended, terminal
from tests.server.restarting import Restarting
from tests.server.support import ServerHarness, running_server, serving
from tests.server.support import until as soon

CHOICE = "in this directory)"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the model that repeats the last message."""
    with serving("--engine", "scripted", "--log-level", "error") as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def run(*commands: str) -> str:
    """Calls of the shell, all in one reply."""
    return "".join(call("execute_command", command=command) for command in commands)


@contextmanager
def serve(url: str, session: str, root: Path) -> Iterator[Running]:
    """An agent without a terminal."""
    with Running(url, "agent", "serve", "--session", session, "--root", str(root), "--commands", "ask") as running:
        yield running


def asked(client: Client, session: str) -> Question:
    """Wait until a question is open in a session."""
    until(lambda: client.call(api.questions(session)) != ())
    found = client.call(api.questions(session))[0]
    client.call(api.configure(session, SettingsPatch(seed=7 if client.call(api.settings(session)).seed != 7 else 8)))
    return found  # it is stored by now, as a later change is


def settled(client: Client, session: str) -> str:
    """Wait for the end of the turn, and return its last message."""
    client.call(api.wait(session, 60))
    return detail(client, session).history[-1].content


def workspace(root: Path, session: str) -> Path:
    return root / session / "agent_workspace"


def ready(client: Client, session: str, text: str) -> None:
    client.call(api.create(session, SettingsPatch(driver="agent")))
    client.call(api.post(session, NewMessage(content=text)))


def test_without_a_terminal_the_session_is_asked(url: str, client: Client, tmp_path: Path) -> None:
    """The command runs after the answer; a denied one does not, and the model reads why."""
    ready(client, "remote", run("echo x >> one", "echo x >> two"))
    place = workspace(tmp_path, "remote")
    with serve(url, "remote", tmp_path) as running:
        question = asked(client, "remote")
        assert (question.text, question.directory, question.choices) == (
            "echo x >> one",
            str(place),
            ("allow", "always", "always execute_command(echo:*)", "deny"),
        )
        assert not (place / "one").exists()
        client.call(api.answer("remote", question.id, "allow"))
        until(lambda: client.call(api.questions("remote"))[:1] not in ((), (question,)))
        assert (place / "one").read_text() == "x\n"
        client.call(api.answer("remote", asked(client, "remote").id, "deny"))
        assert "the user did not allow this command" in settled(client, "remote")
        assert not (place / "two").exists()
        running.process.terminate()
        _, _, errors = running.end()
    assert "[no terminal: answer its questions by `cfs answer remote`, or in the browser]" in errors


def test_always_holds_for_the_same_command_also_in_later_programs(url: str, client: Client, tmp_path: Path) -> None:
    line = "echo x >> log"
    ready(client, "always", run(line, line, f"{line} "))
    log = workspace(tmp_path, "always") / "log"
    with serve(url, "always", tmp_path):
        first = asked(client, "always")
        client.call(api.answer("always", first.id, "always"))
        until(lambda: client.call(api.questions("always"))[:1] not in ((), (first,)))
        second = asked(client, "always")
        assert second.text == f"{line} ", "one more blank is another command"
        assert log.read_text() == "x\nx\n"
        client.call(api.answer("always", second.id, "deny"))
        settled(client, "always")
    client.call(api.post("always", NewMessage(content=run(line, f"{line} "))))
    with serve(url, "always", tmp_path):
        third = asked(client, "always")
        assert third.text == f"{line} "
        client.call(api.answer("always", third.id, "deny"))
        settled(client, "always")
    assert log.read_text() == "x\nx\nx\n"


def test_an_answer_can_be_a_pattern_that_the_question_shows(url: str, client: Client, tmp_path: Path) -> None:
    """By the command line, which shows it as the question does; it holds for other arguments and later programs."""
    ready(client, "pattern", run("touch one", "touch two && make"))
    with serve(url, "pattern", tmp_path):
        first = asked(client, "pattern")
        pattern = "always execute_command(touch:*)"
        assert first.choices == ("allow", "always", pattern, "deny")
        code, output, _ = ended(cfs(url, "questions", "pattern"))
        assert (code, pattern in output) == (0, True)
        code, _, errors = ended(cfs(url, "answer", "pattern", "always execute_command(rm:*)"))
        assert (code != 0, "the answer is one of" in errors) == (True, True)
        assert ended(cfs(url, "answer", "pattern", pattern))[0] == 0
        until(lambda: client.call(api.questions("pattern"))[:1] not in ((), (first,)))
        second = asked(client, "pattern")
        assert second.choices == ("allow", "always", "deny"), "a pattern of make would allow any command"
        client.call(api.answer("pattern", second.id, "deny"))
        settled(client, "pattern")
    client.call(api.post("pattern", NewMessage(content=run("touch three"))))
    with serve(url, "pattern", tmp_path):
        settled(client, "pattern")
    names = sorted(path.name for path in workspace(tmp_path, "pattern").glob("[a-z]*"))
    assert names == ["one", "three"]


def test_an_agent_that_no_person_attends_does_without_the_command(url: str, client: Client, tmp_path: Path) -> None:
    ready(client, "alone", run("touch one"))
    flags = ("--root", str(tmp_path), "--commands", "ask", "--unattended")
    with Running(url, "agent", "serve", "--session", "alone", *flags):
        assert "no person can be asked" in settled(client, "alone")
    assert client.call(api.questions("alone", every=True)) == ()
    assert not (workspace(tmp_path, "alone") / "one").exists()


def test_the_first_answer_counts_at_the_terminal_or_elsewhere(url: str, client: Client, tmp_path: Path) -> None:
    """The other question ends, and says by whom it was answered."""
    ready(client, "both", run("touch one", "touch two", "touch three"))
    place = workspace(tmp_path, "both")
    arguments = ("agent", "serve", "--session", "both", "--commands", "ask", "--root", str(tmp_path))
    with terminal(url, *arguments) as screen:
        assert "  | touch one" in screen.expect(CHOICE)
        first = asked(client, "both")
        client.call(api.answer("both", first.id, "allow"))
        screen.expect("[local has answered yes]")
        assert "  | touch two" in screen.expect(CHOICE)
        second = asked(client, "both")
        screen.type("n\r")
        assert "  | touch three" in screen.expect(CHOICE)
        (closed,) = [each for each in client.call(api.questions("both", every=True)) if each.id == second.id]
        assert (closed.state, closed.answer, closed.terminal) == ("answered", "deny", True)
        third = asked(client, "both")
        client.call(api.cancel("both"))
        screen.expect("[not answered: the command is not run]")
        until(lambda: detail(client, "both").state == "idle")
        assert third.id not in {each.id for each in client.call(api.questions("both", every=True))}
        screen.press_until(CTRL_C, "^C")
        screen.end()
    assert {path.name for path in place.iterdir() if not path.name.startswith(".")} == {"one"}


def test_ctrl_c_at_the_question_withdraws_it_and_the_next_start_asks_again(
    url: str, client: Client, tmp_path: Path
) -> None:
    ready(client, "stopped", run("touch one"))
    place = workspace(tmp_path, "stopped")
    arguments = ("agent", "serve", "--session", "stopped", "--commands", "ask", "--root", str(tmp_path))
    with terminal(url, *arguments) as screen:
        screen.expect(CHOICE)
        before = asked(client, "stopped")
        screen.press_until(CTRL_C, "[not answered: the command is not run]")
        screen.end()
    assert client.call(api.question("stopped", before.id)).state == "withdrawn"
    with serve(url, "stopped", tmp_path):
        again = asked(client, "stopped")
        assert again.id != before.id
        client.call(api.answer("stopped", again.id, "allow"))
        settled(client, "stopped")
    assert (place / "one").exists()


@pytest.mark.parametrize("answered", ["before the next start", "after it"])
def test_a_killed_agent_finds_its_question_again(url: str, client: Client, tmp_path: Path, answered: str) -> None:
    """There is one question, the command runs once, and nothing may or may not have happened."""
    session = "killed-" + answered.partition(" ")[0]
    ready(client, session, run("echo x >> log"))
    log = workspace(tmp_path, session) / "log"
    with serve(url, session, tmp_path) as running:
        question = asked(client, session)
        running.process.kill()
        running.process.wait()
    if answered == "before the next start":
        client.call(api.answer(session, question.id, "allow"))
    with serve(url, session, tmp_path):
        if answered == "after it":
            until(lambda: "attached" not in detail(client, session).state)
            assert client.call(api.questions(session)) == (question,)
            client.call(api.answer(session, question.id, "allow"))
        assert "may or may not" not in settled(client, session)
        assert log.read_text() == "x\n"
    events = [each.content for each in detail(client, session).history if each.role == "tool"]
    assert len(events) == 1


def test_a_question_survives_a_kill_of_the_server(tmp_path: Path) -> None:
    """The agent goes on waiting for the same question."""
    with ExitStack() as stack:
        server = Restarting(tmp_path / "data", stack)
        client = server.direct
        ready(client, "again", run("touch one"))
        stack.enter_context(serve(server.process.url, "again", tmp_path))
        question = asked(client, "again")
        server.kill()
        server.start()
        assert client.call(api.questions("again")) == (question,)
        client.call(api.answer("again", question.id, "allow"))
        settled(client, "again")
        assert (workspace(tmp_path, "again") / "one").exists()


def test_the_terminal_answers_while_there_is_no_server(tmp_path: Path) -> None:
    """The server learns it when it is there again."""
    with ExitStack() as stack:
        server = Restarting(tmp_path / "data", stack)
        client = server.direct
        ready(client, "alone", run("touch one", "touch two"))
        arguments = ("agent", "serve", "--session", "alone", "--commands", "ask", "--root", str(tmp_path))
        screen = stack.enter_context(terminal(server.process.url, *arguments))
        screen.expect(CHOICE)
        question = asked(client, "alone")
        server.kill()
        screen.type("y\r")
        place = workspace(tmp_path, "alone")
        until((place / "one").exists)
        assert "  | touch two" in screen.expect(CHOICE)
        server.start()
        until(lambda: client.call(api.question("alone", question.id)).state == "answered")
        assert client.call(api.question("alone", question.id)).terminal
        screen.type("n\r")
        settled(client, "alone")
        screen.press_until(CTRL_C, "^C")
        screen.end()


def test_an_answer_waits_for_the_end_of_a_pause(url: str, client: Client, tmp_path: Path) -> None:
    ready(client, "paused", run("touch one"))
    place = workspace(tmp_path, "paused")
    with serve(url, "paused", tmp_path):
        question = asked(client, "paused")
        assert ended(cfs(url, "agent", "pause", "paused"))[0] == 0
        number = detail(client, "paused").event
        client.call(api.answer("paused", question.id, "allow"))
        # the agent has heard of the pause before the answer: both are events of one stream and one log
        assert detail(client, "paused").event == number + 1
        assert not (place / "one").exists()
        assert ended(cfs(url, "agent", "unpause", "paused"))[0] == 0
        settled(client, "paused")
    assert (place / "one").exists()


def test_sub_agents_ask_in_their_own_sessions_at_the_same_time(url: str, client: Client, tmp_path: Path) -> None:
    text = ""
    for name in ("coder", "tester"):
        inner = call(
            "sys_spawn_agent",
            agent_name=name,
            role_description="r",
            system_instruction="i",
            task_goal=run(f"touch {name}"),
        )
        inner = inner.removeprefix("<tool_call>").removesuffix("</tool_call>").replace("<", "\\u003c")
        text += f"<tool_call>{inner}</tool_call>"
    text += "".join(call("sys_wait_agent", agent_id=name) for name in ("coder", "tester"))
    ready(client, "family", text)
    with serve(url, "family", tmp_path):
        until(lambda: any(each.id == "family/tester" for each in client.call(api.sub_sessions("family")).children))
        first, second = asked(client, "family/coder"), asked(client, "family/tester")
        assert (first.text, second.text) == ("touch coder", "touch tester")
        client.call(api.answer("family/tester", second.id, "deny"))
        client.call(api.answer("family/coder", first.id, "allow"))
        settled(client, "family")
    names = {path.name for path in workspace(tmp_path, "family").iterdir() if not path.name.startswith(".")}
    assert names == {"coder"}


# -- in one process: what must happen at an exact moment --------------------------------------------------------------


@pytest_asyncio.fixture
async def here() -> AsyncIterator[ServerHarness]:
    """A server in this process, where commands are run, too: starting one blocks for a moment."""
    async with running_server(may_block=True) as server:
        yield server


def open_question(server: ServerHarness, session: str = "main") -> Callable[[], object]:
    return lambda: (found := server.store.find(session)) is not None and found.info(0).open_questions


async def answered(server: ServerHarness, answer: str, session: str = "main") -> str:
    """Answer the open question of a session and return its id."""
    await soon(open_question(server, session))
    (question,) = (await server.client.get(f"/v1/sessions/{session}/questions")).json()["questions"]
    place = f"/v1/sessions/{session}/questions/{question['id']}"
    assert (await server.client.post(place, json={"answer": answer})).status_code == 200
    return str(question["id"])


async def test_a_question_is_asked_again_when_the_lease_had_expired(here: ServerHarness, tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[calls("execute_command", command="touch one"), says("It is made.")])
    async with tree(tmp_path, scripted, here.url, commands=CommandMode.ASK) as agent:
        task = asyncio.create_task(agent.run("go"))
        await soon(open_question(here))
        session = here.store.get("main")
        (before,) = session.questions
        assert session.running is not None
        session.expire(session.running)
        assert await answered(here, "allow") != before
        assert (await task).ok
    assert (tmp_path / "main/agent_workspace/one").exists()


async def test_an_answer_of_the_terminal_that_the_agent_has_not_given_counts_for_nothing(
    here: ServerHarness, tmp_path: Path
) -> None:
    """A command that has stolen the secret of the turn cannot allow another command by it."""
    scripted = ScriptedModels(main=[calls("execute_command", command="touch one"), says("It is not.")])
    async with tree(tmp_path, scripted, here.url, commands=CommandMode.ASK) as agent:
        task = asyncio.create_task(agent.run("go"))
        await soon(open_question(here))
        session = here.store.get("main")
        (before,) = session.questions
        assert session.running is not None
        assert session.running.lease is not None
        session.answer_question(before, "allow", "thief", session.running.lease.secret)
        assert await answered(here, "deny") != before, "it is asked again"
        await task
    assert not (tmp_path / "main/agent_workspace/one").exists()


async def test_a_function_that_decides_by_itself_asks_no_one(here: ServerHarness, tmp_path: Path) -> None:
    async def ask(name: str, request: CommandRequest) -> Answer:
        return Answer.YES if request.command == "touch one" else Answer.NO

    script = [calls("execute_command", command=f"touch {each}") for each in ("one", "two")]
    scripted = ScriptedModels(main=[*script, says("It is made.")])
    async with tree(tmp_path, scripted, here.url, commands=CommandMode.ASK, ask=ask) as agent:
        await agent.run("go")
    events = here.store.get("main").log.since(0)
    assert isinstance(events, list)
    assert not [event for event in events if event.type.startswith("question.")]
    assert [path.name for path in (tmp_path / "main/agent_workspace").glob("[a-z]*")] == ["one"]


async def test_always_answers_the_same_question_of_others(here: ServerHarness, tmp_path: Path) -> None:
    """Two children ask about one command at the same time; the second question is withdrawn."""
    same = [calls("execute_command", command="echo x >> log"), report("done")]
    root = [spawn("a"), spawn("b"), wait("a"), wait("b"), says("It is made.")]
    scripted = ScriptedModels(main=root, a=same, b=same)
    async with tree(tmp_path, scripted, here.url, commands=CommandMode.ASK) as agent:
        task = asyncio.create_task(agent.run("go"))
        await soon(open_question(here, "main/b"))
        await answered(here, "always", "main/a")
        await soon(lambda: not here.store.get("main/b").info(0).open_questions)
        await task
    assert (tmp_path / "main/agent_workspace/log").read_text() == "x\nx\n"


async def test_a_command_that_is_too_long_to_be_asked_about_is_not_run(here: ServerHarness, tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[calls("execute_command", command=f"touch one #{'x' * 70_000}"), says("No.")])
    async with tree(tmp_path, scripted, here.url, commands=CommandMode.ASK) as agent:
        await agent.run("go")
    told = (await messages(tmp_path))[-2]["content"]
    assert "no person could be asked whether this may run, and it was not run" in told
    assert not (tmp_path / "main/agent_workspace/one").exists()


async def test_the_time_of_a_person_is_not_that_of_the_agent(here: ServerHarness, tmp_path: Path) -> None:
    """Nor does it end the lease: the agent renews it while it waits."""
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("It is made.")],
        a=[calls("execute_command", command="touch one"), report("made it", "one")],
    )
    async with tree(tmp_path, scripted, here.url, commands=CommandMode.ASK, lease_seconds=3.0) as agent:
        task = asyncio.create_task(agent.run("go"))
        await soon(open_question(here, "main/a"))
        before = agent.agents["a"].clock.seconds
        await here.until("main/a", "question.asked", 1)
        lease = here.store.get("main/a").running
        assert lease is not None
        assert lease.lease is not None
        expires = lease.lease.expires_at
        await soon(lambda: lease.lease is not None and lease.lease.expires_at > expires + 0.3)
        assert agent.agents["a"].clock.seconds == before
        await answered(here, "allow", "main/a")
        assert (await task).ok


async def test_a_message_that_came_before_a_kill_could_be_noted_is_not_answered_with_the_last_report(
    here: ServerHarness, tmp_path: Path
) -> None:
    """The turn has ended on the server, the file still says that it is held, and the next message waits."""
    async with tree(tmp_path, ScriptedModels(main=[says("First.")]), here.url) as agent:
        await agent.run("one")
    place = tmp_path / "main/session_status.json"
    stored = json.loads(await asyncio.to_thread(place.read_text))
    ended = {"turn": "0" * 32, "claim": "over", "content": "one", "life": here.store.get("main").nonce}
    await asyncio.to_thread(place.write_text, json.dumps(stored | {"held": ended}))
    await here.say("main", "two")
    async with tree(tmp_path, ScriptedModels(main=[says("Second.")]), here.url) as agent:
        await agent.resume()
    assert (await here.text("main")).endswith("User: two\nAssistant: Second.\n")


async def test_decisions_are_events_of_the_session(here: ServerHarness, tmp_path: Path) -> None:
    """Those of rules and persons, with the rule's text, who answered and the digest; the defaults' are none."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'allow = ["execute_command(seq:*)"]\nask = ["write_file(b*)"]\ndeny = ["write_file(secret*)"]\n',
        encoding="utf-8",
    )
    script = [
        calls("execute_command", command="seq 3"),
        calls("write_file", path="a.txt", content="by default"),
        calls("write_file", path="secret.txt", content="x"),
        calls("execute_command", command="touch two"),
        calls("write_file", path="b.txt", content="x"),
    ]
    scripted = ScriptedModels(main=[*script, says("It is made.")])
    policy = Policy(rules=load_rules(files=[rules]))
    async with tree(tmp_path / "trees", scripted, here.url, commands=CommandMode.ASK, policy=policy) as agent:
        task = asyncio.create_task(agent.run("go"))
        await soon(open_question(here))
        question = next(iter(here.store.get("main").questions.values()))
        assert (question.kind, question.text) == ("command", "touch two")
        await answered(here, "allow")
        await soon(open_question(here))
        question = list(here.store.get("main").questions.values())[-1]
        assert question.kind == "write"
        assert question.text.startswith('write_file {"path": "b.txt"')
        await answered(here, "deny")
        await task
    events = here.store.get("main").log.since(0)
    assert isinstance(events, list)
    decisions = [event.data for event in events if event.type == "call.decided"]
    shown = [(each["subject"], each["verdict"], each["asked"], each["by"], each["rule"]) for each in decisions]
    assert shown == [
        ("seq 3", "allowed", False, None, "execute_command(seq:*)"),
        ("secret.txt", "denied", False, None, "write_file(secret*)"),
        ("touch two", "allowed", True, "local", ""),
        ("b.txt", "denied", True, "local", "write_file(b*)"),
    ]
    assert decisions[0]["source"] == "rules.toml:1"
    assert len({each["digest"] for each in decisions}) == len(decisions)
    called = {
        call["id"]
        for event in events
        if event.type == "message.added"
        for call in event.data["message"].get("tool_calls", ())
    }
    assert {each["call"] for each in decisions} < called
    (started,) = [event.data["turn"] for event in events if event.type == "turn.started"]
    assert {(each["turn"], each["principal"]) for each in decisions} == {(started, "local")}
