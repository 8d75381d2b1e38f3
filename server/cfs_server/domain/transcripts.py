"""Messages with their sizes, as new histories begin: from messages or a transcript."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Self

from cfs.contract.transcript import from_elsewhere, parse, render_one, shown
from cfs.errors import InvalidParameters, TooLarge
from cfs.wire import Message, NewSession
from cfs_server.domain.message_sizes import cost_of


@dataclass(frozen=True, slots=True)
class SizedMessages:
    """Messages with two sizes: the bytes of their transcript, and their memory in bytes.

    The sizes of 20,000 messages take long to compute, so this can be done in a thread without a session. `times` says
    when the first messages were added, for those that come from another history; the others are new.
    """

    messages: tuple[Message, ...] = ()
    size: int = 0
    cost: int = 0
    times: tuple[float, ...] = field(default=(), compare=False)

    def times_from(self, at: float) -> tuple[float, ...]:
        """Return when each message was added. New ones are added at this time."""
        times = self.times[: len(self.messages)]
        return (*times, *[at] * (len(self.messages) - len(times)))

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Self:
        """Compute the sizes of some messages."""
        items = tuple(messages)
        return cls(items, sum(map(transcript_size, items)), sum(map(cost_of, items)))


def read_history(transcript: str, max_messages: int, existing: Iterable[Message] = ()) -> SizedMessages:
    """Parse a transcript (S14). Raises `InvalidTranscript`, and `TooLarge` for more than `max_messages` messages.

    Messages of the `existing` history at the beginning of the text are kept unchanged: the text contains no ids.
    """
    turns = parse(from_elsewhere(transcript), max_messages=max_messages)
    unchanged = [*takewhile(lambda pair: pair[1] == (pair[0].role, shown(pair[0])), zip(existing, turns, strict=False))]
    read = [Message.model_validate({"role": turn.role, "content": turn.content}) for turn in turns[len(unchanged) :]]
    return SizedMessages.of([message for message, _ in unchanged] + read)


def history_of(new: NewSession, max_messages: int) -> SizedMessages:
    """Return the history of a new session. Raises `InvalidParameters`, `InvalidTranscript` or `TooLarge`."""
    if new.messages and new.transcript:
        raise InvalidParameters("a session begins with `messages` or with a `transcript`, not with both")
    if not new.messages:
        return read_history(new.transcript or "", max_messages)
    return replace(take_messages(new.messages, max_messages), times=new.times)


def take_messages(messages: tuple[Message, ...], max_messages: int) -> SizedMessages:
    """Weigh the messages of a history of another server. Raises `TooLarge` for more than `max_messages`."""
    if len(messages) > max_messages:
        raise TooLarge(f"a session has {max_messages} messages at most; these are {len(messages)}")
    return SizedMessages.of(messages)


def transcript_size(message: Message) -> int:
    """Return the bytes of a message in the transcript, with the end of its line."""
    return len(render_one(message).encode()) + 1
