"""What the runtime says to the model, in English and in Chinese. Pure: no I/O.

The system prompt is the guideline, the context window, and a picture of the directory, in this order: what changes
least comes first, so that an engine can keep what it has computed of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cfs_agents.file_agent.root import Language


@dataclass(frozen=True, slots=True)
class Phrases:
    """The runtime's own sentences in one language."""

    window: str
    tree: str
    go_on: str
    dropped: str
    last_turn: str


_PHRASES: dict[Language, Phrases] = {
    "en": Phrases(
        window="[/context_window_main.md]",
        tree="[Files]",
        go_on="[The context window is replaced. Go on with the current task.]",
        dropped="These calls came after the sync and were not run: {}.",
        last_turn="[The limit of rounds is reached. Call sync_context now: write what is done, what was found, and the"
        " next steps. Nothing else is kept.]",
    ),
    "zh": Phrases(
        window="[/context_window_main.md]",
        tree="[文件]",
        go_on="[上下文窗口已替换。请继续当前任务。]",
        dropped="这些调用在同步之后，没有执行：{}。",
        last_turn="[轮数已用完。现在请调用 sync_context：写明已完成的事、发现和下一步。其他内容不会保留。]",
    ),
}


def phrases(language: Language) -> Phrases:
    """Return the runtime's sentences."""
    return _PHRASES[language]


def system_prompt(guideline: str, window: str, tree: str, language: Language) -> str:
    """Put the system prompt together (A7)."""
    say = _PHRASES[language]
    return f"{guideline.strip()}\n\n{say.window}\n{window.strip()}\n\n{say.tree}\n{tree}"


def after_sync(language: Language, dropped: Sequence[str]) -> str:
    """Write the message that a conversation begins with after a sync; `dropped` names calls that were not run."""
    say = _PHRASES[language]
    return say.go_on if not dropped else f"{say.go_on}\n{say.dropped.format(', '.join(dropped))}"
