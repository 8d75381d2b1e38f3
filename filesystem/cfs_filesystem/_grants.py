"""Checks the grants of a handle, within those of the handle that it was narrowed from (G2, G7).

Grants are checked at every operation and never cached. So a change takes effect at the next operation, and a right that
is removed from a handle is also removed from every handle that was narrowed from it.

Every operation checks in this order: path, grants, existence, arguments. The first failure is raised. So a caller
learns nothing about entries that it has no right to.
"""

# ruff: noqa: SLF001  the gate is one that the hooks of a file system are for

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any, Self, get_args

from cfs_filesystem._errors import AccessDeniedError, InvalidArgumentError, NotFoundError
from cfs_filesystem._hooks import FileSystemHooks
from cfs_filesystem._paths import covers, narrower, validate_listed, validate_path, validate_prefix
from cfs_filesystem._types import OPERATIONS, READ_OPERATIONS, EntryMeta, Grant, GrantedOperation, Operation, Path

_ORDER: tuple[Operation, ...] = get_args(Operation)
_NAMES = OPERATIONS | {"read"}


class Rights:
    """A list of grants, limited by the grants that they were narrowed from.

    Nothing below a prefix of `undeletable` may be deleted, whatever the grants say.
    """

    def __init__(
        self, grants: Iterable[Grant], within: "Rights | None" = None, undeletable: Sequence[Path] = ()
    ) -> None:
        self.within = within
        self.undeletable = undeletable
        self.grants = checked(grants)
        if within is not None:
            within.require_covers(self.grants)

    def allow(self, operation: Operation, path: Path) -> bool:
        """Return whether these grants, and all that they were narrowed from, cover an operation at a valid path."""
        if operation == "delete" and any(covers(prefix, path) for prefix in self.undeletable):
            return False
        rights: Rights | None = self
        while rights is not None:
            for grant in rights.grants:
                if path.startswith(grant["prefix"]) and _permits(grant, operation, path):
                    break
            else:
                return False
            rights = rights.within
        return True

    def require(self, operation: Operation, path: Path) -> None:
        """Raise `AccessDeniedError` unless the operation is allowed at the path."""
        if not self.allow(operation, path):
            raise AccessDeniedError(f"no grant covers {operation} at {path!r}", path, operation)

    def require_covers(self, grants: Sequence[Grant]) -> None:
        """Raise `AccessDeniedError` unless every pair of prefix and operation is allowed here."""
        for grant in grants:
            for operation in _expanded(grant["ops"]):
                if not self.allow(operation, grant["prefix"]):
                    raise AccessDeniedError(
                        f"{operation} at {grant['prefix']!r} is more than the handle that it is narrowed from may do",
                        grant["prefix"],
                    )

    def change(self, grants: Iterable[Grant]) -> None:
        """Replace these grants. They stay limited by those that they were narrowed from."""
        new = checked(grants)
        if self.within is not None:
            self.within.require_covers(new)
        self.grants = new

    def effective(self) -> list[Grant]:
        """Return the grants, reduced to those that they were narrowed from."""
        grants = [Grant(prefix=grant["prefix"], ops=_expanded(grant["ops"])) for grant in self.grants]
        if self.within is None:
            return grants
        both: list[Grant] = []
        for one, other in product(grants, self.within.effective()):
            prefix, ops = narrower(one["prefix"], other["prefix"]), one["ops"] & other["ops"]
            if prefix is not None and ops:
                both.append(Grant(prefix=prefix, ops=ops))
        return both

    def scopes(self, operation: Operation, prefix: Path | None) -> list[Path]:
        """Return the prefixes, none within another, below which an operation is allowed."""
        allowed = self._prefixes(operation)
        if operation == "delete":
            allowed = {scope for scope in allowed if not any(covers(one, scope) for one in self.undeletable)}
        if prefix is not None:
            allowed = {both for scope in allowed if (both := narrower(scope, prefix)) is not None}
        return sorted(scope for scope in allowed if allowed.isdisjoint(_above(scope)))

    def _prefixes(self, operation: Operation) -> set[Path]:
        """Return the prefixes of the grants of an operation, within those of the grants that they were narrowed from.

        There may be thousands, so none is compared with all others.
        """
        own = {grant["prefix"] for grant in self.grants if _permits(grant, operation, grant["prefix"])}
        if self.within is None:
            return own
        pairs = product(own, self.within._prefixes(operation))
        return {both for one, other in pairs if (both := narrower(one, other)) is not None}

    def describe(self) -> str:
        """Describe in a few lines, for a model's prompt, which operations are allowed where (G7)."""
        merged: dict[Path, set[GrantedOperation]] = {}
        for grant in self.effective():
            merged.setdefault(grant["prefix"], set()).update(grant["ops"])
        if not any(merged.values()):
            return "You have no access to any file."
        lines = [f"- {_place(prefix)}: {_spoken(ops)}" for prefix, ops in sorted(merged.items()) if ops]
        lines += [f"- {_place(prefix)}: never delete" for prefix in self.undeletable if self._promises_deletion(prefix)]
        return "\n".join(["Files you may use, by absolute path; everything else is refused:", *lines])

    def _promises_deletion(self, undeletable: Path) -> bool:
        return any("delete" in grant["ops"] and narrower(grant["prefix"], undeletable) for grant in self.effective())


def checked(grants: Iterable[Grant]) -> list[Grant]:
    """Return a copy of the grants, after checking their prefixes and operations.

    Raises `InvalidPathError` or `InvalidArgumentError`. Operations may be any collection of names.
    """
    return [_checked(grant) for grant in grants]


def _checked(grant: Mapping[str, Any]) -> Grant:
    try:
        prefix, ops = grant["prefix"], grant["ops"]
    except (TypeError, KeyError):
        raise InvalidArgumentError("a grant has a 'prefix' and 'ops'") from None
    validate_prefix(prefix)
    if isinstance(ops, str) or not isinstance(ops, Iterable):
        raise InvalidArgumentError(f"the operations of a grant are a set of names, not {ops!r}", prefix)
    names = set(ops)
    if unknown := names - _NAMES:
        operations = ", ".join([*_ORDER, "read"])
        raise InvalidArgumentError(f"no such operations: {sorted(map(str, unknown))}; there are {operations}", prefix)
    return Grant(prefix=prefix, ops=names)


def _permits(grant: Grant, operation: Operation, path: Path) -> bool:
    """Whether one grant covers an operation at a path; the grant may have been changed since it was checked."""
    prefix = grant["prefix"]
    ops: object = grant["ops"]
    return (
        prefix.startswith("/")
        and covers(prefix, path)
        and isinstance(ops, AbstractSet)
        and (operation in ops or ("read" in ops and operation in READ_OPERATIONS))
    )


def _above(prefix: Path) -> Iterator[Path]:
    """Yield all other prefixes that cover a prefix."""
    for at in (at for at, character in enumerate(prefix) if character == "/"):
        if at:
            yield prefix[:at]
        if at + 1 < len(prefix):
            yield prefix[: at + 1]


def _expanded(ops: AbstractSet[GrantedOperation]) -> set[Operation]:
    """The operations of a grant, with `read` expanded."""
    reads: AbstractSet[Operation] = READ_OPERATIONS if "read" in ops else frozenset()
    return {operation for operation in _ORDER if operation in ops or operation in reads}


def _place(prefix: Path) -> str:
    quoted = json.dumps(prefix, ensure_ascii=False)
    return f"below {quoted}" if prefix.endswith("/") else f"{quoted} and below"


def _spoken(ops: AbstractSet[GrantedOperation]) -> str:
    names: list[str] = [name for name in _ORDER if name in ops]
    if ops >= READ_OPERATIONS:
        first = names.index("read_binary")
        names[first : first + 3] = ["read (read_binary, read_file, read_re)"]
    return ", ".join(names)


class Gate:
    """A file system with the grants of one caller. It caches nothing between operations."""

    def __init__(self, filesystem: FileSystemHooks, grants: Iterable[Grant]) -> None:
        self._filesystem = filesystem
        self._rights = Rights(grants, undeletable=filesystem.undeletable)
        self._index: Mapping[Path, EntryMeta] = {}

    @property
    def grants(self) -> list[Grant]:
        """The handle's own grants. A change takes effect at the next operation.

        A narrowed handle never has more rights than the handle that it was narrowed from.
        """
        return self._rights.grants

    @grants.setter
    def grants(self, grants: Iterable[Grant]) -> None:
        self._rights.change(grants)

    def narrow(self, grants: Iterable[Grant]) -> Self:
        """Create a handle with these grants, which must be within those of this handle (G7).

        Raises `AccessDeniedError` for a pair of prefix and operation that this handle does not have. A right that is
        removed from this handle later is also removed from the new one.
        """
        child = type(self)(self._filesystem, ())
        child._rights = Rights(grants, self._rights, self._rights.undeletable)
        return child

    def on(self, filesystem: FileSystemHooks) -> Self:
        """Create a handle with the same rights on another file system. Rights that this one loses, that one loses."""
        other = type(self)(filesystem, ())
        other._rights = self._rights
        return other

    def describe_grants(self) -> str:
        """Describe in a few lines, for a model's prompt, which operations are allowed where (G7)."""
        return self._rights.describe()

    def allows(self, operation: Operation, path: Path) -> bool:
        """Return whether a grant covers an operation at a path; raises `InvalidPathError` for an illegal path.

        For features outside this class that are checked by the same grants.
        """
        return self._rights.allow(operation, validate_path(path, self._filesystem.prefixes))

    def require(self, operation: Operation, path: Path) -> None:
        """Raise `AccessDeniedError` unless a grant covers an operation at a path."""
        self._ensure_allowed(operation, path)

    def scopes(self, operation: Operation, prefix: Path | None = None) -> list[Path]:
        """Return the prefixes, none within another, below which an operation is allowed."""
        if prefix is not None:
            validate_listed(prefix, self._filesystem.prefixes)
        return self._rights.scopes(operation, prefix)

    @property
    def _grants(self) -> list[Grant]:
        return self._rights.grants

    def _ensure_allowed(self, operation: Operation, path: Path) -> None:
        """Check the path, then the grants; raises `InvalidPathError` or `AccessDeniedError`."""
        self._rights.require(operation, validate_path(path, self._filesystem.prefixes))

    def _refresh_index(self) -> Mapping[Path, EntryMeta]:
        """Return the current entries."""
        self._index = self._filesystem._snapshot_impl(self._grants)
        return self._index

    def _existing(self, operation: Operation, path: Path) -> EntryMeta:
        """Check the path, then the grants, then that the entry exists."""
        self._ensure_allowed(operation, path)
        meta = self._refresh_index().get(path)
        if meta is None:
            raise NotFoundError(f"there is no entry {path!r}", path)
        return meta
