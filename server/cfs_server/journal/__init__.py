"""The journal of sessions: records, and the databases that store them."""
