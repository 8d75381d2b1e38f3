"""State that was copied out of the device: bytes under a limit, each freed with the last node that refers to it."""

from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False, slots=True)
class Blob:
    """The state of the positions from `start` to `end`; nodes that were one when it was saved share it."""

    start: int
    end: int
    size: int
    data: Any
    users: int = 1


class Memory:
    """Counts the bytes of all blobs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def full(self) -> bool:
        """Whether something has to go."""
        return self.used > self.limit

    def add(self, blob: Blob) -> Blob:
        """Count a new blob."""
        self.used += blob.size
        return blob

    def share(self, blob: Blob | None) -> None:
        """Count one node more that refers to a blob."""
        if blob is not None:
            blob.users += 1

    def free(self, blob: Blob) -> None:
        """Count one node less."""
        blob.users -= 1
        if not blob.users:
            self.used -= blob.size
            blob.data = None

    def check_integrity(self, references: list[Blob]) -> list[str]:
        """Compare the books with the blobs that nodes refer to; every line is a violation."""
        users = Counter(references)
        problems = [
            f"a blob has {blob.users} users in place of {count}" for blob, count in users.items() if blob.users != count
        ]
        if (there := sum(blob.size for blob in users)) != self.used:
            problems.append(f"{self.used} bytes are booked, {there} are there")
        if self.full:
            problems.append(f"{self.used} bytes are kept where {self.limit} may be")
        return problems
