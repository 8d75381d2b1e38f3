"""Which files have changed since the task of an agent began, as the ledger says (A8, B7)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

from cfs_agents.base.disk import disk_errors
from cfs_agents.base.events import FileChanges
from cfs_agents.base.threads import to_the_end
from cfs_agents.guards.ledger import ChangeLog
from cfs_agents.guards.report import ChangeKind

_T = TypeVar("_T")


class TaskWatch:
    """Compares the files below `root` with those at the beginning of a task. The state is that of the ledger.

    `folders` are the logical folders of the agents, with their paths below `root`. Methods that wait read the disk in
    threads, and raise `StorageFull` and `DiskError`.
    """

    def __init__(self, ledger: ChangeLog, root: Path, folders: Mapping[str, str]) -> None:
        self.ledger = ledger
        self._root = root
        prefixes = {logical: f"{folder}/" if folder else "" for logical, folder in folders.items()}
        self._places = {f"{logical}/": prefix for logical, prefix in prefixes.items()}
        self._places |= {f"{ledger.place(folder)}/": prefixes[logical] for logical, folder in folders.items()}

    async def began(self, agent_id: str, *, again: bool) -> None:
        """Store the state of the files: an agent begins a task, or, if not `again`, continues one."""
        await self.off_the_loop(lambda: self.ledger.mark(agent_id, again=again))

    async def changes(self, agent_id: str, *, below: str = "") -> FileChanges:
        """Return what has changed since the task of an agent began. Each path follows `below`."""
        facts = await self.off_the_loop(lambda: self.ledger.since(agent_id))
        paths = (tuple(below + fact.path for fact in facts if fact.kind == kind) for kind in get_args(ChangeKind))
        return FileChanges(*paths)

    async def unmade(self, agent_id: str, names: Callable[[], Sequence[str]]) -> tuple[str, ...]:
        """Return those of the `names` that were neither created nor changed since the task of an agent began.

        `names` is called in the thread.
        """

        def compare() -> tuple[str, ...]:
            files = names()
            return self.ledger.unmade(agent_id, files, self._places) if files else ()

        return await self.off_the_loop(compare)

    async def off_the_loop(self, work: Callable[[], _T]) -> _T:
        """Do work on the disk in a thread, to its end."""

        def with_errors() -> _T:
            with disk_errors(self._root):
                return work()

        return await to_the_end(with_errors)
