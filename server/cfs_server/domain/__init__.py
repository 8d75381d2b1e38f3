"""Values and rules of sessions: state, turns, events, history, quotas, ids, placement. No I/O."""
