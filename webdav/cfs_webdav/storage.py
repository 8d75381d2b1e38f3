"""Stores dead properties and write locks in memory, with limits (RFC 4918, 4 and 6)."""

import time
from typing import Any

from wsgidav.dav_error import HTTP_INSUFFICIENT_STORAGE, HTTP_REQUEST_ENTITY_TOO_LARGE, DAVError
from wsgidav.lock_man.lock_storage import LockStorageDict
from wsgidav.prop_man.property_manager import PropertyManager

MOST_BYTES_OF_ONE = 64 << 10
MOST_BYTES = 16 << 20


class Properties(PropertyManager):  # type: ignore[misc]
    """The dead properties of one mount. They are lost when the process exits."""

    @property
    def has_any(self) -> bool:
        """Whether any entry has a dead property."""
        return bool(self._dict)

    def write_property(
        self,
        norm_url: str,
        name: str,
        property_value: bytes,
        dry_run: bool = False,
        environ: dict[str, Any] | None = None,
    ) -> None:
        """Store a property; raises `DAVError` (507) if it exceeds a limit."""
        size = _size({name: property_value})
        of_one = _size((self._dict or {}).get(norm_url, {}))
        if of_one + size > MOST_BYTES_OF_ONE or self._size() + size > MOST_BYTES:
            raise DAVError(
                HTTP_INSUFFICIENT_STORAGE,
                f"properties are limited to {MOST_BYTES_OF_ONE} bytes for one entry and {MOST_BYTES} in total",
            )
        super().write_property(norm_url, name, property_value, dry_run, environ)

    def _size(self) -> int:
        return sum(map(_size, list((self._dict or {}).values())))


def _size(properties: dict[str, bytes]) -> int:
    return sum(len(name) + len(value) for name, value in list(properties.items()))


MOST_SECONDS = 600.0
"""Maximum lifetime of a lock. Clients refresh a lock to keep it longer."""
MOST_OF_ONE = 1_000
MOST = 4_000
MOST_OWNER_BYTES = 2_000


class Locks(LockStorageDict):  # type: ignore[misc]
    """The locks of one mount, limited for each caller and in total."""

    def require_room(self, principal: str) -> None:
        """Raise `DAVError` (507) if this caller may have no more locks now."""
        if self._is_full(principal):
            self._forget_expired()
            if self._is_full(principal):
                raise DAVError(
                    HTTP_INSUFFICIENT_STORAGE,
                    f"locks are limited to {MOST_OF_ONE} for one user and {MOST} in total; unlock something",
                )

    def create(self, path: str, lock: dict[str, Any]) -> Any:
        """Store a new lock; raises `DAVError` if there are too many, or if its owner element is too long."""
        if len(lock["owner"]) > MOST_OWNER_BYTES:
            raise DAVError(
                HTTP_REQUEST_ENTITY_TOO_LARGE, f"the owner of a lock is limited to {MOST_OWNER_BYTES} bytes of XML"
            )
        self.require_room(lock["principal"])
        lock["timeout"] = _bounded(float(lock["timeout"]))
        return super().create(path, lock)

    def refresh(self, token: str, *, timeout: float) -> Any:
        """Restart the lifetime of a lock."""
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
    """Limit a lifetime; a negative one means unlimited."""
    return MOST_SECONDS if seconds < 0 else min(seconds, MOST_SECONDS)
