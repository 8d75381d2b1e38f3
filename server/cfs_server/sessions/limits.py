"""How much the sessions may take (H7)."""

from dataclasses import dataclass

from cfs.errors import TooMany


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one store; sizes are bytes of UTF-8, times are seconds."""

    sessions: int = 100_000
    message_bytes: int = 4 << 20
    total_bytes: int = 1 << 30
    queued_turns: int = 64
    turn_seconds: float = 600.0
    wait_seconds: float = 300.0
    session_events: int = 2_048
    all_events: int = 65_536

    def check_wait(self, predicted: float) -> None:
        """Raise `TooMany` when the engine would not come to a turn for long."""
        if predicted > self.wait_seconds:
            raise TooMany(
                f"a turn would wait for about {predicted:.0f} seconds; try again later",
                retry_after=round(predicted - self.wait_seconds, 1),
            )
