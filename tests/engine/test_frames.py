"""Frames arrive as they were sent, whatever is in them and however the bytes are cut."""

import io
import socket
import threading
from typing import get_args

import pytest

from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.interface import EnginePlan

PLAN = EnginePlan(
    "hybrid",
    "snapshots",
    "64 tokens",
    flash_attention=True,
    pool_tokens=16384,
    pool_bytes=1 << 20,
    parallel=8,
    threads=2,
    extra_buffers=False,
    kv_type="q8_0",
)
SAMPLES: list[protocol.Frame] = [
    protocol.Load("/a/model.gguf", "name", protocol.WorkerOptions(parallel=3), extra_buffers=False),
    protocol.Generate(
        "1", "s", 2, [{"role": "user", "content": "你好\x00\n\ud800"}], {"seed": None}, {"type": "object"}, [{}]
    ),
    protocol.HistoryPart("s", 2, [{"role": "user", "content": "hi"}]),
    protocol.CancelTurn("1"),
    protocol.Pause("1"),
    protocol.Resume("1"),
    protocol.Forget("s"),
    protocol.Retain(["s"]),
    protocol.DropHistory("s"),
    protocol.TokenLogRestore("s", "me", ["2:ab:r:AAAA"]),
    protocol.TokenLogResync("s"),
    protocol.Expect("s", "tool_call"),
    protocol.AskStats(3, check=True),
    protocol.AskTokens(4, ["a", ""], [{"role": "user", "content": "hi"}], [{}]),
    protocol.StopCounting(4),
    protocol.CountedTokens(4, [1, 0], 9, "no"),
    protocol.Embed(5, ["a\ud800", [1, 2]], "me", "a", truncate=True),
    protocol.StopEmbedding(5),
    protocol.Embedded(5, ["AACAPw=="], 3, "ContextTooLong", "too long"),
    protocol.Ready(2048, 16384, has_chat_template=True, parameters=3, plan=PLAN),
    protocol.Ready(512, 0, has_chat_template=False, parameters=3, plan=None, pooling="mean"),
    protocol.LoadFailed("no"),
    protocol.Step(
        protocol.Counters(1, 2, 3, 4),
        [protocol.TurnDequeued("1", 10, 5, thinking=True)],
        [protocol.TextDelta("1", "👩‍🚀", 2)],
        [protocol.Ended("1", "error", 3, "ContextTooLong", "too long", 3, 70, "END")],
        logs=[protocol.TokenLogDelta("s", "me", "t", 1, ["2:ab:t:", "3:cd:r:AAAA"])],
    ),
    protocol.Stats(3, protocol.Counters(), 1, 2, 3, 4, 5, {"a": 0.5}, ["bad"]),
    protocol.Ping(),
    protocol.Alive(),
    protocol.Computing(12.5),
    protocol.Log("error", "x" * 70_000),
]


@pytest.mark.parametrize("frame", SAMPLES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_what_it_was(frame: protocol.Frame) -> None:
    """Encoding and decoding give an equal frame."""
    stream = io.BytesIO(protocol.encode(frame))
    assert protocol.read(stream) == frame
    assert protocol.read(stream) is None


def test_every_kind_of_frame_is_sampled() -> None:
    """A new kind needs a sample above."""
    assert {type(frame) for frame in SAMPLES} == set(get_args(protocol.Frame))


def test_frames_follow_each_other_on_a_socket() -> None:
    """A reader gets them one by one, and `None` when the other side has gone, also in the middle of a frame."""
    here, there = socket.socketpair()

    def speak() -> None:
        with there:
            for frame in SAMPLES:
                protocol.send(there, frame)
            there.sendall(protocol.encode(SAMPLES[-1])[:100])

    thread = threading.Thread(target=speak)
    thread.start()
    with here, here.makefile("rb") as stream:
        assert [protocol.read(stream) for _ in SAMPLES] == SAMPLES
        assert protocol.read(stream) is None
    thread.join()
