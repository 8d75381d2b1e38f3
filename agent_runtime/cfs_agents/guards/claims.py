"""Checks the files that a report claims to have made, changed or deleted against the ledger (B7)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cfs_agents.base.messages import Language, Messages, catalogue
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.guards.report import ChangedFile
from cfs_agents.tools.errors import ToolError
from cfs_agents.tools.paths import WORKSPACE, escaped_name, file_path, unescaped_name

_MADE = ("created_files", "files_created", "new_files")
_CHANGED = ("changed_files", "modified_files", "updated_files", "edited_files")
_DELETED = ("deleted_files", "removed_files")
_MOST_NAMED = 5


def check_claims(
    details: Mapping[str, Any],
    agent_id: str,
    facts: Sequence[ChangedFile],
    ledger: ChangeLog,
    language: Language = "en",
) -> tuple[str, ...]:
    """Return the problems in the claims of an agent. Blocks: it reads the files."""
    say = catalogue(language)
    reasons: list[str] = []
    wrong: dict[str, list[str]] = {}
    for key in (*_MADE, *_CHANGED, *_DELETED):
        if key not in details:
            continue
        paths = details[key]
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            reasons.append(say.no_paths.format(key))
            continue
        for path in paths:
            if (problem := _problem(path, agent_id, facts, ledger, deleted=key in _DELETED)) is not None:
                wrong.setdefault(problem, []).append(path)
    return (*reasons, *_sentences(wrong, say))


def relative(path: str) -> str | None:
    """Return a path as it is below the workspace; None where it leads elsewhere, or is none."""
    try:
        logical = file_path(path)
    except ToolError:
        return None
    below = logical.removeprefix(f"{WORKSPACE}/")
    return below if below != logical else None


def _problem(path: str, agent_id: str, facts: Sequence[ChangedFile], ledger: ChangeLog, *, deleted: bool) -> str | None:
    """Return the name of the message about the problem of one claimed path."""
    relative_path = relative(path) or _odd(path)
    if relative_path is None:
        return "no_path"
    size = ledger.size(relative_path)
    named = escaped_name(relative_path)
    fact = next((change for change in facts if change.path == named), None)
    if deleted:
        if size is not None:
            return "still_there"
        return "unchanged" if fact is None and not ledger.passes_over(relative_path) else None
    if size is None:
        return "missing"
    if size == 0:
        return "claimed_empty"
    if fact is None and ledger.has_written(agent_id, relative_path):
        return None
    if fact is None:
        return "unchanged" if ledger.last_by(relative_path) in (None, agent_id) else "not_its_own"
    return "not_its_own" if fact.by not in (None, agent_id) else None


def _odd(path: str) -> str | None:
    """Parse a claimed path that is not a logical path but may be a file: in the form of reports, or bare."""
    relative_path = unescaped_name(path).removeprefix(f"{WORKSPACE}/")
    return None if {"", ".", ".."}.intersection(relative_path.split("/")) else relative_path


def _sentences(wrong: Mapping[str, list[str]], say: Messages) -> Iterator[str]:
    for problem, paths in wrong.items():
        more = "..." if len(paths) > _MOST_NAMED else ""
        yield getattr(say, problem).format(", ".join(path[:100] for path in paths[:_MOST_NAMED]) + more)
