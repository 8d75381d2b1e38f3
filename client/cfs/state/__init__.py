"""What clients know of sessions: event streams, replies, and the state that events add up to. Pure: no I/O."""

from cfs.state.session_state import GENERATING, IDLE, SessionState, ShownText, TurnReader, TurnState, life_of

__all__ = ["GENERATING", "IDLE", "SessionState", "ShownText", "TurnReader", "TurnState", "life_of"]
