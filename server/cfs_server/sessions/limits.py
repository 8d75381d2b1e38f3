"""How much the sessions may take (H7)."""

from dataclasses import dataclass

from cfs.errors import TooLarge, TooMany


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one store; a message and a body are bytes of UTF-8, all of them together bytes of memory."""

    sessions: int = 100_000
    message_bytes: int = 4 << 20
    messages: int = 20_000
    total_bytes: int = 1 << 30
    queued_turns: int = 64
    turn_seconds: float = 600.0
    wait_seconds: float = 300.0
    session_events: int = 2_048
    session_event_bytes: int = 32 << 20
    all_events: int = 65_536
    all_event_bytes: int = 128 << 20

    def check_messages(self, count: int) -> None:
        """Raise `TooLarge` for more messages than one request may bring."""
        if count > self.messages:
            raise TooLarge(f"a conversation has {self.messages} messages at most; this one has more")

    def check_wait(self, predicted: float) -> None:
        """Raise `TooMany` when the engine would not come to a turn for long."""
        if predicted > self.wait_seconds:
            raise TooMany(
                f"a turn would wait for about {predicted:.0f} seconds; try again later",
                retry_after=round(predicted - self.wait_seconds, 1),
            )
