"""The versions of a conversation, made from its recorded changes. Pure: no I/O.

Each change of the history is a version: number 0 is the history that the session was created with, and each message,
each replacement and each rewind adds one. The number is that of the session's ETag. A rewind is a change like others,
so nothing that was said is ever rewritten, and a rewind can be undone.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from cfs.errors import Conflict, InvalidParameters, NotFound
from cfs.wire import Message
from cfs_server.domain.authors import Author
from cfs_server.domain.changes import Created, HistoryReplaced, MessageAdded, Rewind
from cfs_server.domain.history import History
from cfs_server.domain.message_sizes import cost_of
from cfs_server.domain.transcripts import SizedMessages

_REPLACED_BYTES = 4 << 20
_NUMBER = re.compile(r"[0-9]{1,9}")

HistoryChange = Created | HistoryReplaced | MessageAdded


@dataclass(frozen=True, slots=True)
class PastChange:
    """A recorded change of a history, when it was made (seconds since the epoch), and by whom.

    `order` is its place among the changes of files, if the store numbers both in one order.
    """

    at: float
    change: HistoryChange
    author: Author | None = None
    order: int | None = None


class Moment(NamedTuple):
    """A time in seconds since the epoch and, if it is that of a message, its place among the changes of files.

    Only the order is exact: the clocks of those who record messages and changes may differ.
    """

    at: float
    order: int | None = None

    def is_after(self, other: "Moment") -> bool:
        """Return whether it is later than another one of the same store."""
        if self.order is None or other.order is None:
            return self.at > other.at
        return self.order > other.order


@dataclass(frozen=True, slots=True)
class Version:
    """One version: what its change added (`message`) or put in the place of all (`messages`).

    `count` is the number of messages that the history has at this version.
    """

    number: int
    at: float
    count: int
    author: Author | None = None
    message: Message | None = None
    messages: SizedMessages | None = None
    rewind: Rewind | None = None
    order: int | None = None

    @property
    def moment(self) -> Moment:
        """When it was made."""
        return Moment(self.at, self.order)


class Past:
    """The versions of one session, oldest first. The first one begins a history."""

    def __init__(self, versions: Sequence[Version], session_id: str) -> None:
        self.versions = versions
        self._id = session_id

    @classmethod
    def of(cls, changes: Iterable[PastChange], history: History, session_id: str, first: int = 0) -> "Past":
        """Return the past of a session from its stored changes, and from its history what is not stored yet.

        `first` is the number of the first stored version.
        """
        versions: list[Version] = []
        for number, recorded in enumerate(changes, first):
            change, count = recorded.change, versions[-1].count if versions else 0
            if isinstance(change, MessageAdded):
                versions.append(
                    Version(
                        number, recorded.at, count + 1, recorded.author, message=change.message, order=recorded.order
                    )
                )
                continue
            rewind = change.rewind if isinstance(change, HistoryReplaced) else None
            size = len(change.history.messages)
            versions.append(
                Version(
                    *(number, recorded.at, size, recorded.author),
                    messages=change.history,
                    rewind=rewind,
                    order=recorded.order,
                )
            )
        return cls(_completed(versions, history), session_id)

    def at(self, moment: float) -> Version | None:
        """Return the version with a number (`int`), or that was current at a time; None if there was none yet.

        Raises `NotFound` if there is no version with the number.
        """
        return self.version(moment) if isinstance(moment, int) else self.at_moment(Moment(moment))

    @property
    def current(self) -> Version:
        """The newest version."""
        return self.versions[-1]

    def version(self, number: int) -> Version:
        """Return a version. Raises `NotFound` if there is none with this number, or if it is not kept."""
        first = self.versions[0].number
        if not first <= number <= self.current.number:
            available = f"{first} to {self.current.number}"
            raise NotFound(f"session {self._id!r} has no version {number}: it has {available}")
        return self.versions[number - first]

    def at_moment(self, moment: Moment) -> Version | None:
        """Return the version that was current at a moment; None if there was none yet."""
        earlier = [version for version in self.versions if not version.moment.is_after(moment)]
        return earlier[-1] if earlier else None

    def of_first(self, count: int) -> Version:
        """Return the version at which the first `count` of the current messages were the history.

        If they never were alone, it is the version that brought them. Of several it is the newest one.
        """
        versions, opening = self.versions, self.messages(self.current.number).messages[:count]
        index = len(versions) - 1
        while versions[index].count > count and index:
            replaced = versions[index].messages is not None
            if replaced and self.messages(versions[index - 1].number).messages[:count] != opening:
                break
            index -= 1
        return versions[index]

    def messages(self, number: int) -> SizedMessages:
        """Return the messages of a version, each with its time. Raises `NotFound`."""
        end = self.version(number).number - self.versions[0].number
        begin = max(index for index in range(end + 1) if self.versions[index].messages is not None)
        start, added = self.versions[begin], self.versions[begin + 1 : end + 1]
        first = start.messages or SizedMessages()
        more = SizedMessages.of(version.message for version in added if version.message is not None)
        times = (*first.times_from(start.at), *[version.at for version in added])
        return SizedMessages((*first.messages, *more.messages), first.size + more.size, first.cost + more.cost, times)

    def last_rewind(self) -> tuple[Version, Rewind]:
        """Return the last rewind that can be undone. The version before it is the way forward.

        Raises `Conflict` if there is none: no rewind, or something was said since.
        """
        rewinds: list[tuple[Version, Rewind]] = []
        for version in self.versions:
            if version.rewind is None:
                rewinds.clear()
            elif not version.rewind.redo:
                rewinds.append((version, version.rewind))
            elif rewinds:
                rewinds.pop()
        if not rewinds:
            raise Conflict(
                f"there is nothing to redo in session {self._id!r}: its newest change is not a rewind; rewind it to an"
                " earlier version instead"
            )
        return rewinds[-1]


class RecentPast:
    """The changes of a history whose store keeps nothing, as far as there is room for what was replaced."""

    def __init__(self) -> None:
        self.changes: deque[PastChange] = deque()
        self.first = 0
        """The version of the first of these changes."""
        self._cost = 0
        self._replaced: deque[int] = deque()

    def add(self, change: PastChange) -> None:
        """Add a change. Forgets the oldest versions if those that are no longer shown need too much memory."""
        if not isinstance(change.change, MessageAdded):
            self._replaced.append(self._cost)
            self._cost = change.change.history.cost
        else:
            self._cost += cost_of(change.change.message)
        self.changes.append(change)
        while len(self._replaced) > 1 and sum(self._replaced) > _REPLACED_BYTES:
            self._forget_first()

    def _forget_first(self) -> None:
        """Forget the versions before the second one that begins a history."""
        self._replaced.popleft()
        self._replaced[0] = 0
        self.changes.popleft()
        self.first += 1
        while isinstance(self.changes[0].change, MessageAdded):
            self.changes.popleft()
            self.first += 1


def _completed(versions: list[Version], history: History) -> list[Version]:
    """Add the versions that are in memory only: the store keeps nothing, or has not written them yet."""
    since, count = history.since
    last = versions[-1].number if versions else -1
    if last >= history.version:
        return versions
    messages, times = history.messages, history.times
    if last < since:
        first = SizedMessages.of(messages[:count])
        begun = SizedMessages(first.messages, first.size, first.cost, times[:count])
        at = times[count] if count < len(times) else history.changed_at
        versions = [*(versions if last == since - 1 else ()), Version(since, at, count, messages=begun)]
        last = since
    index = count + last - since
    return versions + [
        Version(last + 1 + offset, at, index + 1 + offset, message=message)
        for offset, (message, at) in enumerate(zip(messages[index:], times[index:], strict=True))
    ]


def read_moment(text: str) -> int | float:
    """Parse a parameter: the number of a version, or a time, in UTC if it has no zone, as seconds since the epoch.

    Raises `InvalidParameters`.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidParameters(
            f"{text!r} is neither the number of a version nor a time such as 2027-01-31T12:00:00Z"
        ) from None
