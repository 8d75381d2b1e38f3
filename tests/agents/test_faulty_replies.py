"""Replies that are no use, malformed calls and loops of words: told to the model, and never an answer (A7)."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

from cfs.errors import EngineError
from cfs.transports.async_http import AsyncClient
from cfs_agents import AgentConfig
from cfs_agents.events import Retrying, Warned
from cfs_agents.loop.agent import Agent
from cfs_agents.loop.config import Outcome
from cfs_agents.model import ServerModel
from cfs_agents.testing import Line, ScriptedModel, calls, cut_off, garbles, says, together
from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from tests.agents.fibre.trees import ScriptedModels, spawn, tree, wait
from tests.agents.file_agent.support import agent, events_of
from tests.server.support import running_server, until

RIGHT = '{"number": 1}'
LOOP = "I will look at the file now. "


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def plain(*script: Line) -> tuple[Agent, ScriptedModel]:
    """Make an agent without a directory."""
    model = ScriptedModel(script)
    return Agent(llm=model, config=AgentConfig(tools=[double], offload_enabled=False)), model


MALFORMED = {
    "broken JSON": '<tool_call>{"name": "double", "arguments": {"number": }}</tool_call>',
    "cut off": 'I double it.\n<tool_call>{"name": "double", "arguments": {"num',
    "no JSON": "<tool_call>double(4)</tool_call>",
    "a mark alone": "<tool_call>",
    "of Mistral": '[TOOL_CALLS][{"name": "double", "arguments": {"number": 4]',
    "of transcripts": "[CALL:double(number=)]",
    "of Llama": '<|python_tag|>{"name": "double", "parameters": {"number": 4',
    "of functions": "<function=double><parameter=number>4",
    "without a mark": '{"name": "double", "arguments": {"number": 4',
    "in a fence": '```json\n{"name": "double", "arguments": {"number": 4',
}
WORDS = {
    "backticks": "A call begins with `<tool_call>` and ends with `</tool_call>`.",
    "other JSON": '{"name": "Ada", "age": 36}',
    "a comparison": "if a <tool_calls and b> c: pass",
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_call_that_cannot_be_read_is_an_error_for_the_model(kind: str) -> None:
    """It reads what is wrong and how it is done, and does it right."""
    made, model = plain(says(MALFORMED[kind]), calls("double", number=4), says("It is 8."))
    outcome = await made.query("Twice four?")
    assert (outcome.text, outcome.rounds) == ("It is 8.", 3)
    told = model.asked[1].last
    assert told.role == "tool"
    assert told.content.startswith("Error: the call cannot be read: ")
    assert kind == "a mark alone" or f"The right form of double: {RIGHT}" in told.content
    (call,) = model.asked[1].messages[-2].tool_calls
    assert call.id == told.tool_call_id
    assert model.asked[2].last.content == "8"


@pytest.mark.parametrize("kind", WORDS)
async def test_words_about_calls_are_words(kind: str) -> None:
    made, _ = plain(says(WORDS[kind]))
    assert (await made.query("How does it work?")).text == WORDS[kind]


async def test_without_tools_there_are_no_calls() -> None:
    made = Agent(llm=ScriptedModel([says("<tool_call>{")]), config=AgentConfig(offload_enabled=False))
    assert (await made.query("Say it.")).text == "<tool_call>{"


async def test_what_was_said_before_it_stays() -> None:
    """The call leaves the text; calls that can be read are run all the same."""
    half = '<tool_call>{"name": "double", "arguments": {'
    made, model = plain(together(says(f"I double it. {half}"), calls("double", number=4)), says("8."))
    assert (await made.query("Twice four?")).over
    before, good, bad = model.asked[1].messages[-3:]
    assert before.content == "I double it."
    assert good.content == "8"
    assert bad.content.startswith("Error: the call cannot be read: it is no JSON")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (says(MALFORMED["broken JSON"]), "the call cannot be read: it is no JSON: Expecting value"),
        (garbles("double", '{"number": '), "the arguments are no JSON object: Expecting value"),
        (calls("triple", number=4), "3 times in a row"),
        (together(calls("triple", number=4), garbles("double", "4")), "this is a int"),
    ],
)
async def test_the_third_in_a_row_is_the_end(line: Line, reason: str) -> None:
    """Two times it is told; a good one in between begins the count anew."""
    made, model = plain(line, line, calls("double", number=1), line, line, line, says("Well."))
    outcome = await made.query("Do it.")
    assert (outcome.reason, len(model.asked)) == ("failed", 6)
    assert isinstance(outcome.error, EngineError)
    assert "the model called tools in a way that cannot be carried out 3 times in a row" in outcome.detail
    assert reason in outcome.detail
    assert (await made.query("And now?")).text == "Well.", "the conversation holds together"
    model.check_finished()


async def test_an_unknown_tool_is_told_with_the_right_form_of_the_nearest() -> None:
    made, model = plain(calls("doubles", number=4), says("No."))
    await made.query("Twice four?")
    assert model.asked[1].last.content == (
        "Error: there is no tool 'doubles', did you mean 'double'? (there are: double)."
        f" The right form of double: {RIGHT}"
    )


async def test_a_child_that_cannot_call_fails_with_the_reason(tmp_path: Path) -> None:
    """As any agent does; its parent reads why."""
    bad = says('<tool_call>{"name": "write_file", "arguments": {"path": ')
    scripted = ScriptedModels(main=[spawn("child"), wait("child"), says("I know.")], child=[bad, bad, bad])
    async with tree(tmp_path, scripted) as made:
        assert (await made.run("work")).ok
        report = made.agents["child"].report
    assert report is not None
    assert report.status == "failed"
    assert "cannot be carried out 3 times in a row: the call cannot be read" in report.reasons[0]
    scripted.check_finished()


async def test_it_outlives_its_process(tmp_path: Path) -> None:
    """What the model wrote, and what it was told, are in the journal."""
    made, _ = agent(tmp_path, says('<tool_call>{"name": "list_directory", '), says(""), says(""), says(""))
    async with made:
        assert (await made.run("List.")).reason == "failed"
    again, model = agent(tmp_path, says("Nothing there."))
    async with again:
        assert (await again.resume()).over
    assert "the call cannot be read" in model.asked[0].last.content


# -- through a server -------------------------------------------------------------------------------------------------


async def served(*replies: Iterable[str | Delta]) -> tuple[Outcome, list[GenerationRequest]]:
    """Let an agent work whose model is a script behind a real server."""
    left = iter(replies)
    async with running_server(lambda _: next(left)) as server, AsyncClient(server.url) as client:
        made = Agent(llm=ServerModel(client), config=AgentConfig(tools=[double], offload_enabled=False))
        outcome = await made.query("Twice four?")
        await until(lambda: not server.engine._running)
        return outcome, server.engine.requests


CALL = '<tool_call>{"name": "double", "arguments": {"number": 4}}</tool_call>'


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_server_passes_it_on_and_it_is_told(kind: str) -> None:
    """Whether it comes as text or as a call."""
    outcome, asked = await served([*MALFORMED[kind]], [CALL], ["It is 8."])
    assert outcome.text == "It is 8."
    assert asked[1].messages[-1].role == "tool"
    assert "Error: " in asked[1].messages[-1].content


@pytest.mark.parametrize(
    "reply",
    [
        [Delta("", 1, calls=(CallDelta(0, "c1", "double", '{"number": '),))],
        ['<tool_call>{"name": "triple", "arguments": {}}</tool_call>'],
        ["<tool_call>{double}</tool_call>"],
    ],
)
async def test_behind_a_server_too_the_third_is_the_end(reply: list[str | Delta]) -> None:
    outcome, asked = await served(reply, reply, reply)
    assert (outcome.reason, len(asked)) == ("failed", 3)
    assert "3 times in a row" in outcome.detail


async def test_an_empty_reply_behind_a_server_is_asked_for_again() -> None:
    outcome, asked = await served([" "], [CALL], [], [], ["It is 8."])
    assert (outcome.text, outcome.rounds, len(asked)) == ("It is 8.", 2, 5)


# -- loops of words ---------------------------------------------------------------------------------------------------


async def test_a_reply_that_repeats_itself_is_stopped_and_asked_for_once_more() -> None:
    """What was streamed counts for nothing; nothing of it comes into the conversation."""
    model = ScriptedModel([says("Well. " + LOOP * 500), calls("double", number=4), says("8.")], cut=5)
    made = Agent(llm=model, config=AgentConfig(tools=[double], offload_enabled=False))
    events = [event async for event in made.run_stream("Twice four?")]
    assert made.outcome.text == "8."
    assert Retrying("the reply repeated itself", 0.0) in events
    assert any("repeated itself" in event.text for event in events if isinstance(event, Warned))
    assert (
        model.asked[1].last.content == "[Your reply repeated itself and was stopped. Answer shorter, or call a tool.]"
    )
    assert LOOP not in str(model.asked[2].messages)


@pytest.mark.parametrize("line", [says(LOOP * 500), says("", thinking=LOOP * 500)])
async def test_the_second_one_is_the_end(line: Line) -> None:
    """Thoughts that go round in circles are no better."""
    model = ScriptedModel([line, line, says("Well.")], cut=5)
    made = Agent(llm=model, config=AgentConfig(tools=[double], offload_enabled=False))
    outcome = await made.query("Twice four?")
    assert (outcome.reason, len(model.asked)) == ("failed", 2)
    assert outcome.detail == "the model's reply repeated itself and was stopped, 2 times in a row"
    assert (await made.query()).text == "Well."


async def test_a_loop_that_was_cut_off_is_not_gone_on_with() -> None:
    """Also where its parts are short: what they make together is looked at."""
    part = cut_off(says(LOOP * 3))
    made, model = plain(part, part, part, part, says("Well."))
    assert (await made.query("Twice four?")).reason == "failed"
    assert len(model.asked) < 5
    made, model = plain(cut_off(says("Well. " + LOOP * 20)), says("8."))
    assert (await made.query("Twice four?")).text == "8."
    assert "repeated itself" in model.asked[1].last.content


async def test_the_server_stops_generating_it() -> None:
    """A model that would go on for ever is cancelled with the stream."""

    def forever() -> Iterator[str]:
        yield from repeat(LOOP)

    outcome, asked = await served(forever(), ["It is 8."])
    assert (outcome.text, len(asked)) == ("It is 8.", 2)


async def test_a_file_agent_says_so(tmp_path: Path) -> None:
    """To a person, as a warning; what is resumed begins a new count."""
    made, _ = agent(tmp_path, says(LOOP * 500), says(LOOP * 500), says(LOOP * 500), says("Well."))
    async with made:
        await events_of(made, "Do it.")
        assert made.outcome.reason == "failed"
        assert (await made.resume()).text == "Well."
        assert any("repeated itself" in warning for warning in made.warnings)
