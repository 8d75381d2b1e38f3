"""The models of CFS in `llm`, by its command line and its Python API, against a real server (C11)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import llm
import pytest
from click.testing import CliRunner, Result
from llm.cli import cli

from cfs import NotFound, Session, api
from cfs.transports.http import Client
from pytest_cfs import Asked, Reply, ScriptedServer


@pytest.fixture(autouse=True)
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the logs and keys of `llm`."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Result:
    """Run a command of `llm` in this process."""
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=True)


def said(*arguments: str) -> str:
    """Run a command that must succeed, and return what it prints."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def sessions(server: ScriptedServer) -> list[str]:
    """The names of all sessions."""
    with Client(server.url) as client:
        return [info.id for info in client.call(api.list_sessions()).sessions]


def transcript(server: ScriptedServer, session: str) -> str:
    """What `cat` shows of a session."""
    with Client(server.url) as client:
        return client.call(api.transcript(session, 10)).text


@pytest.mark.external
def test_the_program_itself_finds_the_plugin(cfs_server: ScriptedServer) -> None:
    program = Path(sys.executable).with_name("llm")
    command = [sys.executable, "-m", "llm"] if not program.exists() else [str(program)]
    done = subprocess.run([*command, "-m", "cfs", "hi there"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "hi there"), done.stderr


@pytest.mark.feature("llm", "sessions", "chat")
def test_a_prompt_is_a_session(cfs_server: ScriptedServer) -> None:
    assert said("-m", "cfs", "hello") == "hello"
    (session,) = sessions(cfs_server)
    assert session.startswith("llm-")
    assert transcript(cfs_server, session) == "User: hello\nAssistant: hello\n"


@pytest.mark.feature("llm", "sessions", "resume")
def test_a_continued_conversation_is_the_same_session(cfs_server: ScriptedServer) -> None:
    """`llm -c` sends the new message only; the server knows the others."""
    said("-m", "cfs", "-s", "Be brief.", "one")
    said("-c", "two")
    (session,) = sessions(cfs_server)
    assert transcript(cfs_server, session) == "User: one\nAssistant: one\nUser: two\nAssistant: two\n"
    assert [asked.settings.system for asked in cfs_server.asked] == ["Be brief.", "Be brief."]


def test_the_option_session_names_one_which_stays_that_of_the_conversation(cfs_server: ScriptedServer) -> None:
    """What others have written there is a part of the conversation."""
    cfs_server.session("main").send("Before.")
    said("-m", "cfs", "-o", "session", "main", "one")
    cfs_server.session("main").send("Between.")
    said("-c", "two")
    assert sessions(cfs_server) == ["main"]
    users = [message.content for message in cfs_server.asked[-1].messages if message.role == "user"]
    assert users == ["Before.", "one", "Between.", "two"]


def test_a_conversation_with_another_model_is_told_to_the_session(cfs_server: ScriptedServer) -> None:
    """The first prompt for CFS brings what was said before."""
    model = llm.get_model("cfs")
    before = [llm.user("What is 2+2?"), llm.assistant("Four.")]
    assert model.prompt("And 3+3?", messages=before).text() == "And 3+3?"
    (session,) = sessions(cfs_server)
    assert transcript(cfs_server, session) == (
        "User: What is 2+2?\nAssistant: Four.\nUser: And 3+3?\nAssistant: And 3+3?\n"
    )


def test_a_session_that_was_deleted_is_not_begun_again_by_mistake(cfs_server: ScriptedServer) -> None:
    said("-m", "cfs", "-o", "session", "main", "one")
    cfs_server.session("main").delete()
    cfs_server.session("main").send("Another conversation.")
    result = run("-c", "two")
    assert result.exit_code == 1
    assert "main" in str(result.exception) + result.output
    assert transcript(cfs_server, "main") == "User: Another conversation.\nAssistant: Another conversation.\n"


@pytest.mark.feature("llm", "sessions", "stop")
def test_options_are_settings_of_the_turn(cfs_server: ScriptedServer) -> None:
    options = ["temperature", "0", "max_tokens", "3", "seed", "7", "stop", "END"]
    flags = [flag for pair in zip(options[::2], options[1::2], strict=True) for flag in ("-o", *pair)]
    assert said("-m", "cfs", *flags, "one two three four") == "one two three"
    settings = cfs_server.asked[0].settings
    assert (settings.temperature, settings.seed, settings.stop) == (0.0, 7, ("END",))


@pytest.mark.parametrize(("option", "value"), [("temperature", "hot"), ("max_tokens", "0"), ("sesion", "main")])
def test_a_wrong_option_is_named_and_nothing_is_sent(cfs_server: ScriptedServer, option: str, value: str) -> None:
    result = run("-m", "cfs", "-o", option, value, "hi")
    assert result.exit_code == 1
    assert option in result.output
    assert sessions(cfs_server) == []


def test_a_wrong_name_of_a_session_is_refused(cfs_server: ScriptedServer) -> None:
    with pytest.raises(llm.ModelError, match=r"must not begin with '\.'"):
        llm.get_model("cfs").prompt("hi", session=".hidden").text()


@pytest.mark.feature("llm", "sessions", "stream")
def test_a_reply_comes_piece_by_piece(cfs_server: ScriptedServer) -> None:
    cfs_server.reply("one two three")
    cfs_server.hold()
    pieces = iter(llm.get_model("cfs").prompt("count"))
    cfs_server.step()
    assert next(pieces) == "one"
    cfs_server.release()
    assert "".join(pieces) == " two three"


@pytest.mark.feature("llm", "sessions", "usage")
def test_thinking_and_usage_are_noted(cfs_server: ScriptedServer) -> None:
    cfs_server.reply(Reply("Yes.", thinking="Hm."))
    response = llm.get_model("cfs").prompt("Is it?")
    assert response.text() == "Yes."
    assert [type(part).__name__ for part in response.messages()[0].parts] == ["ReasoningPart", "TextPart"]
    assert (response.usage().input, response.usage().output) == (2, 2)
    assert response.json()["finish_reason"] == "stop"


@pytest.mark.feature("llm", "sessions", "tools")
def test_tools_run_and_their_results_go_to_the_session(cfs_server: ScriptedServer) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    cfs_server.reply(
        Reply(calls=[("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]),
        lambda asked: " and ".join(message.content for message in asked.messages if message.role == "tool"),
    )
    conversation = llm.get_model("cfs").conversation(tools=[add])
    assert conversation.chain("Add.").text() == "3 and 7"
    assert cfs_server.asked[0].tools == ("add",)
    (session,) = sessions(cfs_server)
    assert transcript(cfs_server, session) == (
        "User: Add.\nAssistant: [CALL:add(a=1, b=2)]\n[CALL:add(a=3, b=4)]\nTool: 3\nTool: 7\nAssistant: 3 and 7\n"
    )


def test_a_tool_by_the_command_line(cfs_server: ScriptedServer) -> None:
    cfs_server.reply(Reply(calls=[("llm_version", {})]), lambda asked: f"It is {asked.messages[-1].content}")
    assert said("-m", "cfs", "-T", "llm_version", "Which version?").startswith("It is 0.")


@pytest.mark.feature("llm", "sessions", "schema")
def test_a_schema_reaches_the_engine(cfs_server: ScriptedServer) -> None:
    cfs_server.reply('{"name": "Rex", "age": 3}')
    assert json.loads(said("-m", "cfs", "--schema", "name str, age int", "Invent a dog.")) == {"name": "Rex", "age": 3}
    schema = cfs_server.asked[0].json_schema
    assert schema is not None
    assert schema["properties"]["name"]["type"] == "string"


async def test_the_model_with_coroutines(cfs_server: ScriptedServer) -> None:
    model = llm.get_async_model("cfs")
    conversation = model.conversation()
    assert [piece async for piece in conversation.prompt("one two")] == ["one", " two"]
    assert await conversation.prompt("three").text() == "three"
    assert sessions(cfs_server) == [f"llm-{conversation.id}"]


def test_the_models_of_the_server_are_listed(cfs_server: ScriptedServer) -> None:
    assert "cfs/scripted" in said("models", "list")
    response = llm.get_model("cfs/scripted").prompt("hi")
    assert response.text() == "hi"
    assert response.resolved_model == "scripted"


@pytest.mark.feature("llm", "sessions", "error")
def test_a_failed_turn_is_an_error(cfs_server: ScriptedServer) -> None:
    cfs_server.reply(Reply("Half", error="out of memory"))
    with pytest.raises(llm.ModelError, match="out of memory"):
        llm.get_model("cfs").prompt("hi").text()


@pytest.mark.server
def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`llm` itself works without it."""
    monkeypatch.setenv("CFS_URL", "http://127.0.0.1:9")
    assert [model.model_id for model in llm.get_models() if model.model_id.startswith("cfs")] == ["cfs"]
    with pytest.raises(llm.ModelError, match=r"no server answers at http://127\.0\.0\.1:9"):
        llm.get_model("cfs").prompt("hi").text()


def test_a_key_is_the_token(cfs_server: ScriptedServer, own_logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order: given, stored, `CFS_TOKEN`; none is fine."""
    model = llm.get_model("cfs")
    assert model.get_key() is None
    monkeypatch.setenv("CFS_TOKEN", "from the environment")
    assert model.get_key() == "from the environment"
    (own_logs / "keys.json").write_text(json.dumps({"cfs": "stored"}))
    assert model.get_key() == "stored"
    assert model.get_key("given") == "given"


def test_an_empty_prompt_is_refused(cfs_server: ScriptedServer) -> None:
    with pytest.raises(llm.ModelError, match="nothing to answer"):
        llm.get_model("cfs").prompt("").text()
    with pytest.raises(NotFound):
        Session.from_file("llm-x", url=cfs_server.url)
    assert sessions(cfs_server) == []
    assert os.environ["CFS_URL"] == cfs_server.url


def test_settings_of_a_session_stay_when_the_prompt_has_none(cfs_server: ScriptedServer) -> None:
    with cfs_server.session("main") as session:
        session.configure(temperature=0.1, system="You are a cat.")
    heard: list[Asked] = cfs_server.asked
    said("-m", "cfs", "-o", "session", "main", "hi")
    assert (heard[0].settings.temperature, heard[0].settings.system) == (0.1, "You are a cat.")
