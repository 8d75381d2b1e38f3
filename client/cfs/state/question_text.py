"""The words in which a question of an agent is shown to a person, the same on every interface (A5)."""

from collections.abc import Mapping
from types import MappingProxyType

from cfs.contract.invisible import shapely
from cfs.contract.wire import Question, QuestionKind

WISHES: Mapping[QuestionKind, str] = MappingProxyType(
    {
        "command": "run this command",
        "write": "change this file",
        "read": "read this file",
        "mcp": "call this tool of an MCP server",
        "spawn": "start this agent",
        "other": "call this tool",
    }
)
"""What an agent wants to do, by the kind of its question."""


def wish_of(question: Question) -> str:
    """Return what the agent wants to do, without what exactly: `run this command in the background in /srv`."""
    background = " in the background" if question.background else ""
    directory = f" in {shapely(question.directory)}" if question.directory else ""
    return f"{WISHES[question.kind]}{background}{directory}"


def subject_of(question: Question) -> str:
    """Return exactly what would run, in lines that begin with a bar. What cannot be seen is shown by its number."""
    return "".join(f"  | {shapely(line)}\n" for line in question.text.split("\n"))


def question_text(session: str, question: Question) -> str:
    """Return a question with its answers, as a file shows it."""
    return (
        f"{shapely(session)} asks: may it {wish_of(question)}?\n{subject_of(question)}"
        f"Answer with one word: {', '.join(question.choices)}\n"
    )
