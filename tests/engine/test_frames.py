"""Frames arrive as they were sent, whatever is in them and however the bytes are cut."""

import io
import socket
import threading
from typing import get_args

import pytest

from cfs_server.engine import frames
from cfs_server.engine.interface import EnginePlan

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
)
SAMPLES: list[frames.Frame] = [
    frames.Load("/a/model.gguf", "name", frames.Options(parallel=3), extra_buffers=False),
    frames.Generate(
        "1", "s", 2, [{"role": "user", "content": "你好\x00\n\ud800"}], {"seed": None}, {"type": "object"}, [{}]
    ),
    frames.History("s", 2, [{"role": "user", "content": "hi"}]),
    frames.Cancel("1"),
    frames.Pause("1"),
    frames.Resume("1"),
    frames.Forget("s"),
    frames.DropHistory("s"),
    frames.Recall("s", "me", ["2:ab:r:AAAA"]),
    frames.TellAgain("s"),
    frames.Expect("s", "tool_call"),
    frames.AskStats(3, check=True),
    frames.AskTokens(4, ["a", ""], [{"role": "user", "content": "hi"}], [{}]),
    frames.StopCounting(4),
    frames.CountedTokens(4, [1, 0], 9, "no"),
    frames.Ready(2048, 16384, has_chat_template=True, parameters=3, plan=PLAN),
    frames.LoadFailed("no"),
    frames.Step(
        frames.Counters(1, 2, 3, 4),
        [frames.Started("1", 10, 5, thinking=True)],
        [frames.Text("1", "👩‍🚀", 2)],
        [frames.Ended("1", "error", 3, "ContextTooLong", "too long", 3, 70)],
        logs=[frames.Told("s", "me", "t", 1, ["2:ab:t:", "3:cd:r:AAAA"])],
    ),
    frames.Stats(3, frames.Counters(), 1, 2, 3, 4, 5, {"a": 0.5}, ["bad"]),
    frames.Ping(),
    frames.Alive(),
    frames.Computing(12.5),
    frames.Log("error", "x" * 70_000),
]


@pytest.mark.parametrize("frame", SAMPLES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_what_it_was(frame: frames.Frame) -> None:
    """Encoding and decoding give an equal frame."""
    stream = io.BytesIO(frames.encode(frame))
    assert frames.read(stream) == frame
    assert frames.read(stream) is None


def test_every_kind_of_frame_is_sampled() -> None:
    """A new kind needs a sample above."""
    assert {type(frame) for frame in SAMPLES} == set(get_args(frames.Frame))


def test_frames_follow_each_other_on_a_socket() -> None:
    """A reader gets them one by one, and `None` when the other side has gone, also in the middle of a frame."""
    here, there = socket.socketpair()

    def speak() -> None:
        with there:
            for frame in SAMPLES:
                frames.send(there, frame)
            there.sendall(frames.encode(SAMPLES[-1])[:100])

    thread = threading.Thread(target=speak)
    thread.start()
    with here, here.makefile("rb") as stream:
        assert [frames.read(stream) for _ in SAMPLES] == SAMPLES
        assert frames.read(stream) is None
    thread.join()
