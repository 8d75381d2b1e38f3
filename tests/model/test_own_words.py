"""The examination in own words, and that training never sees it (E5)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import demo_own_words
from demo_model import agent_phrases, names, open_tools, phrases, tool_phrases, variation
from demo_model.agent_jobs import MAKERS, Desk
from demo_model.batches import IGNORED, encode
from demo_model.chat_format import LOUD, QUIET, TOOL_CALL, Message, unmarked
from demo_model.dialogues import Dialogue, dialogue, language_of, open_work
from demo_model.extraction import structured
from demo_model.reading import read_vocabulary
from demo_model.scenes import Cast
from demo_model.tree_tasks import asked, parts_of
from demo_model.variation import Wordings, is_examined, typed, vary

SHIPPED = Path(__file__).resolve().parents[2] / "server" / "cfs_server" / "models" / "cfs-demo.gguf"


def said_in_training(count: int) -> Iterator[str]:
    """What users say in dialogues that training draws."""
    rng = Random(11)
    for index in range(count):
        made = open_work(rng, language_of(rng)) if index % 2 else dialogue(rng)
        yield from (message.content for message in made.messages if message.role in ("user", "system"))
        cast = Cast(rng, language_of(rng))
        yield rng.choice(list(MAKERS.values()))[1](cast, Desk()).task
        yield asked(cast, parts_of(cast, 1))


def examined() -> list[str]:
    """What people say in the examination."""
    found: list[str] = []
    for part in demo_own_words.PARTS:
        for item in demo_own_words.items(part):
            body = [each["content"] for each in item.get("body", {}).get("messages", ())]
            found += [*item.get("say", ()), *filter(None, (item.get("task"), item.get("system"))), *body]
    return found


class TestApart:
    def test_no_sentence_of_the_examination_is_trained_on(self) -> None:
        wanted = {re.sub(r"\W+", "", text).lower() for text in examined()}
        assert len(wanted) > 150
        assert not wanted & {re.sub(r"\W+", "", text).lower() for text in said_in_training(800)}

    def test_no_template_of_training_makes_one(self) -> None:
        """The fixed phrases make none; what the wider patterns make is looked at when it is drawn."""
        lists = {
            f"{module.__name__}.{name}": value
            for module in (phrases, tool_phrases, agent_phrases)
            for name, value in vars(module).items()
            if name.isupper() and isinstance(value, list) and not name.startswith(("AND_", "PART"))  # of sentences
        }
        fixed = [(name, text) for name, value in lists.items() for text in value if isinstance(text, str)]
        assert len(fixed) > 300
        alike = [(name, text) for name, text in fixed if is_examined(text) and not only_slots(text)]
        assert alike == []

    def test_wider_wordings_that_would_make_one_are_drawn_again(self) -> None:
        always = Wordings([], "[let me read # once more|give me # now]")
        assert all("let" not in always.draw(Random(seed), "en").lower() for seed in range(50))

    def test_tools_have_names_that_the_examination_does_not_have(self) -> None:
        rng = Random(12)
        trained = {open_tools.use_of(Cast(rng, language_of(rng))).tool.name for _ in range(3000)}
        requests = demo_own_words.items("requests")
        wanted = {tool["function"]["name"] for item in requests for tool in item["body"].get("tools", ())}
        assert len(wanted) > 25
        assert not wanted & trained

    def test_people_have_names_that_training_does_not_have(self) -> None:
        prompts = [item for item in demo_own_words.items("prompts") if item["kind"] == "name"]
        known = {name.lower() for name in (*names.ENGLISH, *names.LAST, *names.ACCENTED)}
        assert not known & {item["right"] for item in prompts}

    def test_it_is_as_large_as_it_says(self) -> None:
        count = {part: len(demo_own_words.items(part)) for part in demo_own_words.PARTS}
        assert count == {"prompts": 57, "agents": 36, "trees": 12, "requests": 39}


def only_slots(template: str) -> bool:
    """Whether nothing but slots and short words tells a template: `# + *`, `我叫*`."""
    return len(re.sub(r"[#*@~+\W]", "", template)) < 4


class TestJudgement:
    @pytest.mark.parametrize(
        ("wanted", "found", "right"),
        [
            ({"city": "Lisbon"}, {"city": "lisbon", "unit": "celsius"}, True),
            ({"city": "Lisbon"}, {"city": "Lisbon today"}, False),
            ({"query": "~bicycles"}, {"query": "red bicycles"}, True),
            ({"n": 3}, {"n": 3.0}, True),
            ({"n": 3}, {"n": "3"}, False),
            ({"who": ["Ana", "Raj"]}, {"who": ["Ana"]}, False),
            ({"contact": {"name": "Mira"}}, {"contact": {"name": "Mira", "phone": "1"}}, True),
            ({}, {}, True),
        ],
    )
    def test_arguments_fit(self, wanted: Any, found: Any, right: bool) -> None:
        assert demo_own_words.fits(wanted, found) is right

    def test_agents_overlap_when_all_are_at_work_at_one_moment(self) -> None:
        assert demo_own_words.overlap([[1.0, 4.0], [2.0, 6.0]])
        assert not demo_own_words.overlap([[1.0, 2.0], [3.0, 6.0]])
        assert not demo_own_words.overlap([[1.0, 2.0]])


class TestVariation:
    def test_choices_are_nested(self) -> None:
        made = {vary(Random(seed), "[a|b [c|d]] # [|e]") for seed in range(60)}
        assert made == {"a #", "b c #", "b d #", "a # e", "b c # e", "b d # e"}

    def test_slots_stay(self) -> None:
        for seed in range(500):
            text = typed(Random(seed), "Please put the *word* of {name} into # and ~ into @", "en")
            assert all(slot in text for slot in ("*", "{name}", "#", "~", "@")), text

    def test_every_kind_of_tool_can_be_asked_for(self) -> None:
        for kind in (*open_tools.ENGLISH, *open_tools.CHINESE):
            wanted = {slot for slot, (_, _, optional) in kind.slots.items() if not optional}
            assert any(all(f"{{{slot}}}" in wording for slot in wanted) for wording in kind.wordings), kind.names


class TestForced:
    """What a grammar forces is written, and not learned."""

    def test_marks_are_taken_out(self) -> None:
        assert unmarked(f"a{QUIET}bc{LOUD}d{QUIET}e{LOUD}") == ("abcde", [(1, 3), (4, 5)])
        assert unmarked("abc") == ("abc", [])

    def test_keys_are_not_wanted_and_values_are(self) -> None:
        encoder = read_vocabulary(SHIPPED).encoder()
        reply = f'{QUIET}{{"name": {LOUD}"Ada", {QUIET}"age": {LOUD}36}}'
        one = Dialogue([Message("user", "Ada is 36"), Message("assistant", reply)], [], "chat")
        ((ids, targets),) = encode(encoder, [one])
        wanted = encoder.decode([target for target in targets if target != IGNORED], skip_special_tokens=True)
        assert "Ada" in wanted
        assert "36" in wanted
        assert "name" not in wanted
        assert "age" not in wanted
        assert '{"name": "Ada", "age": 36}' in encoder.decode(ids)

    def test_every_object_is_json(self) -> None:
        rng = Random(13)
        for _ in range(300):
            exchange, tools = structured(Cast(rng, language_of(rng)))
            found = json.loads(unmarked(exchange[-1].content)[0])
            assert not tools or found["name"] == tools[0].name

    def test_calls_name_a_tool_that_is_there(self) -> None:
        rng = Random(14)
        for _ in range(300):
            exchange, tools = open_tools.open_use(Cast(rng, language_of(rng)))
            text = unmarked(exchange[1].text())[0].removeprefix(TOOL_CALL).removesuffix("</tool_call>")
            call = json.loads(text)
            (tool,) = (tool for tool in tools if tool.name == call["name"])
            assert set(call["arguments"]) <= set(tool.parameters)


def test_new_layers_do_nothing_at_first() -> None:
    """So training goes on where the smaller model was."""
    torch = pytest.importorskip("torch", reason="only training needs PyTorch")
    from demo_model.network import Network, Shape
    from demo_model.training import Plan, Trainer

    vocabulary = read_vocabulary(SHIPPED)
    shape = Shape(len(vocabulary.tokens), width=48, layers=2, heads=2, hidden=64, context=64)
    small = Network(shape)
    weights = {name: weight.detach().numpy() for name, weight in small.named_parameters()}
    large = Trainer(vocabulary, Shape(**{**shape.as_dict(), "layers": 4}), Plan(1, 1), Path())  # type: ignore[arg-type]
    large.begin_with(weights)
    ids = torch.from_numpy(np.arange(20)[None])
    wanted = torch.ones_like(ids, dtype=torch.bool)
    assert torch.equal(small(ids, wanted), large.network(ids, wanted))


def test_the_examination_is_not_read_by_the_generator_except_to_avoid_it() -> None:
    """Only one module knows where it lies."""
    folder = Path(variation.__file__).parent
    reads = {path.name for path in folder.glob("*.py") if "own_words" in path.read_text()}
    assert reads == {"variation.py"}
