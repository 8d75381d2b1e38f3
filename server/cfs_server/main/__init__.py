"""The program: its commands, checks and logs, and the process that serves."""
