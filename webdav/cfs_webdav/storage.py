"""Write locks in memory, with a cap on their number, size and time (RFC 4918, 6)."""

import time
from typing import Any

from wsgidav.dav_error import HTTP_INSUFFICIENT_STORAGE, HTTP_REQUEST_ENTITY_TOO_LARGE, DAVError
from wsgidav.lock_man.lock_storage import LockStorageDict
from wsgidav.prop_man.property_manager import PropertyManager

# Dead properties in memory, with a cap on their size (RFC 4918, 4).

MOST_BYTES_OF_ONE = 64 << 10
MOST_BYTES = 16 << 20


class Properties(PropertyManager):  # type: ignore[misc]
    """What clients have noted about the entries of one mount. It ends with the process."""

    @property
    def has_any(self) -> bool:
        """Whether anything has been noted about anything."""
        return bool(self._dict)

    def write_property(
        self,
        norm_url: str,
        name: str,
        property_value: bytes,
        dry_run: bool = False,
        environ: dict[str, Any] | None = None,
    ) -> None:
        """Keep a property; raises `DAVError` (507) when there is no room for it."""
        size = _size({name: property_value})
        of_one = _size((self._dict or {}).get(norm_url, {}))
        if of_one + size > MOST_BYTES_OF_ONE or self._size() + size > MOST_BYTES:
            raise DAVError(
                HTTP_INSUFFICIENT_STORAGE,
                f"there is room for {MOST_BYTES_OF_ONE} bytes of properties of one entry, and {MOST_BYTES} of all",
            )
        super().write_property(norm_url, name, property_value, dry_run, environ)

    def _size(self) -> int:
        return sum(map(_size, list((self._dict or {}).values())))


def _size(properties: dict[str, bytes]) -> int:
    return sum(len(name) + len(value) for name, value in list(properties.items()))


MOST_SECONDS = 600.0
"""A client that wants a lock for longer refreshes it, as all do."""
MOST_OF_ONE = 1_000
MOST = 4_000
MOST_OWNER_BYTES = 2_000


class Locks(LockStorageDict):  # type: ignore[misc]
    """All locks of one mount. A caller has so many at most, and all of them together so many."""

    def require_room(self, principal: str) -> None:
        """Raise `DAVError` (507) if this caller may have no more locks now."""
        if self._is_full(principal):
            self._forget_expired()
            if self._is_full(principal):
                raise DAVError(
                    HTTP_INSUFFICIENT_STORAGE,
                    f"you may hold {MOST_OF_ONE} locks, and all users together {MOST}; unlock something",
                )

    def create(self, path: str, lock: dict[str, Any]) -> Any:
        """Keep a new lock; raises `DAVError` when there are too many, or its owner is told at too great length."""
        if len(lock["owner"]) > MOST_OWNER_BYTES:
            raise DAVError(
                HTTP_REQUEST_ENTITY_TOO_LARGE, f"the owner of a lock is {MOST_OWNER_BYTES} bytes of XML at most"
            )
        self.require_room(lock["principal"])
        lock["timeout"] = _bounded(float(lock["timeout"]))
        return super().create(path, lock)

    def refresh(self, token: str, *, timeout: float) -> Any:
        """Let a lock begin its time anew."""
        return super().refresh(token, timeout=_bounded(timeout))

    def _is_full(self, principal: str) -> bool:
        held = [lock["principal"] for lock in list(self._dict.values()) if isinstance(lock, dict)]
        return len(held) >= MOST or held.count(principal) >= MOST_OF_ONE

    def _forget_expired(self) -> None:
        now = time.time()
        for token, lock in list(self._dict.items()):
            if isinstance(lock, dict) and lock["expire"] < now:
                self.delete(token)


def _bounded(seconds: float) -> float:
    """Shorten a time; negative stands for one without end."""
    return MOST_SECONDS if seconds < 0 else min(seconds, MOST_SECONDS)
