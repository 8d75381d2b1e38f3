"""Dialogues as token batches: sequences of like length together, targets only where the model has to write."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demo_model.agent_life import Lives
from demo_model.chat_format import END_OF_TEXT, IM_END, unmarked
from demo_model.dialogues import Dialogue, dialogue, easy_dialogue, language_of, long_dialogue, open_work

Ids = npt.NDArray[np.int64]
Encoded: TypeAlias = tuple[list[int], list[int]]
IGNORED = -1
_FAMILY = 150
"""Sequences with so many ids in common, before anything is wanted, are computed together."""


@dataclass(frozen=True)
class Batch:
    """Token ids and the token wanted after each, (sequences, length); IGNORED where nothing is wanted.

    `shared` are the ids that stand before all of them.
    """

    ids: Ids
    targets: Ids
    shared: Ids


def encode(encoder: Tokenizer, dialogues: list[Dialogue]) -> list[Encoded]:
    """Ids and targets of dialogues.

    Spans are encoded apart, as they are in use (a prompt, then the reply that is written behind it); the
    tokenizer is such that the whole text encoded at once gives the same.
    """
    spans = [one.spans() for one in dialogues]
    texts = [unmarked(span.text) for one in spans for span in one]
    flat = iter(zip(encoder.encode_batch([text for text, _ in texts]), texts, strict=True))
    ends = {end: encoder.encode(end).ids[0] for end in (END_OF_TEXT, IM_END)}
    encoded = []
    for one in spans:
        ids: list[int] = []
        targets: list[int] = []
        for span in one:
            encoded_span, (_, quiet) = next(flat)
            piece = encoded_span.ids
            if span.reply:
                wanted = list(piece)
                for begin, end in quiet:
                    for place, (first, last) in enumerate(encoded_span.offsets):
                        if begin <= first and last <= end:
                            wanted[place] = IGNORED
                targets[-1] = wanted[0]
                targets += [*wanted[1:], ends[span.end]]
            else:
                targets += [IGNORED] * len(piece)
            ids += piece
        encoded.append((ids, targets))
    return encoded


def common(sequences: list[Encoded]) -> int:
    """How many ids all sequences begin with, none of them wanted, and none of them a sequence's last."""
    first, last = min(ids for ids, _ in sequences), max(ids for ids, _ in sequences)
    most = min(min(len(ids) for ids, _ in sequences) - 1, min(_quiet(targets) for _, targets in sequences))
    for index, (one, other) in enumerate(zip(first[:most], last[:most], strict=True)):
        if one != other:
            return index
    return most


def _quiet(targets: list[int]) -> int:
    return next((index for index, target in enumerate(targets) if target != IGNORED), len(targets))


def _padded(sequences: list[Encoded], shared: int) -> Batch:
    length = max(len(ids) for ids, _ in sequences) - shared
    ids = np.zeros((len(sequences), length), dtype=np.int64)
    targets = np.full((len(sequences), length), IGNORED, dtype=np.int64)
    for row, (one_ids, one_targets) in enumerate(sequences):
        ids[row, : len(one_ids) - shared] = one_ids[shared:]
        targets[row, : len(one_targets) - shared] = one_targets[shared:]
    return Batch(ids, targets, np.array(sequences[0][0][:shared], dtype=np.int64))


def _packed(sequences: list[Encoded], tokens: int) -> Iterator[Batch]:
    """Batches of sequences that belong together."""
    sequences.sort(key=lambda one: len(one[0]))
    sequences = list(sequences)
    while sequences:
        longest, count = len(sequences[-1][0]), 1
        while count < len(sequences):
            shared = common(sequences[-count - 1 :])
            # What is shared costs its own computation once; a little is not worth it.
            if (longest - shared) * (count + 1) + shared > tokens:
                break
            count += 1
        some = sequences[-count:]
        shared = common(some)
        yield _padded(some, shared if shared > 32 and count > 1 else 0)
        del sequences[-count:]


@dataclass(frozen=True)
class Mix:
    """The shares of easy and of long dialogues, of any tools, and of agents' lives; the others are ordinary dialogues.

    Of what is neither an agent's life nor of any tools, `easy` and `long` are the shares.
    """

    easy: float
    long: float
    agents: float = 0.0
    open: float = 0.0

    def draw(self, rng: Random, lives: Lives) -> list[Dialogue]:
        """Some dialogues that belong together."""
        if rng.random() < self.agents:
            return lives.draw(rng)
        if rng.random() < self.open:
            return [open_work(rng, language_of(rng))]
        pick = rng.random()
        if pick < self.easy:
            return [easy_dialogue(rng)]
        return [long_dialogue(rng) if pick > 1 - self.long else dialogue(rng)]


def batches(
    encoder: Tokenizer, rng: Random, tokens: int, mix: Mix, context: int, lives: Lives, pool: int = 600
) -> Iterator[Batch]:
    """Batches without end, each of at most `tokens` ids, padding included."""
    while True:
        drawn = [one for _ in range(pool) for one in mix.draw(rng, lives)]
        groups: dict[tuple[int, ...], list[Encoded]] = {}
        for one in encode(encoder, drawn):
            if len(one[0]) <= context:
                # A prompt that many have in common has the same beginning and is long; the others go together.
                key = tuple(one[0][:_FAMILY]) if _quiet(one[1]) > _FAMILY else ()
                groups.setdefault(key, []).append(one)
        rest = groups.pop((), [])
        made: list[Batch] = []
        for group in groups.values():
            made += _packed(group, tokens)
            if made[-1].ids.size < tokens // 3:
                rest += group[: len(made.pop().ids)]  # the shortest, too few for a batch of their own
        made += _packed(rest, tokens)
        rng.shuffle(made)
        yield from made
