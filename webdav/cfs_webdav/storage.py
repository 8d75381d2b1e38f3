"""Stores dead properties and write locks, with limits (RFC 4918, 4 and 6).

They are in memory. `PersistentDocuments` keeps a copy of each lock and of the properties of each entry for the next
process.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wsgidav.dav_error import HTTP_INSUFFICIENT_STORAGE, HTTP_REQUEST_ENTITY_TOO_LARGE, DAVError
from wsgidav.lock_man.lock_storage import LockStorageDict
from wsgidav.prop_man.property_manager import PropertyManager
from wsgidav.util import is_equal_or_child_uri

MOST_BYTES_OF_ONE = 64 << 10
MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class PersistentDocuments:
    """Small documents that outlive the process: those of an earlier one by name, and how to keep one.

    `keep` is called in threads, with None to delete a document. `clock` tells the time in which they are written.
    """

    kept: Mapping[str, str]
    keep: Callable[[str, str | None], None]
    clock: Callable[[], float] = time.time


_NOTHING = PersistentDocuments({}, lambda name, value: None)  # noqa: ARG005 - it keeps nothing


class Properties(PropertyManager):  # type: ignore[misc]
    """The dead properties of one mount."""

    def __init__(self) -> None:
        super().__init__()
        self._lazy_open()
        self._documents = _NOTHING

    def load(self, documents: PersistentDocuments) -> None:
        """Restore what is kept, and keep changes from now on."""
        self._documents = documents
        for url, document in documents.kept.items():
            self._dict[url] = {name: value.encode() for name, value in json.loads(document).items()}

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
        of_one = _size(self._dict.get(norm_url, {}))
        if of_one + size > MOST_BYTES_OF_ONE or self._size() + size > MOST_BYTES:
            raise DAVError(
                HTTP_INSUFFICIENT_STORAGE,
                f"properties are limited to {MOST_BYTES_OF_ONE} bytes for one entry and {MOST_BYTES} in total",
            )
        super().write_property(norm_url, name, property_value, dry_run, environ)
        if not dry_run:
            self._keep(norm_url)

    def remove_property(
        self, norm_url: str, name: str, dry_run: bool = False, environ: dict[str, Any] | None = None
    ) -> None:
        """Remove a property if there is one."""
        super().remove_property(norm_url, name, dry_run, environ)
        if not dry_run:
            self._keep(norm_url)

    def remove_properties(self, norm_url: str, environ: dict[str, Any] | None = None) -> None:
        """Remove all properties of an entry."""
        if norm_url in self._dict:
            super().remove_properties(norm_url, environ)
            self._keep(norm_url)

    def remove_all(self, url: str) -> None:
        """Remove the properties of an entry and of all below it."""
        for address in self._at_and_below(url):
            self.remove_properties(address)

    def copy_all(self, source: str, target: str, *, members: bool) -> None:
        """Copy the properties of an entry, with `members` also of all below it, over those of another one."""
        self.remove_properties(target)
        for url in self._at_and_below(source, members=members):
            copy = target + url.removeprefix(source)
            super().copy_properties(url, copy)
            self._keep(copy)

    def require_room_for_copy(self, source: str, *, members: bool) -> None:
        """Raise `DAVError` (507) if the copies of properties would exceed the limit."""
        copied = sum(_size(self._dict.get(url, {})) for url in self._at_and_below(source, members=members))
        if copied and self._size() + copied > MOST_BYTES:
            raise DAVError(HTTP_INSUFFICIENT_STORAGE, f"properties are limited to {MOST_BYTES} bytes in total")

    def _at_and_below(self, url: str, *, members: bool = True) -> list[str]:
        return [key for key in list(self._dict) if key == url or (members and is_equal_or_child_uri(url, key))]

    def _keep(self, url: str) -> None:
        lock = self._dict.get(url)
        document = json.dumps({name: value.decode() for name, value in lock.items()}) if lock else None
        self._documents.keep(url, document)

    def _size(self) -> int:
        return sum(map(_size, list(self._dict.values())))


def _size(properties: dict[str, bytes]) -> int:
    return sum(len(name) + len(value) for name, value in list(properties.items()))


MOST_SECONDS = 600.0
"""Maximum lifetime of a lock. Clients refresh a lock to keep it longer."""
MOST_OF_ONE = 1_000
MOST = 4_000
MOST_OWNER_BYTES = 2_000


class MountLocks(LockStorageDict):  # type: ignore[misc]
    """The locks of one mount, limited for each caller and in total."""

    def __init__(self) -> None:
        super().__init__()
        self._documents = _NOTHING

    def load(self, documents: PersistentDocuments) -> None:
        """Restore the kept locks that have not expired, and keep changes from now on."""
        self._documents = documents
        now = time.time()
        for token, document in documents.kept.items():
            lock = json.loads(document)
            lock["expire"] -= self._ahead
            if lock["expire"] < now:
                documents.keep(token, None)
                continue
            self._dict[token] = lock | {"owner": lock["owner"].encode()}
            self._dict.setdefault(f"URL2TOKEN:{lock['root']}", []).append(token)

    def require_room(self, principal: str) -> None:
        """Raise `DAVError` (507) if this caller may have no more locks now."""
        if self._is_full(principal):
            self._forget_expired()
            if self._is_full(principal):
                raise DAVError(
                    HTTP_INSUFFICIENT_STORAGE,
                    f"locks are limited to {MOST_OF_ONE} for one user and {MOST} in total; unlock something",
                )

    def require_short_owner(self, owner: bytes) -> None:
        """Raise `DAVError` (413) if the owner element of a lock is too long."""
        if len(owner) > MOST_OWNER_BYTES:
            raise DAVError(
                HTTP_REQUEST_ENTITY_TOO_LARGE, f"the owner of a lock is limited to {MOST_OWNER_BYTES} bytes of XML"
            )

    def create(self, path: str, lock: dict[str, Any]) -> Any:
        """Store a new lock; raises `DAVError` if there are too many, or if its owner element is too long."""
        self.require_short_owner(lock["owner"])
        self.require_room(lock["principal"])
        lock["timeout"] = _bounded(float(lock["timeout"]))
        return self._keep(super().create(path, lock))

    def refresh(self, token: str, *, timeout: float) -> Any:
        """Restart the lifetime of a lock."""
        return self._keep(super().refresh(token, timeout=_bounded(timeout)))

    def delete(self, token: str) -> bool:
        """Delete a lock; False if there is none."""
        deleted: bool = super().delete(token)
        if deleted:
            self._documents.keep(token, None)
        return deleted

    def _keep(self, lock: dict[str, Any]) -> dict[str, Any]:
        stored = lock | {"owner": lock["owner"].decode(), "expire": lock["expire"] + self._ahead}
        self._documents.keep(lock["token"], json.dumps(stored))
        return lock

    @property
    def _ahead(self) -> float:
        """How far the clock of the documents is ahead of that of this machine, which the library uses."""
        return self._documents.clock() - time.time()

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
