"""`/dav/sub_sessions`: for each root session a collection of everything below it, flat (W3)."""

from cfs.ids import name_below
from cfs_server.dav.places import Family, Place, Top, in_sub_sessions
from cfs_server.dav.sessions import SessionTree
from cfs_server.sessions.session import Session
from cfs_webdav.tree import Entry


class SubSessionTree(SessionTree):
    """The sub-sessions that one caller may use, for one request.

    `/main/coder.tester` is the session `main/coder/tester`, and writing to it steers whoever works there. Listed are
    the roots that have something below them; the collection of any other root that exists is empty. Collections can be
    neither made nor changed: a root is deleted or renamed in `/dav/sessions`.
    """

    flat = False
    _mount = "/dav/sub_sessions"

    def place(self, path: str) -> Place | None:
        """Tell what a path stands for."""
        return in_sub_sessions(path)

    def path_of(self, session_id: str) -> str:
        """Return the path of a sub-session."""
        root = session_id.partition("/")[0]
        return f"/{root}/{name_below(root, session_id)}"

    def may_remove(self, path: str) -> bool:  # noqa: ARG002 - every collection
        """Say no: the sub-sessions would go, and their collection stay."""
        return False

    def _is_reachable(self, session_id: str) -> bool:  # noqa: ARG002 - each is
        return True

    def _listed(self, place: Place | None) -> list[Session]:
        return self.gate.below(place.root) if isinstance(place, Family) else []

    def _collections(self, place: Place | None) -> list[tuple[str, float]]:
        if not isinstance(place, Top):
            return []
        return [(f"/{root.id}", root.created_at) for root in self.gate.roots_with_children()]

    def _look_at_family(self, place: Family, path: str) -> Entry | None:
        root = self.gate.enter(place.root)
        return None if root is None else Entry(path, collection=True, modified=root.created_at)
