"""What the file agent's model is told beside its conversation, in English and in Chinese. Pure: no I/O.

The system prompt is the guideline, the context window, and a picture of the directory, in this order: what changes
least comes first, so that an engine can keep what it has computed of it.
"""

from collections.abc import Sequence

from cfs_agents.sentences import Language, sentences


def system_prompt(guideline: str, window: str, tree: str, language: Language) -> str:
    """Put the system prompt together (A7)."""
    say = sentences(language)
    return f"{guideline.strip()}\n\n{say.window}\n{window.strip()}\n\n{say.files}\n{tree}"


def after_sync(language: Language, dropped: Sequence[str]) -> str:
    """Write the message that a conversation begins with after a sync; `dropped` names calls that were not run."""
    say = sentences(language)
    return say.synced if not dropped else f"{say.synced}\n{say.dropped.format(', '.join(dropped))}"
