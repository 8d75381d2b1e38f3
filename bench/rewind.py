"""What going back costs: the request, and the first token after it.

The aims are 0.5 s for 200 messages and 500 files, and 1.1 x a usual turn for the first token.

Run by `scripts/bench rewind [--smoke] [--rounds N] [--json FILE]`. The server has the embedded model and keeps its
sessions and the versions of its files on disk. Two requests are timed: back to the middle of a session of 200 messages
whose agent has changed 500 files since, and `redo`. For the first token, a usual turn and one right after a rewind take
turns, at the same message of a session that fits the context. The prefix is still there, so only the new message is
read.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from cfs import Session, api
from cfs.transports.http import Client
from cfs.wire import Message, NewMessage, RedoRequest, RewindRequest, Usage

BAR_SECONDS, BAR_RATIO = 0.5, 1.1
MESSAGES = 200
FILES = 500
SENTENCE = "My sister is called Alice, and she has a small red boat."


@contextmanager
def serving() -> Iterator[str]:
    """Run `cfs serve` on a free port with a new folder of data; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        cfs = str(Path(sys.executable).with_name("cfs"))
        command = [cfs, "serve", "--port", "0", "--log-level", "error", "--data-dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()
            process.communicate(timeout=30)


def requests(url: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of rewinds and of redos in a session of 200 messages and 500 files."""
    roles = ("user", "assistant")
    messages = [Message(role=roles[index % 2], content=f"{index}: {SENTENCE}") for index in range(MESSAGES)]
    back, forward = [], []
    with Client(url) as client:
        client.call(api.create("long", messages=tuple(messages[: MESSAGES // 2])))
        write_files(url, "before")
        client.call(api.post("long", NewMessage(role="assistant", content="The files are made.", generate=False)))
        for message in messages[MESSAGES // 2 :]:
            client.call(api.post("long", NewMessage(role=message.role, content=message.content, generate=False)))
        write_files(url, "after")
        for _ in range(rounds):
            back.append(_timed(lambda: client.call(api.rewind("long", RewindRequest(to=1)))))
            assert client.call(api.read_file("workspaces/long/file-7")).content == content("before", 7)
            forward.append(_timed(lambda: client.call(api.redo("long", RedoRequest()))))
            assert client.call(api.read_file("workspaces/long/file-7")).content == content("after", 7)
        assert client.call(api.read("long")).messages == MESSAGES + 1
    return back, forward


def write_files(url: str, what: str) -> None:
    """Write 500 files of some kilobytes as the agent of the session."""
    with httpx.Client(base_url=url, headers={api.AGENT: "long"}) as client:
        for number in range(FILES):
            client.put(f"/v1/files/workspaces/long/file-{number}", content=content(what, number)).raise_for_status()


def content(what: str, number: int) -> bytes:
    """Return the content of a file."""
    return f"{number} {what}: {SENTENCE}\n".encode() * 50


def first_tokens(url: str, rounds: int) -> tuple[list[Usage], list[Usage]]:
    """Return what usual turns cost, and turns right after a rewind."""
    usual, after = [], []
    for number in range(rounds):
        with Session(f"short-{number}", url=url) as session:
            session.configure(max_tokens=4, temperature=0)
            for turn in range(6):
                session.send(f"{number}.{turn}. {SENTENCE}")  # else it would share the prefix of an earlier round
            here = session.versions()[-1].number
            usual.append(_cost(session, "And what is the colour of the boat?"))
            session.send("Thank you.")
            session.rewind(here)
            after.append(_cost(session, "And what is the name of the girl?"))
    return usual, after


def _cost(session: Session, text: str) -> Usage:
    usage = session.send(text).usage
    assert usage is not None
    return usage


def _timed(request: Callable[[], object]) -> float:
    began = time.perf_counter()
    request()
    return time.perf_counter() - began


def main() -> int:
    """Measure and print; the status is 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="two rounds")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = 2 if options.smoke else options.rounds
    with serving() as url:
        back, forward = requests(url, rounds)
        usual, after = first_tokens(url, rounds)
    first = [statistics.median(usage.first_token_seconds for usage in usages) for usages in (usual, after)]
    read = [
        statistics.median(usage.prompt_tokens - usage.cached_tokens for usage in usages) for usages in (usual, after)
    ]
    seconds = {"rewind": statistics.median(back), "redo": statistics.median(forward)}
    for name, value in seconds.items():
        print(f"{name:<24} {value * 1000:7.1f} ms")
    for name, value, tokens in zip(("usual turn", "after a rewind"), first, read, strict=True):
        print(f"{name:<24} {value * 1000:7.1f} ms to the first token, {tokens:g} tokens read")
    ratio = first[1] / first[0]
    print(f"{'ratio':<24} {ratio:7.2f}")
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "first_token": first, "read": read}))
    return 0 if options.smoke or (max(seconds.values()) <= BAR_SECONDS and ratio <= BAR_RATIO) else 1


if __name__ == "__main__":
    sys.exit(main())
