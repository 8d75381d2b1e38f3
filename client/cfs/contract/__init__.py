"""What a server and its clients agree on: wire models, errors, ids, and the text form of sessions. Pure: no I/O."""
