"""What a step computes, written into the batch: one token of each stream at once, and pieces of prompts one by one."""

from collections.abc import Mapping
from dataclasses import dataclass

from cfs_server.engine.llama.ffi import Batch
from cfs_server.engine.llama.sequences import Generation


@dataclass(frozen=True, slots=True)
class Filling:
    """The tokens of each turn in a batch; `streams` turns speak already, all of `speaking` get logits, in its order."""

    shares: Mapping[Generation, int]
    streams: int
    speaking: list[Generation]


def fill(batch: Batch, shares: Mapping[Generation, int]) -> Filling:
    """Write the next tokens of some turns into a batch."""
    batch.clear()
    speaking = [turn for turn, count in shares.items() if count == 1 == turn.pending]
    batch.add_streams(
        [turn.place.slot.id for turn in speaking],
        [turn.log[-1] for turn in speaking],
        [len(turn.log) - 1 for turn in speaking],
    )
    streams = len(speaking)
    if streams < len(shares):
        streaming = set(speaking)
        for turn in [turn for turn in shares if turn not in streaming]:
            count, pending = shares[turn], turn.pending
            batch.add(turn.place.slot.id, turn.next_tokens(count), turn.computed, output=count == pending)
            if count == pending:
                speaking.append(turn)
    return Filling(shares, streams, speaking)
