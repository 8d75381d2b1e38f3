"""Dialogues as token batches: sequences of like length together, targets only where the model has to write."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demo_model.chat_format import END_OF_TEXT, IM_END
from demo_model.dialogues import Dialogue, dialogue, easy_dialogue, long_dialogue

Ids = npt.NDArray[np.int64]
IGNORED = -1


@dataclass(frozen=True)
class Batch:
    """Token ids and the token wanted after each, (sequences, length); IGNORED where nothing is wanted."""

    ids: Ids
    targets: Ids


def encode(encoder: Tokenizer, dialogues: list[Dialogue]) -> list[tuple[list[int], list[int]]]:
    """Ids and targets of dialogues.

    Spans are encoded apart, as they are in use (a prompt, then the reply that is written behind it); the
    tokenizer is such that the whole text encoded at once gives the same.
    """
    spans = [one.spans() for one in dialogues]
    flat = iter(encoder.encode_batch_fast([span.text for one in spans for span in one]))
    ends = {end: encoder.encode(end).ids[0] for end in (END_OF_TEXT, IM_END)}
    encoded = []
    for one in spans:
        ids: list[int] = []
        targets: list[int] = []
        for span in one:
            piece = next(flat).ids
            if span.reply:
                targets[-1] = piece[0]
                targets += [*piece[1:], ends[span.end]]
            else:
                targets += [IGNORED] * len(piece)
            ids += piece
        encoded.append((ids, targets))
    return encoded


def _padded(sequences: list[tuple[list[int], list[int]]]) -> Batch:
    length = max(len(ids) for ids, _ in sequences)
    ids = np.zeros((len(sequences), length), dtype=np.int64)
    targets = np.full((len(sequences), length), IGNORED, dtype=np.int64)
    for row, (one_ids, one_targets) in enumerate(sequences):
        ids[row, : len(one_ids)] = one_ids
        targets[row, : len(one_targets)] = one_targets
    return Batch(ids, targets)


@dataclass(frozen=True)
class Mix:
    """The shares of easy and of long dialogues; the others are ordinary ones."""

    easy: float
    long: float

    def draw(self, rng: Random) -> Dialogue:
        """One dialogue."""
        pick = rng.random()
        if pick < self.easy:
            return easy_dialogue(rng)
        return long_dialogue(rng) if pick > 1 - self.long else dialogue(rng)


def batches(encoder: Tokenizer, rng: Random, tokens: int, mix: Mix, context: int, pool: int = 384) -> Iterator[Batch]:
    """Batches without end, each of at most `tokens` ids, padding included."""
    while True:
        drawn = [mix.draw(rng) for _ in range(pool)]
        sequences = [one for one in encode(encoder, drawn) if len(one[0]) <= context]
        sequences.sort(key=lambda one: len(one[0]))
        made: list[Batch] = []
        while sequences:
            longest = len(sequences[-1][0])
            count = max(1, tokens // longest)
            made.append(_padded(sequences[-count:]))
            del sequences[-count:]
        rng.shuffle(made)
        yield from made
