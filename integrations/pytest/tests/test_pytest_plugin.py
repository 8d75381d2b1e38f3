"""The pytest plugin, as the tests of other people use it: another pytest runs them in a folder of their own (C11)."""

import subprocess
import sys

import httpx
import pytest

from cfs import EngineError, FunctionTool, Session
from cfs.transports.http import Client
from pytest_cfs import Asked, Reply, ScriptedServer

PLUGIN = ("-p", "pytest_cfs.plugin", "-p", "no:cacheprovider")


def outcome(pytester: pytest.Pytester, code: str, *, apart: bool = False, **counts: int) -> pytest.RunResult:
    """Run a file of tests, in a process of its own if `apart`, and compare how they ended."""
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(code)
    run = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
    result = run(*PLUGIN)
    result.assert_outcomes(**counts)
    return result


@pytest.mark.server
def test_the_fixtures_of_a_program_that_uses_sessions(pytester: pytest.Pytester) -> None:
    """Each test has a server without sessions; what it scripts is gone in the next."""
    outcome(
        pytester,
        """
        import os
        from cfs import Session, api
        from cfs.transports.http import Client

        def summarize(text):
            with Session("summary") as session:
                return session.send(f"Summarize: {text}").text

        def test_a_summary(cfs_server):
            cfs_server.reply("It is short.")
            assert summarize("A long text.") == "It is short."
            assert cfs_server.asked[0].messages[-1].content == "Summarize: A long text."
            with Client(cfs_server.url) as client:
                client.call(api.write_file("/workspaces/summary/a.txt", b"1"))

        def test_the_next_one_finds_nothing(cfs_server):
            with Client() as client:
                assert client.call(api.list_sessions()).sessions == ()
                assert client.call(api.files()).files == ()
            assert cfs_server.asked == []
            assert summarize("Words.") == "Summarize: Words."

        def test_a_session(cfs_session):
            assert cfs_session.send("one two").text == "one two"

        def test_without_a_server():
            assert "CFS_URL" not in os.environ
        """,
        passed=4,
    )


@pytest.mark.external
def test_a_run_without_our_fixtures_imports_nothing(pytester: pytest.Pytester) -> None:
    """The plugin is loaded in every run of everyone who has installed CFS, so it may cost nothing there."""
    outcome(
        pytester,
        """
        import sys

        def test_imports():
            loaded = {name.split(".")[0] for name in sys.modules}
            assert "pytest_cfs" in loaded
            assert loaded.isdisjoint({"cfs", "cfs_server", "httpx", "pydantic", "uvicorn"})
        """,
        apart=True,
        passed=1,
    )


@pytest.mark.external
def test_a_missing_extra_is_named(pytester: pytest.Pytester) -> None:
    """Other tests of the run are not disturbed."""
    result = outcome(
        pytester,
        """
        import sys
        import pytest

        @pytest.fixture
        def no_server(monkeypatch):
            monkeypatch.setitem(sys.modules, "pydantic_settings", None)

        def test_other():
            pass

        def test_server(no_server, request):
            request.getfixturevalue("cfs_server")
        """,
        apart=True,
        passed=1,
        failed=1,
    )
    result.stdout.fnmatch_lines(["*pip install 'cfs-local*server*'*"])


@pytest.mark.server
def test_no_setting_of_the_user_applies(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own server and its token do not leak into tests."""
    monkeypatch.setenv("CFS_TOKENS", "/nowhere/tokens.toml")
    monkeypatch.setenv("CFS_TOKEN", "mine")
    monkeypatch.setenv("CFS_URL", "http://127.0.0.1:1")
    outcome(pytester, "def test_it(cfs_session): assert cfs_session.send('hi').text == 'hi'", passed=1)


def test_the_plugin_is_found_by_its_entry_point() -> None:
    """Its name there is that of its module, so that naming it twice loads it once."""
    program = (
        "from importlib.metadata import entry_points\n"
        "found = [each for each in entry_points(group='pytest11') if each.value == 'pytest_cfs.plugin']\n"
        "print([each.name for each in found])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['pytest_cfs.plugin']\n"


def test_replies_come_in_their_order_and_then_turns_fail(cfs_server: ScriptedServer, cfs_session: Session) -> None:
    cfs_server.reply("One.", "Two.")
    assert [cfs_session.send("a").text, cfs_session.send("b").text] == ["One.", "Two."]
    assert cfs_session.send("c").error == "the test has scripted 2 replies, and this turn needs one more"
    assert cfs_server.replies_left == 0


def test_a_function_answers_what_was_asked(cfs_server: ScriptedServer, cfs_session: Session) -> None:
    def count(asked: Asked) -> str:
        return f"{len(asked.messages)} messages at {asked.settings.temperature}"

    cfs_server.always_reply(count)
    assert cfs_session.send("a", settings={"temperature": 0.5}).text == "1 messages at 0.5"
    assert cfs_session.send("b").text == "3 messages at 0.7"


def test_a_function_that_raises_fails_the_turn_only(cfs_server: ScriptedServer, cfs_session: Session) -> None:
    cfs_server.reply(lambda asked: str(asked.tools[3]), "fine")
    assert "IndexError" in str(cfs_session.send("a").error)
    assert cfs_session.send("b").text == "fine"


def test_the_server_prints_nothing(
    cfs_server: ScriptedServer, cfs_session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a test captures is the output of its own program."""
    cfs_session.send("hi")
    assert capfd.readouterr() == ("", "")


def test_what_is_no_reply_is_refused(cfs_server: ScriptedServer) -> None:
    with pytest.raises(TypeError, match="not 7"):
        cfs_server.reply(7)  # type: ignore[arg-type]


def test_tools_are_called_and_their_results_asked_about(cfs_server: ScriptedServer, cfs_session: Session) -> None:
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    cfs_server.reply(
        Reply(thinking="Sums.", calls=[("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]),
        lambda asked: f"{asked.messages[-2].content} and {asked.messages[-1].content}",
    )
    assert cfs_session.send("1+2 and 3+4?", tools=[FunctionTool.of(add)]).text == "3 and 7"
    assert cfs_server.asked[0].tools == ("add",)


def test_a_turn_fails_as_scripted(cfs_server: ScriptedServer, cfs_session: Session) -> None:
    cfs_server.reply(Reply("Half of", error="out of memory"))
    pieces = cfs_session.stream("go")
    with pytest.raises(EngineError, match="out of memory"):
        list(pieces)
    assert pieces.text == "Half of"


def test_a_test_stops_in_the_middle_of_a_reply(cfs_server: ScriptedServer, cfs_session: Session) -> None:
    cfs_server.reply("one two three")
    cfs_server.hold()
    pieces = cfs_session.stream("count")
    cfs_server.step()
    assert next(pieces) == "one"
    cfs_session.cancel()
    cfs_server.release()
    assert "".join(pieces).endswith("[Cancelled]")


def test_programs_that_are_not_ours_reach_the_server(cfs_server: ScriptedServer) -> None:
    """It is a real one, so curl, OpenAI's clients and a browser do."""
    cfs_server.reply("Hello!")
    body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{cfs_server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
    with Client() as client:
        assert client.url == cfs_server.url
