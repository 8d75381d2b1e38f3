"""The wire contract, the SDK on top of it, and the command line."""
