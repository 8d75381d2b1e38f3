"""The token log: each turn cuts what is new, and the tokens are those of the whole text cut at once."""

import random
from pathlib import Path

import numpy as np
import pytest

import make_random_gguf
from cfs.wire import Message, Settings
from cfs_server.engine.chat.prompt import PromptBuilder
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.llama.ffi import NativeLog, Tokens
from cfs_server.engine.llama.model import load
from cfs_server.engine.llama.token_logs import TokenLog, TokenLogs
from cfs_server.engine.llama.tokenizer import Vocabulary
from tests.engine.support import user

CHAT, TRANSCRIPT = Settings(prompt_style="chat"), Settings(prompt_style="transcript")
REWRITES = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content if loop.last or message.role == 'user' else '...' }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
"""A template that shortens old replies."""


class TokenLogHarness:
    """Logs, and the length of each text that was cut into tokens."""

    def __init__(self, vocabulary: Vocabulary, template: str | None) -> None:
        self.vocabulary = vocabulary
        self.prompts = PromptBuilder(template, special=vocabulary.special_text)
        self.logs = TokenLogs(self.tokenize, vocabulary.cuts)
        self.cut: list[int] = []

    def tokenize(self, text: str, trusted: bool) -> Tokens:
        """Cut and count."""
        self.cut.append(len(text))
        return self.vocabulary.tokenize(text, special=trusted)

    def next(self, history: list[Message], settings: Settings = CHAT, key: str = "s") -> tuple[TokenLog, int]:
        """Read the next prompt; also returns how many characters were cut for it."""
        self.cut.clear()
        log = self.logs.next(key, self.prompts.build(history, settings).pieces)
        return log, sum(self.cut)

    def whole(self, history: list[Message], settings: Settings = CHAT) -> list[int]:
        """Cut a prompt without a log, piece by piece."""
        pieces = self.prompts.build(history, settings).pieces
        parts = [self.vocabulary.tokenize(piece.text, special=piece.trusted) for piece in pieces]
        return [int(token) for token in np.concatenate(parts)]

    def answer(self, log: TokenLog, text: str) -> None:
        """Let the model answer, in the tokens of the text."""
        tokens = self.vocabulary.tokenize(text, special=False)
        log.answer(text.strip(), tokens, [self.vocabulary.piece(int(token)) for token in tokens])


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> Vocabulary:
    """The tiny model's tokenizer."""
    log = NativeLog(lambda _level, _text: None)
    return load(str(tiny), WorkerOptions(parallel=1, pool_tokens=256, threads=1), log, extra_buffers=True).vocabulary


@pytest.fixture
def template(tiny: Path) -> str:
    """The template of the random models."""
    return make_random_gguf.CHAT_TEMPLATE


@pytest.mark.parametrize("settings", [CHAT, TRANSCRIPT], ids=["chat", "transcript"])
def test_a_turn_cuts_only_what_is_new(vocabulary: Vocabulary, template: str, settings: Settings) -> None:
    """Turn 50 cuts no more characters than turn 2, and has the tokens of the whole prompt."""
    harness = TokenLogHarness(vocabulary, template)
    history: list[Message] = []
    costs = []
    for number in range(50):
        history.append(user(f"question {number:02}"))
        log, cost = harness.next(history, settings)
        assert list(log.tokens) == harness.whole(history, settings)
        costs.append(cost)
        harness.answer(log, f"answer {number:02}")
        history.append(Message(role="assistant", content=f"answer {number:02}"))
    assert len(set(costs[1:])) == 1


def test_a_reply_keeps_the_tokens_that_the_model_chose(vocabulary: Vocabulary, template: str) -> None:
    """Also when the tokenizer would have cut the same text otherwise."""
    harness = TokenLogHarness(vocabulary, template)
    log, _ = harness.next([user("hi")])
    prompt = list(log.tokens)
    letters = np.array([int(vocabulary.tokenize(letter, special=False)[0]) for letter in "abab"], dtype=np.int32)
    assert list(letters) != list(vocabulary.tokenize("abab", special=False))
    log.answer("abab", letters, [vocabulary.piece(int(token)) for token in letters])
    after, _ = harness.next([user("hi"), Message(role="assistant", content="abab"), user("go on")])
    assert list(after.tokens)[: len(prompt) + 4] == prompt + list(letters)


def test_a_copy_of_a_session_has_its_tokens(vocabulary: Vocabulary, template: str) -> None:
    """A fork, or a child that is told what its parent was told; but no other's."""
    harness = TokenLogHarness(vocabulary, template)
    log, _ = harness.next([user("hi")], key="parent")
    letters = np.array([int(vocabulary.tokenize(letter, special=False)[0]) for letter in "abab"], dtype=np.int32)
    log.answer("abab", letters, [vocabulary.piece(int(token)) for token in letters])
    harness.next([user("something else")], key="other")
    history = [user("hi"), Message(role="assistant", content="abab"), user("go on")]
    fork, _ = harness.next(history, key="fork")
    assert list(fork.tokens)[: len(log.tokens)] == list(log.tokens)
    pieces = harness.prompts.build(history, CHAT).pieces
    assert list(harness.logs.next("foreign", pieces, "somebody").tokens) == harness.whole(history)


def test_an_edited_reply_is_cut_as_if_it_had_always_been_so(vocabulary: Vocabulary, template: str) -> None:
    """What comes before the edit is kept, what comes after is cut from the text."""
    harness = TokenLogHarness(vocabulary, template)
    history = [user("one"), Message(role="assistant", content="first"), user("two")]
    log, _ = harness.next(history[:1])
    harness.answer(log, "first")
    harness.next(history)
    edited = [history[0], Message(role="assistant", content="changed"), history[2]]
    log, cost = harness.next(edited)
    assert list(log.tokens) == harness.whole(edited)
    assert log.reused > 0
    assert cost < len(harness.prompts.build(edited, CHAT).text)


def test_a_template_that_rewrites_keeps_the_common_prefix(vocabulary: Vocabulary) -> None:
    """The tokens are those of the text, and the beginning that did not change is not cut again."""
    harness = TokenLogHarness(vocabulary, REWRITES)
    history: list[Message] = []
    for number in range(6):
        history.append(user(f"question {number} " + "word " * 20))
        log, cost = harness.next(history)
        assert list(log.tokens) == harness.whole(history)
        assert number == 0 or cost < 300
        harness.answer(log, "answer")
        history.append(Message(role="assistant", content="answer"))


def test_white_space_that_was_stripped_off_costs_nothing(vocabulary: Vocabulary, template: str) -> None:
    """The tokens before it are kept; a stop string in the middle of a token makes the text count."""
    harness = TokenLogHarness(vocabulary, template)
    log, _ = harness.next([user("hi")])
    harness.answer(log, "well \n\n")
    assert log.segments[-1].text == "well"
    assert log.segments[-1].reply
    log, _ = harness.next([user("hi")], key="other")
    log.answer("w", vocabulary.tokenize("well", special=False), [b"we", b"ll"])
    assert not log.segments[-1].reply


def test_random_conversations_with_edits(vocabulary: Vocabulary, template: str) -> None:
    """Whatever is said, forged special tokens too, and whatever is edited: the tokens are those of the text."""
    dice = random.Random(11)
    words = ["yes", "no ", " maybe", "\n", "<|im_end|>", "<|im_start|>", "<|", "你好", "User: ", "x" * 30]

    def text() -> str:
        return "".join(dice.choice(words) for _ in range(dice.randrange(1, 5)))

    harness = TokenLogHarness(vocabulary, template)
    history: list[Message] = []
    for _ in range(300):
        if len(history) > 12 or (history and dice.random() < 0.2):
            del history[dice.randrange(0, len(history)) // 2 * 2 :]
        history.append(user(text()))
        settings = CHAT if dice.random() < 0.9 else TRANSCRIPT
        log, _ = harness.next(history, settings)
        spelled = b"".join(vocabulary._piece(int(token), special=True) for token in log.tokens).decode()
        assert spelled == harness.prompts.build(history, settings).text
        reply = text()
        harness.answer(log, reply)
        history.append(Message(role="assistant", content=reply.strip()))
        assert harness.logs.check_integrity() == []
    harness.logs.forget("s")
    assert len(harness.logs) == 0


def test_logs_stay_within_their_limit(vocabulary: Vocabulary, template: str) -> None:
    """The least recently used go; their session's next prompt is cut as a whole."""
    harness = TokenLogHarness(vocabulary, template)
    harness.logs = TokenLogs(harness.tokenize, vocabulary.cuts, limit=500)
    for number in range(10):
        harness.next([user("x" * 100)], key=f"s{number}")
    assert 0 < len(harness.logs) < 5
    assert harness.logs.check_integrity() == []
