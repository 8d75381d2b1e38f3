"""Takes the files of a workspace back together with the sessions whose agents have changed them.

The decision and what it needs are stored with the change of the sessions, as one. Only then the files follow. If the
server is killed in between, the next start finishes them before it answers requests: all is as before, or all as after.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from anyio import to_thread

from cfs.errors import CfsError, Conflict, StorageFull, Unavailable
from cfs.wire import ForeignChanges
from cfs_filesystem import NotFoundError
from cfs_filesystem.versions import Author, Change, Entry, EntryType, VersionsUnavailableError
from cfs_filesystem.versions.lineage import changes_since
from cfs_filesystem.versions.store import entries_at
from cfs_filesystem.versions.tree import parents
from cfs_server.domain.authors import author
from cfs_server.domain.changes import FilesRewound
from cfs_server.domain.past import Moment
from cfs_server.journal.journal import Journal
from cfs_server.sessions.rewinding import RewindPlan
from cfs_server.workspaces.history import WorkspaceHistory
from cfs_server.workspaces.workspaces import Workspaces

_SPACE = "workspaces.rewind"
_NAMED = 20
"""How many files a sentence names."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What a rewind does to a workspace: its entries by path, None for what is removed, as at the change `to`.

    `before` is the last change. `left` are the files that somebody else has changed since, and that stay as they are.
    `of_children` are the files that stay because only sub-sessions have changed them, each with the last of these.
    """

    workspace: str
    to: int
    before: int
    entries: Mapping[str, Entry | None]
    left: tuple[str, ...] = ()
    of_children: Mapping[str, str] = field(default_factory=dict)

    @property
    def lasting(self) -> tuple[str, ...]:
        """Sentences that say what is not undone."""
        if not self.of_children:
            return ()
        files = _listed([f"{path} (by {agent})" for path, agent in self.of_children.items()])
        return (f"Files that sub-sessions have changed stay: {files}. A rewind with sub-sessions takes them back.",)

    @property
    def record(self) -> FilesRewound:
        """What the session's record says of it."""
        return FilesRewound(self.workspace, self.to, self.before, tuple(self.entries))


def plan_rewind(
    history: WorkspaceHistory, workspace: str, at: Moment, sessions: Sequence[str], others: ForeignChanges
) -> FilePlan:
    """Plan to undo what the agents of some sessions have changed since. The first one is the parent of the rest.

    Raises `Conflict` if others have changed it since.
    """
    history.look(workspace)
    store = history.store
    to = max(store.number_at(workspace, at.at, at.order), store.oldest(workspace))
    parent = f"{sessions[0]}/"
    return _plan(history, workspace, to, lambda change: change.author.agent in sessions, None, others, parent)


def plan_redo(history: WorkspaceHistory, done: FilesRewound, operation: str, others: ForeignChanges) -> FilePlan:
    """Plan to undo a rewind of files."""
    history.look(done.workspace)
    return _plan(
        history, done.workspace, done.before, lambda change: change.author.call == operation, done.paths, others
    )


def _plan(
    history: WorkspaceHistory,
    workspace: str,
    to: int,
    is_own: Callable[[Change], bool],
    paths: Collection[str] | None,
    others: ForeignChanges,
    parent: str = "",
) -> FilePlan:
    store, before = history.store, history.store.last(workspace)
    selected, foreign = set(paths or ()), dict[str, Change]()
    for change in changes_since(store, workspace, to):
        if is_own(change):
            selected.update(change.entries if paths is None else ())
        else:
            foreign |= {path: foreign.get(path, change) for path in change.entries}
    changed, touched = {}, sorted(selected | foreign.keys())
    present, past = entries_at(store, workspace, touched), entries_at(store, workspace, touched, to)
    for path in touched:
        now, then = present[path], past[path]
        if not (now is None and then is None) and (now is None or not now.equals(then)):
            changed[path] = then
    entries = {path: then for path, then in changed.items() if path in selected}
    in_the_way = {
        above
        for path, then in entries.items()
        for above in (parents(path) if then is not None else ())
        if above in changed and (now := present[above]) is not None and now.type is not EntryType.FOLDER
    }
    entries |= {path: changed[path] for path in in_the_way}
    contested = sorted(path for path in entries if path in foreign)
    if contested and others == "refuse":
        raise Conflict(_refusal(workspace, {path: foreign[path] for path in contested}, parent), files=contested)
    stays = set(contested) if others == "theirs" else set[str]()
    in_place = stays & in_the_way
    left = tuple(sorted(stays | {path for path in entries if not in_place.isdisjoint(parents(path))}))
    of_children = {
        path: foreign[path].author.agent
        for path in changed
        if path not in entries and parent and foreign[path].author.agent.startswith(parent)
    }
    entries = {path: then for path, then in entries.items() if path not in left}
    return FilePlan(workspace, to, before, entries, left, of_children)


def _refusal(workspace: str, foreign: Mapping[str, Change], parent: str) -> str:
    files = _listed([f"{path} (by {_named(change.author)})" for path, change in foreign.items()])
    of_children = parent and any(change.author.agent.startswith(parent) for change in foreign.values())
    return (
        f"others have changed files of {workspace!r} since: {files}. Keep what they wrote (`theirs`), or take these"
        f" files back as well (`ours`){', or rewind the sub-sessions, too' if of_children else ''}"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _named(by: Author) -> str:
    return by.agent or by.principal or "a program outside of the server"


class CallersFileRewind:
    """The files that go back with the sessions of a plan, for one caller."""

    def __init__(self, rewinds: "FileRewinds", plan: RewindPlan, workspace: str, others: ForeignChanges) -> None:
        self._rewinds = rewinds
        self._plan = plan
        self._workspace = workspace
        self._others = others
        self.planned: FilePlan | None = None

    async def plan(self) -> FilesRewound | None:
        """Plan what becomes of the files. Raises `Conflict` if others have changed them since."""
        self.planned = await to_thread.run_sync(self._make)
        return self.planned.record if self.planned is not None and self.planned.entries else None

    def _make(self) -> FilePlan | None:
        plan, history = self._plan, self._rewinds.history
        if self.planned is not None:
            history.look(self.planned.workspace)
            if history.store.last(self.planned.workspace) == self.planned.before:
                return self.planned  # nothing has been changed since
        if plan.undone is None:
            return plan_rewind(history, self._workspace, plan.at, plan.sessions, self._others)
        if plan.undone.files is None:
            return None
        return plan_redo(history, plan.undone.files, plan.operation, self._others)

    def note(self, operation: str, agent: str) -> None:
        """Note what is planned."""
        assert self.planned is not None  # noqa: S101 - it is noted after it was planned
        self._rewinds.note(self.planned, operation, agent)

    async def finish(self) -> None:
        """Do what is noted."""
        await self._rewinds.finish(self._plan.operation)


class FileRewinds:
    """Carries out rewinds of files that are stored with a change of sessions."""

    def __init__(self, workspaces: Workspaces, history: WorkspaceHistory, journal: Journal) -> None:
        self.history = history
        self._workspaces = workspaces
        self._journal = journal

    def note(self, plan: FilePlan, operation: str, agent: str) -> None:
        """Note, with the change of the sessions themselves, that the files of a plan follow."""
        by = author.get()
        writer = {"agent": agent, "principal": "local" if by is None else by.principal}
        self._journal.keep(_SPACE, operation, json.dumps({**asdict(plan.record), **writer}))

    def _restore(self, noted: dict[str, Any], operation: str) -> list[str]:
        workspace, store = noted["workspace"], self.history.store
        entries = entries_at(store, workspace, noted["paths"], noted["to"])
        return self._workspaces.rewind(workspace, entries, Author(noted["principal"], noted["agent"], operation))

    async def finish(self, own: str | None = None) -> None:
        """Let the files follow of all rewinds that are noted.

        Raises `StorageFull` if the disk has no room for them, and `Unavailable`. With an operation as `own` only if
        this one fails: another one may be of another user.
        """
        failed: dict[str, StorageFull | Unavailable] = {}
        for operation, text in self._journal.kept(_SPACE).items():
            try:
                await self._follow(json.loads(text), operation)
            except (StorageFull, Unavailable) as error:
                failed[operation] = error
            else:
                self._journal.keep(_SPACE, operation, None)
        for operation, reason in failed.items():
            if own in (None, operation):
                raise reason

    async def _follow(self, noted: dict[str, Any], operation: str) -> None:
        workspace = noted["workspace"]
        try:
            refused = await to_thread.run_sync(self._restore, noted, operation)
        except (VersionsUnavailableError, Unavailable) as error:
            raise Unavailable(
                f"the sessions went back, and the files of {workspace!r} follow later: {_reason(error)}"
            ) from error
        except NotFoundError as error:  # the past that it needs was deleted meanwhile: it can never be finished
            _log.error("rewind.unfinished", workspace=workspace, reason=_reason(error))
        except (OSError, StorageFull) as error:
            _log.error("rewind.unfinished", workspace=workspace, reason=_reason(error))
            raise StorageFull(
                f"the sessions went back, and not all files of {workspace!r} could follow: {_reason(error)}. They do"
                " with the next rewind, or the next start"
            ) from error
        else:
            if refused:
                _log.warning("rewind.left_folders", workspace=workspace, folders=refused)


def _reason(error: OSError | CfsError) -> str:
    return error.detail if isinstance(error, CfsError) else f"{error.strerror}"
