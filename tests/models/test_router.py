"""One engine of several models: it passes the tests of every engine, and routes to the right one."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from cfs.errors import EngineError
from cfs.wire import Price
from cfs_server.engine.contract.interface import Engine, GenerationRequest, ModelLoadError, engine_of, predicted_wait
from cfs_server.engine.host.router import ModelRouter
from cfs_server.engine.host.scripted import Script, ScriptedEngine
from cfs_server.engine.host.supervisor import LlamaEngine
from tests.engine.conformance import EngineConformance
from tests.engine.support import ask, collect, request
from tests.engine.test_conformance import play

COSTLY = Price(prompt=3, completion=15, currency="USD")


def says(word: str) -> Script:
    """Answer with one word."""

    def script(_: GenerationRequest) -> Iterable[str]:
        yield word

    return script


@pytest.fixture
async def router() -> AsyncIterator[ModelRouter]:
    """Three models, of which the second is the default and the third always fails."""
    engines = {"a": ScriptedEngine(says("from a")), "b": ScriptedEngine(says("from b")), "c": ScriptedEngine(_fails)}
    router = ModelRouter(engines, "b", {"a": COSTLY})
    await router.start()
    yield router
    await router.stop()


def _fails(_: GenerationRequest) -> Iterable[str]:
    raise EngineError("as the script says")


class TestModelRouter(EngineConformance):
    """It does what every engine does, with the default model."""

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        """Route to the script of the conformance."""
        router = ModelRouter({"other": ScriptedEngine(), "played": ScriptedEngine(play)}, "played")
        await router.start()
        yield router
        await router.stop()

    def failing(self) -> GenerationRequest:
        """Ask for the script's error."""
        return request("fail")


async def test_a_turn_goes_to_the_model_of_its_settings(router: ModelRouter) -> None:
    assert (await ask(router, "hello")).text == "from b"
    assert (await ask(router, "hello", model="a")).text == "from a"
    assert (await ask(router, "hello", model="b")).text == "from b"
    with pytest.raises(EngineError, match="no model 'd' here any more; there are b, a, c"):
        await ask(router, "hello", model="d")


async def test_a_model_that_fails_does_not_touch_the_others(router: ModelRouter) -> None:
    with pytest.raises(EngineError, match="as the script says"):
        await ask(router, "hello", model="c")
    assert (await ask(router, "hello")).text == "from b"
    await router.engine_of("b").stop()
    assert router.ready
    assert (await ask(router, "hello", model="a")).text == "from a"


async def test_the_models_are_described_the_default_first(router: ModelRouter) -> None:
    infos = router.infos()
    assert [info.name for info in infos] == ["b", "a", "c"]
    assert [info.price for info in infos] == [None, COSTLY, None]


async def test_all_engines_hear_of_a_session_and_each_counts_for_itself(router: ModelRouter) -> None:
    router.hint("key", "tool_call")
    router.forget("key")
    for name in "abc":
        engine = router.engine_of(name)
        assert isinstance(engine, ScriptedEngine)
        assert (engine.hints, engine.forgotten) == ([("key", "tool_call")], ["key"])
    await ask(router, "one two three", model="a")
    await ask(router, "one")
    stats = await router.stats()
    assert {name: each.prompt_tokens_evaluated for name, each in stats.models.items()} == {"b": 1, "a": 3, "c": 0}
    assert (stats.prompt_tokens_evaluated, stats.tokens_generated) == (4, 2)


async def test_waits_are_predicted_for_the_model_that_answers(router: ModelRouter) -> None:
    assert engine_of(router, None) is router.engine_of("b")
    assert engine_of(router, "a") is router.engine_of("a")
    assert engine_of(router.engine_of("a"), "whatever") is router.engine_of("a")
    assert predicted_wait(router, "gone", "", "agent") == 0
    assert predicted_wait(router, "a", "", "agent") == router.engine_of("a").predicted_wait("", "agent")


async def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    router = ModelRouter({"a": ScriptedEngine(), "b": LlamaEngine(str(tmp_path / "gone.gguf"))}, "a")
    try:
        with pytest.raises(ModelLoadError, match=r"model 'b': .*gone\.gguf: no such file"):
            await router.start()
    finally:
        await router.stop()


async def test_a_cancel_finds_its_turn(router: ModelRouter) -> None:
    """Whichever model answers it."""
    engine = router.engine_of("a")
    assert isinstance(engine, ScriptedEngine)
    wanted = request("hello", model="a")
    engine.hold()
    reading = asyncio.create_task(collect(router, wanted))
    await asyncio.sleep(0)
    router.cancel(wanted.id)
    assert (await reading).finished.reason == "cancelled"
