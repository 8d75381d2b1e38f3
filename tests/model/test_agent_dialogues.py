"""What the embedded model learns of agents: that it is what agents send, and what is computed from it (E5)."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from jinja2 import Environment, nodes

from cfs_agents.base.messages import Language, after_sync
from cfs_agents.tools.paths import CONTEXT_WINDOW, GUIDELINE
from cfs_agents.tree.directory import default
from cfs_agents.tree.fibre_rules import short_part
from cfs_agents.tree.prompts import file_agent_prompt
from cfs_server.engine.chat.chat_template import ChatTemplate
from demo_model.agent_jobs import MAKERS
from demo_model.agent_life import Lives
from demo_model.averaging import average
from demo_model.batches import IGNORED, Mix, batches, encode
from demo_model.chat_format import CHAT_TEMPLATE, TOOL_CALL, TOOL_CALL_END, chat_prompt
from demo_model.dialogues import SYSTEM, Dialogue
from demo_model.reading import read_vocabulary, read_weights

SHIPPED = Path(__file__).resolve().parents[2] / "server" / "cfs_server" / "models" / "cfs-demo.gguf"
LEARNED = "dc9b8e7df44a5e0f"
"""Of the words that agents are trained on: weights that were trained for them fit no others."""


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    here = Lives(trees=0.3)
    yield here
    here.close()


@pytest.fixture(scope="module")
def drawn(lives: Lives) -> list[Dialogue]:
    rng = Random(5)
    return [dialogue for _ in range(40) for dialogue in lives.draw(rng)]


def words_of_agents() -> Iterator[str]:
    """All that the runtime itself says to an agent before its first task, and after a sync."""
    languages: tuple[Language, ...] = ("en", "zh")
    for language in languages:
        guideline, window = default(GUIDELINE, language), default(CONTEXT_WINDOW, language)
        yield file_agent_prompt(guideline, window, "/workspace/", language, CONTEXT_WINDOW)
        yield after_sync(language, ())
        yield from (short_part(language, may_spawn=leads) for leads in (True, False))


def test_the_words_are_those_that_training_was_made_for() -> None:
    """Who changes a prompt has to train on it (docs/development.md), and then writes the new digest here."""
    digest = hashlib.sha256("\0".join(words_of_agents()).encode()).hexdigest()
    assert digest[:16] == LEARNED


def test_training_is_on_the_words_of_the_agents(drawn: list[Dialogue]) -> None:
    """Every dialogue begins with a prompt of a real agent."""
    heads = (
        *(default(GUIDELINE, language).strip() for language in ("en", "zh")),
        *(short_part(language, may_spawn=leads) for language in ("en", "zh") for leads in (True, False)),
    )
    for one in drawn:
        assert one.messages[0].role == "system"
        assert any(head in one.messages[0].content for head in heads)
        assert one.messages[-1].role == "assistant"


def test_some_dialogues_have_a_short_prompt() -> None:
    """All but those in which the agent copies from its prompt."""
    lives, rng = Lives(bare=1.0), Random(6)
    try:
        drawn = [one for _ in range(40) for one in lives.draw(rng)]
    finally:
        lives.close()
    short = [one for one in drawn if one.messages[0].content in SYSTEM]
    whole = [one for one in drawn if one not in short]
    assert len(short) > len(whole) > 0
    for one in whole:
        assert any(message.call and message.call.name == "sync_context" for message in one.messages)


def test_the_server_writes_the_prompts_that_were_learned(drawn: list[Dialogue]) -> None:
    """Its renderer makes the same text of messages and tools, letter by letter."""
    template = ChatTemplate(CHAT_TEMPLATE, begin_text="", end_text="")
    for one in drawn:
        messages = list(one.messages[:-1])
        rendered = template.render([each.as_dict() for each in messages], [tool.as_dict() for tool in one.tools])
        assert rendered == chat_prompt(messages, one.tools)


def test_the_template_keeps_to_what_every_engine_has() -> None:
    """No filters but two, no tests but two: small implementations of Jinja lack others."""
    tree = Environment(autoescape=False).parse(CHAT_TEMPLATE)  # noqa: S701 - it writes no HTML
    assert {node.name for node in tree.find_all(nodes.Filter)} == {"items", "tojson"}
    assert {node.name for node in tree.find_all(nodes.Test)} == {"defined", "string"}


def test_every_kind_of_task_is_drawn(lives: Lives) -> None:
    """And what an agent calls is called by the names that it has been told."""
    rng = Random(6)
    called = set()
    for _ in range(40):
        for one in lives.draw(rng):
            names = {tool.name for tool in one.tools}
            calls = [message.call for message in one.messages if message.call]
            assert {call.name for call in calls} <= names
            called |= {call.name for call in calls}
    assert called >= {"read_file", "write_file", "list_directory", "search_files", "sync_context", "execute_command"}
    assert called >= {"sys_spawn_agent", "sys_wait_agent", "sys_finish_task"}
    assert len(MAKERS) > 8


def test_calls_are_written_as_the_server_reads_them(drawn: list[Dialogue]) -> None:
    """Between their marks, on one line."""
    for one in drawn:
        for message in one.messages:
            if message.call:
                text = message.text()
                assert text.startswith(TOOL_CALL)
                assert text.endswith(TOOL_CALL_END)
                assert "\n" not in text


def test_what_sequences_have_in_common_is_taken_out_once(lives: Lives) -> None:
    """Batches hold the same ids and targets as the dialogues do."""
    encoder = read_vocabulary(SHIPPED).encoder()
    rng = Random(7)
    drawn = [one for _ in range(24) for one in lives.draw(rng)]
    wanted = sorted((tuple(ids), tuple(targets)) for ids, targets in encode(encoder, drawn) if len(ids) <= 2048)
    source = batches(encoder, Random(7), 4096, Mix(0, 0, agents=1), 2048, _Same(drawn), pool=1)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    shared = 0
    while len(found) < len(wanted):
        batch = next(source)
        shared = max(shared, len(batch.shared))
        for ids, targets in zip(batch.ids, batch.targets, strict=True):
            length = int(np.nonzero(targets != IGNORED)[0][-1]) + 1
            whole = (*batch.shared.tolist(), *ids.tolist())
            found.append((whole, (*[IGNORED] * len(batch.shared), *targets[:length].tolist())))
    assert shared > 150
    for (ids, targets), (whole, some) in zip(wanted, sorted(found), strict=True):
        assert whole[: len(ids)] == ids
        assert targets[: len(some)] == some


class _Same(Lives):
    """Draws what it is given."""

    def __init__(self, dialogues: list[Dialogue]) -> None:
        self._dialogues = dialogues

    def draw(self, rng: Random) -> list[Dialogue]:  # noqa: ARG002 - the signature is the base's
        return self._dialogues


def test_the_mean_of_models_is_between_them(tmp_path: Path) -> None:
    """Of one model it is the model; another vocabulary is refused."""
    out = tmp_path / "mean.gguf"
    average([SHIPPED, SHIPPED], out)
    mean, shipped = read_weights(out), read_weights(SHIPPED)
    assert mean.keys() == shipped.keys()
    assert all(np.array_equal(mean[name], shipped[name]) for name in mean)
    assert read_vocabulary(out) == read_vocabulary(SHIPPED)
