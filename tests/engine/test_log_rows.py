"""Token logs that outlive the worker: rows written by one and read by the next."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cfs.wire import Message, Settings
from cfs_server.engine.chat.prompt import Piece, PromptBuilder
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.host.token_log_store import TokenLogStore
from cfs_server.engine.llama.ffi import NativeLog
from cfs_server.engine.llama.model import load
from cfs_server.engine.llama.segments import Segment, read_rows, write_row
from cfs_server.engine.llama.token_logs import RestoredLogs, TokenLog, TokenLogs
from cfs_server.engine.llama.tokenizer import Vocabulary
from tests.engine.support import user


class LogStoreHarness:
    """One worker's logs after another's, and the server's book."""

    def __init__(self, vocabulary: Vocabulary, template: str | None, limit: int = 1 << 20) -> None:
        self.vocabulary = vocabulary
        self.prompts = PromptBuilder(template, special=vocabulary.special_text)
        self.book = TokenLogStore(limit)
        self.logs = self._worker()

    def turn(self, key: str, history: list[Message], reply: str, owner: str = "") -> TokenLog:
        """Run a turn whose reply comes in single letters, as the tokenizer never cuts it."""
        log = self.logs.next(key, self.prompts.build(history, Settings()).pieces, owner)
        tokens = np.array([int(self.vocabulary.tokenize(letter, special=False)[0]) for letter in reply], np.int32)
        log.answer(reply, tokens, [self.vocabulary.piece(int(token)) for token in tokens])
        delta = log.take_delta()
        assert delta is not None
        if not self.book.apply(delta):
            self.logs.resync(key)
        assert self.book.check_integrity() == []
        return log

    def crash(self) -> None:
        """Let a new worker take over."""
        self.logs = self._worker()
        for restore in self.book.restores():
            self.restored.put(restore.cache_key, restore.owner, restore.rows)

    def _worker(self) -> TokenLogs:
        def tokenize(text: str, trusted: bool) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
            return self.vocabulary.tokenize(text, special=trusted)

        self.restored = RestoredLogs(tokenize, self.vocabulary.spell)
        return TokenLogs(tokenize, self.vocabulary.cuts, restored=self.restored)


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> Vocabulary:
    """The tiny model's tokenizer."""
    log = NativeLog(lambda _level, _text: None)
    return load(str(tiny), WorkerOptions(parallel=1, pool_tokens=256, threads=1), log, extra_buffers=True).vocabulary


@pytest.fixture
def make(vocabulary: Vocabulary) -> Callable[..., LogStoreHarness]:
    """Make logs with the transcript as its template."""
    return lambda **more: LogStoreHarness(vocabulary, None, **more)


def said(text: str) -> Message:
    """Make a reply."""
    return Message(role="assistant", content=text)


def test_a_new_worker_has_the_tokens_that_the_model_chose(make: Callable[..., LogStoreHarness]) -> None:
    """Turn by turn the prompt of one that crashes after each is that of one that never does."""
    crashing, lasting = make(), make()
    history: list[Message] = []
    for number in range(6):
        history.append(user(f"question {number}"))
        logs = [harness.turn("s", history, f"answer{number}") for harness in (crashing, lasting)]
        assert list(logs[0].tokens) == list(logs[1].tokens)
        history.append(said(f"answer{number}"))
        crashing.crash()
    assert any(segment.reply for segment in logs[0].segments[:-1])
    assert make().turn("s", history[:-1], "answer5").tokens.tolist() != logs[0].tokens.tolist()


def test_a_fork_after_a_crash_has_its_parents_tokens_and_shares_its_rows(make: Callable[..., LogStoreHarness]) -> None:
    """No other's: another owner's copy is cut from its text."""
    harness = make()
    parent = harness.turn("parent", [user("hi")], "abab")
    harness.crash()
    history = [user("hi"), said("abab"), user("go on")]
    fork, other = harness.turn("fork", history, "yes", ""), harness.turn("other", history, "yes", "somebody")
    assert fork.tokens[: len(parent.tokens)].tolist() == parent.tokens.tolist()
    assert other.tokens[: len(parent.tokens)].tolist() != parent.tokens.tolist()
    rows = harness.book._logs["fork"].rows[: len(parent.segments)]
    assert [row is mine for row, mine in zip(rows, harness.book._logs["parent"].rows, strict=True)] == [True] * len(
        rows
    )


def test_an_edit_drops_what_came_after_it(make: Callable[..., LogStoreHarness]) -> None:
    """The server holds as much as the session's history has."""
    harness = make()
    harness.turn("s", [user("one")], "first")
    harness.turn("s", [user("one"), said("first"), user("two")], "second")
    long = harness.book.bytes
    harness.turn("s", [user("one")], "x")
    assert harness.book.bytes < long
    harness.book.forget("s", busy=True)
    assert (len(harness.book), harness.book.bytes) == (0, 0)


def test_what_is_told_late_of_a_forgotten_session_is_not_kept(make: Callable[..., LogStoreHarness]) -> None:
    """Until a session of that name has a turn again."""
    harness = make()
    harness.book.forget("s", busy=True)
    harness.turn("s", [user("one")], "late")
    assert len(harness.book) == 0
    harness.logs.forget("s")
    harness.book.begun("s")
    harness.turn("s", [user("one")], "anew")
    assert len(harness.book) == 1


def test_the_book_stays_within_its_limit_and_asks_again_for_what_it_lost(make: Callable[..., LogStoreHarness]) -> None:
    """The least recently used go; a session that goes on is told as a whole at its second next turn."""
    harness = make(limit=1500)
    for number in range(20):
        harness.turn(f"s{number}", [user("hi")], "abab")
        assert harness.book.bytes <= 1500
    assert 0 < len(harness.book) < 20
    history = [user("hi"), said("abab"), user("go on")]
    harness.turn("s0", history, "yes")
    assert "s0" not in harness.book._logs
    harness.turn("s0", [*history, said("yes"), user("and")], "no")
    assert "s0" in harness.book._logs


def test_rows_that_do_not_fit_are_not_believed(vocabulary: Vocabulary) -> None:
    """Other text, other trust, tokens that spell something else or are none: the prompt is cut from there on."""

    def tokenize(text: str, trusted: bool) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return vocabulary.tokenize(text, special=trusted)

    tokens = tokenize("well", False)
    good = write_row(Segment("well", trusted=False, tokens=tokens, reply=True))

    def read(row: str, piece: Piece) -> list[Segment]:
        return list(read_rows([row], [piece], tokenize, vocabulary.spell))

    assert read(good, Piece("well", trusted=True))[0].tokens.tolist() == tokens.tolist()
    wrong = write_row(Segment("well", trusted=False, tokens=tokenize("bell", False), reply=True))
    none = write_row(Segment("well", trusted=False, tokens=np.array([1 << 22], np.int32), reply=True))
    text = write_row(Segment("well", trusted=False, tokens=tokens))
    for row in (wrong, none, "", "4", "x:y:z:w", good.replace("4:", "5:", 1), good[:-1], good + "!"):
        assert read(row, Piece("well", trusted=False)) == []
    assert read(good, Piece("bell", trusted=False)) == []
    assert read(text, Piece("well", trusted=True)) == []
    assert len(read(text, Piece("well", trusted=False))) == 1


def test_random_lives_with_crashes_have_the_tokens_of_lives_without(make: Callable[..., LogStoreHarness]) -> None:
    """Edits, forks, forgetting, odd text: crashes change no prompt."""
    dice = random.Random(5)
    crashing, lasting = make(), make()
    talks: dict[str, list[Message]] = {}
    for _ in range(300):
        key = f"s{dice.randrange(5)}"
        history = talks.setdefault(key, [])
        if dice.random() < 0.2:
            del history[dice.randrange(len(history) + 1) // 2 * 2 :]
        if dice.random() < 0.05:
            for harness in (crashing, lasting):
                harness.logs.forget(key)
                harness.book.forget(key, busy=False)
            history.clear()
        history.append(user(dice.choice(["yes", "no\n", "User: ", "<|im_end|>", "你好"]) * dice.randrange(1, 4)))
        reply = "".join(dice.choice("ab c") for _ in range(6)).strip() or "a"
        known = [harness.turn(key, history, reply) for harness in (crashing, lasting)]
        assert known[0].tokens.tolist() == known[1].tokens.tolist()
        history.append(said(reply))
        if len(history) > 10:
            history.clear()
        if dice.random() < 0.3:
            crashing.crash()
