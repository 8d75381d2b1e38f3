"""Chunks of chat completions: those that are only text are written without models, and are the same."""

import pytest

from cfs.completions import ChatChunk
from cfs.wire import Usage
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.protocols.chat import Writer, chunk_json


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("model", ["a model", 'with ""quotes"":""'])
def test_chunks_are_those_of_their_models(model: str, *, include_usage: bool) -> None:
    """Whatever a piece has, its chunks are the JSON of the models that stand for them."""
    texts = ["word ", '"', '""', "\\ \n\r\t\0\x1f\x7f", "\u2028 ä 漢 🙂", "\ud800", "</script>"]
    items: list[Delta | Finished] = [Delta(text, 1) for text in texts]
    items += [
        Delta("", 1, thinking="hm"),
        Delta("said", 1, thinking="thought"),
        Delta("said", 1, calls=(CallDelta(0, "call_1", "search", '{"q":1}'),)),
        Delta("", 0),
        Finished("stop", Usage(prompt_tokens=3, completion_tokens=2)),
    ]
    writer = Writer(model)
    for item in items:
        wanted = [chunk_json(chunk, include_usage=include_usage) for chunk in writer.write(item)]
        found = list(writer.texts(item, include_usage=include_usage))
        assert found == [text for text in wanted if text is not None]


def test_text_is_written_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first text, no piece of text makes a chunk's model: that would be much of the time of a token."""
    made: list[object] = []
    init = ChatChunk.__init__

    def counting(self: ChatChunk, **values: object) -> None:
        made.append(self)
        init(self, **values)

    monkeypatch.setattr(ChatChunk, "__init__", counting)
    writer = Writer("any")
    found = [text for _ in range(50) for text in writer.texts(Delta("word ", 1), include_usage=False)]
    assert len(found) == 50
    assert len(made) == 1
