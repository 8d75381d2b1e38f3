"""Before anything listens the upstream is asked: is it there, does it take the key, has it the model (E2)."""

from typing import Any

import pytest
from pydantic import SecretStr

from cfs_server.engine.contract.interface import ModelInfo, ModelLoadError, UpstreamKind
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, MODEL
from tests.upstream.support import STUBS, options, pair, started

BOTH = pytest.mark.parametrize("kind", ["openai", "anthropic"])


@BOTH
async def test_the_only_model_needs_no_name(kind: UpstreamKind) -> None:
    found = await started(STUBS[kind](), kind, model=None)
    assert (found.name, found.context_tokens, found.has_chat_template) == (MODEL, 4096, True)


@BOTH
async def test_an_alias_is_a_model_that_no_list_has(kind: UpstreamKind) -> None:
    assert (await started(STUBS[kind](), kind, model="alias")).name == "alias"


@BOTH
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"key": SecretStr("wrong")}, "refuses the key"),
        ({"key": None}, "refuses the key"),
        ({"model": "d"}, "no model 'd': it has a, b, c, d1, d2, d3, d4, d5, and 1 more"),
        ({"model": None}, "name a model with --upstream-model: it has a, b"),
        ({"model": None, "check": False}, "--upstream-model"),
    ],
)
async def test_what_is_wrong_is_told_in_one_line(kind: UpstreamKind, changes: dict[str, Any], told: str) -> None:
    names = ("a", "b", "c", "d1", "d2", "d3", "d4", "d5", "d6")
    with pytest.raises(ModelLoadError, match=told) as failure:
        await started(STUBS[kind](models=names), kind, **changes)
    assert "\n" not in str(failure.value)
    assert KEY not in str(failure.value)


@BOTH
async def test_a_server_without_a_list_is_taken_at_its_word(kind: UpstreamKind) -> None:
    assert await started(STUBS[kind](models=None), kind) == ModelInfo(
        MODEL, 0, True, notes=(f"another server answers, by the protocol of {kind.title().replace('ai', 'AI')}",)
    )
    with pytest.raises(ModelLoadError, match="does not list its models"):
        await started(STUBS[kind](models=None), kind, model=None)


@BOTH
async def test_nobody_there_is_told_after_some_tries(kind: UpstreamKind) -> None:
    url = "http://127.0.0.1:9/v1"
    with pytest.raises(ModelLoadError, match=f"upstream {url}: the upstream cannot be reached"):
        await started(None, kind, url=url)


async def test_a_local_server_needs_no_key() -> None:
    async with pair("openai", stub=OpenAIStub(key=None), key=None) as both:
        assert both.engine.ready


def test_options_do_not_show_the_key() -> None:
    assert KEY not in repr(options("http://127.0.0.1:9/v1", "openai"))
