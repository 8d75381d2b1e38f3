"""The person who is asked about commands: consents to each, or leaves one open until everything is killed."""

import threading
from pathlib import Path

QUESTION = "question"


class Person:
    """Answers the questions of one run. `open_question` is the number of the one that stays open; 0 for none."""

    def __init__(self, state: str, open_question: int) -> None:
        self._file = Path(state) / QUESTION
        self._open_question = open_question
        self._asked = 0

    def consent(self) -> None:
        """Return to consent. For the question that stays open, say so in a file, and never return."""
        self._asked += 1
        if self._asked == self._open_question:
            self._file.touch()
            threading.Event().wait()


def option(arguments: list[str], name: str) -> str:
    """Return the value of an option of a command line; empty if it is not there."""
    return arguments[arguments.index(name) + 1] if name in arguments else ""
