"""The report of an agent: its claims, and the facts (B2, B7)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from cfs.wire import Usage
from cfs_agents.base.messages import Language

FinishStatus = Literal["success", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The report of an agent in its own words: claims, which are checked against the files (B7)."""

    status: FinishStatus
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)


ReportStatus = Literal["success", "failed", "unverified", "cancelled"]
"""How a sub-agent ended. `unverified`: it claims success but the facts differ, or it never reported."""

ChangeKind = Literal["created", "changed", "deleted"]

Gap = Literal["limits", "unreadable"]
"""Why changes of files may be missing: there are too many or too deep folders, or the workspace could not be read."""

_MOST_PATHS = 8
_LONGEST_PATH = 200
_LONGEST_SUMMARY = 600

_WORDS: dict[Language, Mapping[str, str]] = {
    "en": {
        "success": "success",
        "failed": "failed",
        "unverified": "unverified",
        "cancelled": "cancelled",
        "created": "created",
        "changed": "changed",
        "deleted": "deleted",
        "by": "by",
        "unknown": "unknown",
        "more": "and {} more",
        "verify": "Verify the files yourself.",
        "limits": "The list of changes is incomplete: the workspace has too many files, or folders that are too deep.",
        "unreadable": "The list of changes is incomplete: the workspace could not be read.",
        "heading": "[{} {}]",
    },
    "zh": {
        "success": "成功",
        "failed": "失败",
        "unverified": "未证实",
        "cancelled": "已取消",
        "created": "新建",
        "changed": "修改",
        "deleted": "删除",
        "by": "由",
        "unknown": "未知",
        "more": "另有 {} 个",
        "verify": "请自己核实文件。",
        "limits": "改动列表不完整：工作区的文件太多，或文件夹层级太深。",
        "unreadable": "改动列表不完整：无法读取工作区。",
        "heading": "[{} {}]",
    },
}


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A changed file of the workspace: its path relative to the workspace, and the agent that changed it.

    The path is text: bytes that are not text are escaped as `\\xff` in it (`escaped_name`).
    `by` is an agent's id, or None if that is not known: a command that several agents may have run, or a person.
    """

    path: str
    kind: ChangeKind
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a task: the agent's claims (`summary`, `details`), the `facts`, and the status's `reasons`.

    `facts` are the changes of the workspace from the spawn to the end: its own, those of agents below it, and those
    that no agent is known to have made; with a `gap` some may be missing. `usage` is in tokens.
    """

    agent_id: str
    status: ReportStatus
    summary: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    facts: tuple[ChangedFile, ...] = ()
    reasons: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    gap: Gap | None = None

    @classmethod
    def by_agent(cls, agent_id: str, finish: Finish) -> Self:
        """Return an agent's own report, whose claims are not checked yet."""
        return cls(agent_id, "success" if finish.status == "success" else "failed", finish.summary, finish.details)

    @classmethod
    def by_system(cls, agent_id: str, status: ReportStatus, reason: str) -> Self:
        """Return the report of a task on which the agent itself has not reported."""
        return cls(agent_id, status, reasons=(reason,))

    @property
    def ok(self) -> bool:
        """Whether the task succeeded and the facts do not contradict this."""
        return self.status == "success"

    def text(self, language: Language = "en") -> str:
        """Return it as a short text for the parent: status, summary, reasons, and the changes with their agents."""
        say = _WORDS[language]
        lines = [say["heading"].format(self.agent_id, say[self.status]), _shortened(self.summary)]
        lines += self.reasons
        for kind in ("created", "changed", "deleted"):
            lines += _of_kind(kind, self.facts, self.agent_id, say)
        if self.gap is not None:
            lines.append(say[self.gap])
        if self.status == "success" or self.status == "unverified":
            lines.append(say["verify"])
        return "\n".join(line for line in lines if line)


def _of_kind(kind: str, facts: Iterable[ChangedFile], agent_id: str, say: Mapping[str, str]) -> list[str]:
    """Write one line for the agent's own changes, and one for each other agent with changes."""
    by_author: dict[str | None, list[str]] = {}
    for change in facts:
        if change.kind == kind:
            by_author.setdefault(change.by, []).append(change.path)
    lines = []
    for by in sorted(by_author, key=lambda by: (by != agent_id, by or "")):
        who = "" if by == agent_id else f" ({say['by']} {by or say['unknown']})"
        lines.append(f"{say[kind]}{who}: {_listed(sorted(by_author[by]), say)}")
    return lines


def _listed(paths: list[str], say: Mapping[str, str]) -> str:
    names = ", ".join(_path(path) for path in paths[:_MOST_PATHS])
    left_out = len(paths) - _MOST_PATHS
    return f"{names}, {say['more'].format(left_out)}" if left_out > 0 else names


def _path(path: str) -> str:
    half = _LONGEST_PATH // 2
    return path if len(path) <= _LONGEST_PATH else f"{path[:half]}...{path[-half:]}"


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_SUMMARY else f"{text[:_LONGEST_SUMMARY]}..."
