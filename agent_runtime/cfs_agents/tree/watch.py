"""Watches which files of an agent's directory change during a task."""

from collections.abc import Mapping, Sequence

from cfs_agents.base.disk import disk_errors
from cfs_agents.base.events import FileChanges
from cfs_agents.base.logs import get_logger
from cfs_agents.base.repairs import Warn
from cfs_agents.guards.ledger import LEDGER, ChangeLog
from cfs_agents.guards.report import Gap
from cfs_agents.guards.watch import TaskWatch
from cfs_agents.tools.paths import WORKSPACE
from cfs_agents.tree.directory import COMMANDS, HISTORY, OFFLOADED, SKILLS, AgentRoot

_log = get_logger(__name__)

_GAPS: Mapping[Gap, str] = {
    "limits": "the list of changed files is incomplete: there are too many files, or folders that are too deep",
    "unreadable": "the list of changed files is incomplete: the agent's folder could not be read",
}


class RootWatch:
    """Watches which files of the workspace and the storage change, by the agent, its commands or others.

    The state at the beginning of a task is on disk, so another process continues with it. `warn` is called with a
    sentence if some changes may be missing, and `repaired` one for each repair of the stored state.
    """

    _AGENT = "agent"

    def __init__(
        self, root: AgentRoot, ledger: str = LEDGER, warn: Warn = lambda _: None, repaired: Warn = _log.warning
    ) -> None:
        self._root = root
        self._warn = warn
        folders = {logical: logical[1:] for logical in root.folders}
        elsewhere = {} if root.has_own_workspace else {WORKSPACE[1:]: root.workspace}
        apart = [folder[1:] for folder in (HISTORY, OFFLOADED, COMMANDS, SKILLS)]  # the runtime's own
        with disk_errors(root.path):
            file = root.path / ledger
            only = tuple(folders.values())
            self._ledger = ChangeLog(
                root.path,
                file,
                only=only,
                elsewhere=elsewhere,
                apart=apart,
                ignored=root.ignored,
                contents=False,
                warn=repaired,
            )
        self._watch = TaskWatch(self._ledger, root.path, folders)

    def ensure(self) -> None:
        """Start watching a task that a version without a watch has begun. Blocks."""
        with disk_errors(self._root.path):
            self._ledger.mark(self._AGENT, again=False)

    async def begin(self) -> None:
        """Store the state of the files: a task begins."""
        await self._watch.off_the_loop(lambda: self._ledger.restart(self._AGENT))

    async def changes(self) -> FileChanges:
        """Return what has changed since the task began."""
        changes = await self._watch.changes(self._AGENT, below="/")
        if self._ledger.gap is not None:
            self._warn(_GAPS[self._ledger.gap])
        return changes

    async def unmade(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the named files that were neither created nor changed since the task began."""
        return await self._watch.unmade(self._AGENT, lambda: names) if names else ()
