"""The engines: one interface, several back ends (E4). An engine generates text from messages."""
