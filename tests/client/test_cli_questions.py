"""`cfs questions`, `cfs answer` and the SDK: questions of agents from another terminal (A5, C10)."""

import json
import os
import pty
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from cfs import Conflict, NotFound, Session, api
from cfs.cli.actions.send import decided
from cfs.cli.actions.terminal_questions import TerminalQuestions
from cfs.transports.http import Client
from cfs.wire import AgentFinish, Claim, NewMessage, SettingsPatch
from tests.client.harness import HttpHarness
from tests.client.terminal import CTRL_C, CTRL_D, Running, cfs, ended, terminal


def held(client: Client, session: str) -> Claim:
    """Hold the turn of a session as its agent."""
    client.call(api.create(session, SettingsPatch(driver="agent")))
    client.call(api.post(session, NewMessage(content="build it")))
    claim = client.call(api.claim(session, lease=3_600))
    assert claim is not None
    return claim


def test_help_says_whose_questions_are_listed(http_harness: HttpHarness) -> None:
    """Without a name they are those of all sessions; a new session has none."""
    out = cfs(http_harness.url, "questions", "--help")
    assert "default: all sessions" in ended(out)[1]


def test_open_questions_are_listed_with_all_of_their_text(http_harness: HttpHarness) -> None:
    """Of all sessions, or of one and those below it; what cannot be seen is shown by its number."""
    url = http_harness.url
    assert ended(cfs(url, "questions")) == (0, "", "No question is open.\n")
    with Client(url) as client:
        names = ("main", "main/coder", "other")
        asked = [
            client.call(api.ask(name, held(client, name).claim, f"touch \u202e{name}\nls", directory="/srv"))
            for name in names
        ]
    shown = [
        f"{name} {each.id[:8]}: run this command in /srv?\n  | touch <U+202E>{name}\n  | ls\n  allow, always, deny\n"
        for name, each in zip(names, asked, strict=True)
    ]
    assert ended(cfs(url, "questions")) == (0, "".join(shown), "")
    assert ended(cfs(url, "questions", "main")) == (0, "".join(shown[:2]), "")
    listed = json.loads(cfs(url, "questions", "main/coder", "--json").stdout)
    assert [(each["session"], each["question"]["id"]) for each in listed] == [("main/coder", asked[1].id)]


def test_questions_of_all_sessions_are_answered_at_one_terminal(http_harness: HttpHarness) -> None:
    """One after the other; an empty line leaves one open, and one that was answered meanwhile says so."""
    url = http_harness.url
    assert "needs a terminal" in ended(cfs(url, "questions", "--all", "--answer"))[2]
    assert ended(cfs(url, "questions", "--all", "main"))[0] == 2
    with Client(url) as client:
        names = ("a", "b", "b/c", "d")
        asked = {
            name: client.call(
                api.ask(name, held(client, name).claim, f'mcp(files/write) {{"n": "{name}"}}', kind="mcp")
            )
            for name in names
        }
        listed = ended(cfs(url, "questions", "--all"))[1]
        assert listed.count("call this tool of an MCP server?") == len(names)
        with terminal(url, "questions", "--all", "-a") as screen:
            assert "a " in screen.expect("(empty: later)? ")
            screen.type("perhaps\r")
            screen.expect("(empty: later)? ")
            screen.type("al\r")  # two choices begin like this
            screen.expect("(empty: later)? ")
            screen.type("d\r")
            assert '{"n": "b"}' in screen.expect("(empty: later)? ")
            screen.type("\r")
            assert "b/c " in screen.expect("(empty: later)? ")
            client.call(api.answer("b/c", asked["b/c"].id, "always"))
            screen.type("deny\r")
            screen.expect("answered already, by local: always]")
            screen.expect("(empty: later)? ")
            screen.type("allow\r")
            assert screen.end()[0] == 0
        answers = [client.call(api.question(name, asked[name].id)).answer for name in names]
        assert answers == ["deny", None, "always", "allow"]


def test_a_question_is_answered_and_the_second_answer_is_refused(http_harness: HttpHarness) -> None:
    url = http_harness.url
    assert ended(cfs(url, "answer", "none", "allow"))[0] != 0
    with Client(url) as client:
        claim = held(client, "a").claim
        first, second = (client.call(api.ask("a", claim, text)) for text in ("make one", "make two"))
        code, _, errors = ended(cfs(url, "answer", "a", "allow"))
        assert (code != 0, first.id[:8] in errors) == (True, True)
        assert "allow, always, deny" in ended(cfs(url, "answer", "a", first.id[:8], "perhaps"))[2]
        assert ended(cfs(url, "answer", "a", first.id[:8], "allow")) == (0, "", "")
        assert client.call(api.question("a", first.id)).answer == "allow"
        assert ended(cfs(url, "answer", "a", "deny")) == (0, "", "")
        assert client.call(api.question("a", second.id)).answer == "deny"
        assert "no question is open" in ended(cfs(url, "answer", "a", "deny"))[2]


def test_a_session_object_answers(http_harness: HttpHarness) -> None:
    with Client(http_harness.url) as client, Session("a", url=http_harness.url) as session:
        claim = held(client, "b").claim
        with pytest.raises(NotFound):
            session.answer("allow")
        with Session("b", url=http_harness.url) as asked:
            first, second = (client.call(api.ask("b", claim, text)) for text in ("make one", "make two"))
            assert [each.id for each in asked.questions()] == [first.id, second.id]
            with pytest.raises(Conflict):
                asked.answer("allow")
            asked.answer("allow", first.id)
            with pytest.raises(Conflict, match="answered already"):
                asked.answer("deny", first.id)
            asked.answer("deny")
            assert asked.questions() == ()


def test_what_was_decided_about_a_call_is_one_line() -> None:
    decision = {
        "tool": "execute_command",
        "subject": "git\npush\u202e",
        "verdict": "denied",
        "asked": False,
        "by": None,
    }
    rule = {"rule": "execute_command(git push:*)", "source": "rules.toml:3"}
    call = "execute_command(git push<U+202E>)".replace("git ", "git<U+000A>")
    assert decided(decision | rule) == f"denied: {call}, rule execute_command(git push:*) (rules.toml:3)"
    asked = {"verdict": "allowed", "asked": True, "rule": "", "source": ""}
    assert decided(decision | asked) == f"allowed: {call}, at the agent's terminal"
    assert decided(decision | asked | {"by": "alice"}) == f"allowed: {call}, by alice"
    assert decided(decision | {"rule": "", "source": ""}) == f"denied: {call}, no person can be asked"
    assert decided(decision | {"rule": "", "source": "remembered"}) == f"denied: {call}, remembered"


# While a reply is awaited

PROMPT = "allow, always or deny? "


class Agent:
    """An agent of a session that claims the next message when a test lets it."""

    def __init__(self, client: Client, session: str, claim: "Future[Claim | None]") -> None:
        self.client = client
        self.session = session
        self._claim = claim

    @property
    def claim(self) -> Claim:
        claim = self._claim.result()
        assert claim is not None
        return claim

    def ask(self, text: str) -> str:
        """Ask whether a command may run; return the id of the question."""
        return self.client.call(api.ask(self.session, self.claim.claim, text)).id

    def answer_to(self, question: str) -> str | None:
        """Wait for the answer."""
        return self.client.call(api.question(self.session, question, wait=60)).answer

    def finish(self) -> None:
        """End the turn."""
        self.client.call(api.finish(self.session, self.claim.turn, AgentFinish(claim=self.claim.claim, reply="done")))


@contextmanager
def agent(harness: HttpHarness, session: str) -> Iterator[Agent]:
    """Wait for the next message of a session as its agent."""
    with Client(harness.url) as client, ThreadPoolExecutor(1) as pool:
        client.call(api.create(session, SettingsPatch(driver="agent")))
        claim = pool.submit(client.call, api.claim(session, lease=3_600, wait=60))
        harness.wait_until(lambda: harness.server.store.get(session).has_agent)
        yield Agent(client, session, claim)


def test_send_puts_a_question_to_the_user_and_goes_on(http_harness: HttpHarness) -> None:
    """What was typed before the question is no answer, nor is a word that is no choice."""
    with agent(http_harness, "main") as main, terminal(http_harness.url, "send", "main", "build it") as screen:
        assert main.claim.message.content == "build it"
        screen.line("allow")
        question = main.ask("make all")
        before = screen.expect(PROMPT)
        assert "no agent attached" not in before
        assert f"main {question[:8]}: run this command?\r\n  | make all" in before
        screen.line("al")
        screen.expect(PROMPT)
        screen.line("den")
        assert main.answer_to(question) == "deny"
        main.finish()
        code, rest = screen.end()
        assert (code, rest.strip()) == (0, "done")


def test_a_question_of_a_sub_agent_is_put_to_the_user_of_the_root(http_harness: HttpHarness) -> None:
    with agent(http_harness, "main") as main, terminal(http_harness.url, "send", "main", "build it") as screen:
        assert main.claim.session == "main"
        coder = held(main.client, "main/coder")
        question = main.client.call(api.ask("main/coder", coder.claim, "make all"))
        assert f"main/coder {question.id[:8]}: run this command?" in screen.expect(PROMPT)
        screen.line("always")
        assert main.client.call(api.question("main/coder", question.id, wait=60)).answer == "always"
        main.finish()
        assert screen.end()[0] == 0


def test_a_question_that_is_answered_elsewhere_is_dropped(http_harness: HttpHarness) -> None:
    with agent(http_harness, "main") as main, terminal(http_harness.url, "send", "main", "build it") as screen:
        question = main.ask("make all")
        screen.expect(PROMPT)
        main.client.call(api.answer("main", question, "deny"))
        screen.expect("[answered elsewhere: deny]")
        main.finish()
        assert screen.end()[0] == 0


def test_a_user_may_decline_to_answer_here(http_harness: HttpHarness) -> None:
    with agent(http_harness, "main") as main, terminal(http_harness.url, "send", "main", "build it") as screen:
        question = main.ask("make all")
        screen.expect(PROMPT)
        screen.type(CTRL_D)
        screen.expect(f"cfs answer main {question[:8]} allow (or always, deny)]")
        main.client.call(api.answer("main", question, "allow"))
        main.finish()
        assert screen.end()[0] == 0


def test_an_answer_that_comes_while_send_ends_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wake the thread that asks when that has ended already."""
    wake = TerminalQuestions._wake

    def wake_late(questions: TerminalQuestions) -> None:
        wake(questions)
        assert questions._thread is not None
        questions._thread.join()
        wake(questions)

    monkeypatch.setattr(TerminalQuestions, "_wake", wake_late)
    master, slave = pty.openpty()
    with os.fdopen(master), os.fdopen(slave) as terminal_of_user, Client("http://127.0.0.1:9") as client:
        monkeypatch.setattr(sys, "stdin", terminal_of_user)
        monkeypatch.setattr(sys, "stderr", terminal_of_user)
        with TerminalQuestions(client, "main") as questions:
            pass
        questions._wake()


def test_ctrl_c_at_a_question_ends_send_and_leaves_the_question_open(http_harness: HttpHarness) -> None:
    with agent(http_harness, "main") as main, terminal(http_harness.url, "send", "main", "build it") as screen:
        question = main.ask("make all")
        screen.expect(PROMPT)
        screen.type(CTRL_C)
        code, rest = screen.end()
        assert (code, "Traceback" in rest, "cfs cat main" in rest) == (130, False, True)
        assert [each.id for each in main.client.call(api.questions("main"))] == [question]


def test_without_a_terminal_send_says_how_to_answer(http_harness: HttpHarness) -> None:
    """It does not wait for what nobody may ever say. The turn goes on, and its reply can be read."""
    with agent(http_harness, "main") as main, Running(http_harness.url, "send", "main", "build it") as program:
        question = main.ask("make all")
        command = f"cfs answer main {question[:8]} allow (or always, deny)"
        line = f"cfs: main asks whether to run this command 'make all': {command}; "
        assert program.end() == (5, "", f"{line}then: cfs cat main\n")
        assert cfs(http_harness.url, "answer", "main", question[:8], "allow").returncode == 0
        main.finish()


def test_chat_puts_a_question_to_the_user_between_two_prompts(http_harness: HttpHarness) -> None:
    with agent(http_harness, "main") as main, terminal(http_harness.url, "chat", "main") as screen:
        screen.expect("> ")
        screen.line("build it")
        question = main.ask("make all")
        screen.expect(PROMPT)
        screen.line("allow")
        assert main.answer_to(question) == "allow"
        main.finish()
        screen.expect("done\r\n")
        screen.expect("> ")
        screen.line("/quit")
        assert screen.end()[0] == 0
    assert [message.content for message in http_harness.server.store.get("main").history.messages] == [
        "build it",
        "done",
    ]


def test_a_piped_chat_says_how_to_answer(http_harness: HttpHarness) -> None:
    with agent(http_harness, "main") as main, ThreadPoolExecutor(1) as pool:
        chat = pool.submit(cfs, http_harness.url, "chat", "main", data=b"build it\n")
        main.ask("make all")
        code, output, errors = ended(chat.result())
        assert (code, output, errors.count("\n"), "cfs answer main" in errors) == (5, "", 1, True)


def test_an_agent_that_leaves_is_missed(http_harness: HttpHarness) -> None:
    """A message that the attached agent does not take is announced as one without an agent."""
    with Client(http_harness.url) as client, agent(http_harness, "main") as main:
        client.call(api.post("main", NewMessage(content="one")))
        main.finish()
        client.call(api.post("main", NewMessage(content="two")))
        with closing(client.events(api.events("main", after="0"))) as events:
            waiting = (event.data for event in events if event.data.get("state") == "waiting_for_agent")
            assert [next(waiting).get("detail") for _ in range(3)] == [None, None, "no agent attached"]
