"""The journal: makes the changes of all sessions durable, and restores the sessions at the next start."""
