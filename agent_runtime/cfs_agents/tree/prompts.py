"""The system prompts of agents with a state on disk (A7, B6). Pure: no I/O.

What changes least comes first, so that an engine reuses what it has computed. The goal of a sub-agent is its first
message and is never part of the system prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cfs_agents.base.messages import Language, catalogue
from cfs_agents.tree.fibre_rules import PromptForm, full_part, short_part

CAPABILITIES = "=== SYSTEM CAPABILITIES (IMMUTABLE) ==="
ROLE = "=== SPECIFIC ROLE INSTRUCTIONS ==="

_LONGEST_NOTE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptParts:
    """The parts of a system prompt; None for a part that it does not have.

    - `fixed`: the rules, which rarely change.
    - `project`: what is common to all agents that work on the same files.
    - `facts`: about the environment, such as its files.
    - `instruction`: the agent's own role.
    - `window`: the context window that the agent writes itself.
    """

    fixed: str
    project: str | None = None
    facts: str | None = None
    instruction: str | None = None
    window: str | None = None


def render(parts: PromptParts, headings: Mapping[str, str], separator: str) -> str:
    """Return the parts named in `headings`, in this order, each below its heading, unless that is empty."""
    texts = [(heading, getattr(parts, name)) for name, heading in headings.items()]
    return separator.join(f"{heading}\n{text}" if heading else text for heading, text in texts if text is not None)


def file_agent_prompt(
    guideline: str, window: str, files: str, language: Language, window_path: str, *, project: str = ""
) -> str:
    """Return the system prompt of an agent that works alone; `window_path` is the logical path of its window."""
    parts = PromptParts(fixed=guideline.strip(), project=project.strip() or None, window=window.strip(), facts=files)
    headings = {"fixed": "", "project": "", "window": f"[{window_path}]", "facts": catalogue(language).files}
    return render(parts, headings, "\n\n")


def fibre_prompt(
    language: Language,
    instruction: str,
    *,
    may_spawn: bool,
    notes: Mapping[str, str],
    common: str = "",
    form: PromptForm = "full",
) -> str:
    """Return the system prompt of an agent of a tree: `notes` are facts about its environment.

    Notes are one line each, in their order; empty ones are left out and long ones shortened. What is `common` to all
    agents of a tree comes before what differs.
    """
    facts = "\n".join(f"{name}: {_line(value)}" for name, value in notes.items() if value.strip())
    parts = PromptParts(
        fixed=full_part(language) if form == "full" else short_part(language, may_spawn=may_spawn),
        project=common.strip() or None,
        facts=facts or None,
        instruction=instruction.strip(),
    )
    return render(parts, {"fixed": CAPABILITIES, "project": "", "facts": "", "instruction": ROLE}, "\n")


def _line(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _LONGEST_NOTE else f"{line[:_LONGEST_NOTE]}..."
