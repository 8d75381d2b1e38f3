"""The trees of one mount as a WsgiDAV provider; each request brings its own."""

import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from wsgidav.dav_error import HTTP_FORBIDDEN, DAVError, PRECONDITION_CODE_PropfindFiniteDepth
from wsgidav.dav_provider import DAVProvider

from cfs_webdav import listings
from cfs_webdav.errors import told
from cfs_webdav.live import LIVE, RESOURCE_TYPE
from cfs_webdav.locks import Locks
from cfs_webdav.resources import CONDITIONS, TREE, Collection, File, plain, resource
from cfs_webdav.tree import Conditions, Tree

_Handler = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Provider(DAVProvider):  # type: ignore[misc]
    """Finds resources in the tree of the request."""

    def __init__(self, locks: Locks) -> None:
        super().__init__()
        self._locks = locks
        self._locking = threading.Lock()

    def get_resource_inst(self, path: str | None, environ: dict[str, Any]) -> File | Collection | None:
        """Return what is at a path; None if nothing is, or if the path is what is above the mount."""
        if path is None:
            return None
        tree: Tree = environ[TREE]
        with told(tree):
            entry = tree.look(plain(path))
        return None if entry is None else resource(entry, environ)

    def ref_url_of(self, path: str, *, collection: bool) -> str:
        """Name a path as the keepers of locks and properties do."""
        return quote(self.share_path + path + ("/" if collection and path != "/" else ""))

    def custom_request_handler(self, environ: dict[str, Any], start_response: Any, default_handler: _Handler) -> Any:
        """Do before the library's handler what it leaves out."""
        tree: Tree = environ[TREE]
        with told(tree):
            tree.check(plain(environ["PATH_INFO"]))
        match environ["REQUEST_METHOD"]:
            case "DELETE" | "MOVE" | "COPY" if plain(environ["PATH_INFO"]) == "/":
                raise DAVError(HTTP_FORBIDDEN, "a mount stays where it is, with what is in it; choose something in it")
            case "PUT":  # the tree judges these in one piece with the write
                environ[CONDITIONS] = Conditions(
                    environ.pop("HTTP_IF_MATCH", None), environ.pop("HTTP_IF_NONE_MATCH", None)
                )
            case "LOCK" if environ["CONTENT_LENGTH"] != "0":
                with self._locking:  # one by one: no name is to be made for a lock that there is no room for then
                    self._locks.require_room(environ["wsgidav.auth.user_name"])
                    return default_handler(environ, start_response)
            case "PROPFIND" if environ.get("HTTP_DEPTH", "infinity") == "infinity":
                if not tree.flat:
                    raise DAVError(
                        HTTP_FORBIDDEN,
                        "ask for one level at a time (Depth: 1)",
                        err_condition=PRECONDITION_CODE_PropfindFiniteDepth,
                    )
                environ["HTTP_DEPTH"] = "1"
        if environ["REQUEST_METHOD"] == "PROPFIND" and (listed := self._listing(environ)) is not None:
            head = [("Content-Type", "application/xml; charset=utf-8"), ("Content-Length", str(len(listed)))]
            start_response("207 Multi-Status", head)
            return [listed]
        return default_handler(environ, start_response)

    def is_unknown(self, name: str, tree: Tree) -> bool:
        """Tell whether nothing can have a property of this name."""
        own = tree.namespace is not None and name.startswith(tree.namespace)
        return not (own or name.startswith("{DAV:}") or self.prop_manager.has_any)

    def _listing(self, environ: dict[str, Any]) -> bytes | None:
        """Answer a PROPFIND of a collection's members without the library, where that makes no difference."""
        tree: Tree = environ[TREE]
        if environ["HTTP_DEPTH"] != "1" or any(key.startswith("HTTP_IF") for key in environ):
            return None
        names = listings.asked_names(environ["wsgi.input"].read())
        environ["wsgi.input"].seek(0)
        if not names or not all(name in LIVE or name == RESOURCE_TYPE or self.is_unknown(name, tree) for name in names):
            return None
        path = plain(environ["PATH_INFO"])
        with told(tree):
            entry = tree.look(path)
            if entry is None or not entry.collection:
                return None
            return listings.multistatus(self.share_path, names, [entry, *tree.members(path)])
