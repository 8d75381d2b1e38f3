"""What every floor uses and that knows nothing of sessions: broadcasts, limits of connections, private files."""
