"""The long-term memory of LangGraph in a workspace: one file of JSON for each item.

`("users", "7")` and `prefs` are `/workspaces/STORE/users/7/prefs.json`. A label of a namespace has no period, so no
directory has the name of an item.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, Self

from langgraph.store.base import (
    BaseStore,
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from cfs import api, wire
from cfs.errors import InvalidRequest, PreconditionFailed, Unsupported
from cfs_langgraph.connection import ServerConnections, Steps, content_of, deleted, files_below
from cfs_langgraph.paths import escape, unescape, workspace_of

_SUFFIX = ".json"
_ORDERS = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}

Namespace = tuple[str, ...]


class _Name(NamedTuple):
    """What identifies an item."""

    namespace: Namespace
    key: str


class CFSStore(BaseStore):
    """Keeps items in a workspace of a server, which `name` names.

    `url` and `token` default to `CFS_URL` and `CFS_TOKEN`. The token needs the rights to list, read, write and delete
    below `/workspaces/NAME/`. What a call has stored is on the server's disk when it returns. Errors are those of
    `cfs.errors`. Threads may share the object. Close it, or use it as a context manager, to close its connections.

    A search compares values of items. It does not find items by their meaning: a `query` raises `Unsupported`, and
    `index` changes nothing. Items do not expire: a `ttl` raises an error.
    """

    def __init__(self, name: str = "langgraph-store", *, url: str | None = None, token: str | None = None) -> None:
        self._folder = f"{workspace_of(name)}/"
        self._connection = ServerConnections(url, token)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: those that read first, then those that write, each of them whole or not at all."""
        return self._connection.run(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; see `batch`."""
        return await self._connection.arun(self._batch(list(ops)))

    def close(self) -> None:
        """Close the connections of calls without coroutines; the object stays usable."""
        self._connection.close()

    async def aclose(self) -> None:
        """Close the connections, those of this event loop included; the object stays usable."""
        await self._connection.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _batch(self, ops: list[Op]) -> Steps[list[Result]]:
        writes: dict[_Name, bytes | None] = {}
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                writes[_Name(op.namespace, op.key)] = _content(op)
            elif isinstance(op, SearchOp) and op.query is not None:
                raise Unsupported("this store has no index of meanings: search with a filter, without a query")
        results: list[Result] = []
        for op in ops:
            result = yield from self._read(op)
            results.append(result)
        for name, content in writes.items():
            if content is None:
                yield from deleted(self._path(name))
            else:
                yield from self._write(name, content)
        return results

    def _read(self, op: Op) -> Steps[Result]:
        match op:
            case GetOp():
                return (yield from self._item(self._path(_Name(op.namespace, op.key))))
            case SearchOp():
                return (yield from self._search(op))
            case ListNamespacesOp():
                return (yield from self._namespaces(op))
            case PutOp():
                return None

    def _item(self, path: str) -> Steps[SearchItem | None]:
        if (part := (yield from content_of(path))) is None:
            return None
        try:
            record = json.loads(part.content)
            value, created, updated = dict(record["value"]), record["created_at"], record["updated_at"]
            name = self._name(path)
            dates = datetime.fromisoformat(created), datetime.fromisoformat(updated)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{path} cannot be read as an item of a store: {error!r}") from error
        return SearchItem(name.namespace, name.key, value, *dates)

    def _write(self, name: _Name, content: bytes) -> Steps[None]:
        """Write an item; a present one keeps the time of its creation."""
        path, now = self._path(name), datetime.now(UTC)
        created, etag = now, None
        while True:
            dates = f' "created_at": "{created.isoformat()}",\n "updated_at": "{now.isoformat()}",\n'
            data = b"{\n" + dates.encode() + b' "value": ' + content + b"\n}\n"
            try:
                yield api.write_file(path, data, etag=etag, new=etag is None)
            except PreconditionFailed:
                part = yield from content_of(path)
                created, etag = (now, None) if part is None else (_created(part.content, now), part.etag)
            else:
                return

    def _search(self, op: SearchOp) -> Steps[list[SearchItem]]:
        """Search in the order of the last change, newest first, as exactly as the server's disk knows it."""
        files = yield from files_below(self._directory(op.namespace_prefix))
        paths = [file.path for file in sorted(files, key=_newest_first) if self._is_item(file.path)]
        if not op.filter:
            paths = paths[op.offset : op.offset + op.limit]
        items: list[SearchItem] = []
        for path in paths:
            item = yield from self._item(path)
            if item is not None and _fits(item.value, op.filter or {}):
                items.append(item)
            if op.filter and len(items) == op.offset + op.limit:
                break
        return items[op.offset :] if op.filter else items

    def _namespaces(self, op: ListNamespacesOp) -> Steps[list[Namespace]]:
        files = yield from files_below(self._folder)
        namespaces = {self._name(file.path).namespace for file in files if self._is_item(file.path)}
        matching = {
            namespace[: op.max_depth]
            for namespace in namespaces
            if all(_matches(condition, namespace) for condition in op.match_conditions or ())
        }
        return sorted(matching)[op.offset : op.offset + op.limit]

    def _directory(self, namespace: Namespace) -> str:
        return self._folder + "".join(f"{escape(label)}/" for label in namespace)

    def _path(self, name: _Name) -> str:
        return f"{self._directory(name.namespace)}{escape(name.key)}{_SUFFIX}"

    def _is_item(self, path: str) -> bool:
        return path.endswith(_SUFFIX) and "/" in path.removeprefix(self._folder)

    def _name(self, path: str) -> _Name:
        *namespace, key = path.removeprefix(self._folder).removesuffix(_SUFFIX).split("/")
        return _Name(tuple(map(unescape, namespace)), unescape(key))


def _content(op: PutOp) -> bytes | None:
    """Return the value as JSON; None for a deletion."""
    if op.ttl is not None:
        raise Unsupported("items of this store do not expire: leave out the ttl")
    if op.value is None:
        return None
    try:
        return json.dumps(dict(op.value), ensure_ascii=False, allow_nan=False, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the value of {op.key!r} cannot be stored as JSON: {error}") from None


def _created(content: bytes, otherwise: datetime) -> datetime:
    try:
        return datetime.fromisoformat(json.loads(content)["created_at"])
    except (ValueError, KeyError, TypeError):  # something else has written the file, which the item replaces
        return otherwise


def _newest_first(file: wire.FileInfo) -> tuple[float, str]:
    return -file.updated_at, file.path


def _matches(condition: MatchCondition, namespace: Namespace) -> bool:
    count = len(condition.path)
    if len(namespace) < count:
        return False
    part = namespace[:count] if condition.match_type == "prefix" else namespace[-count:]
    return all(pattern in ("*", label) for pattern, label in zip(condition.path, part, strict=count > 0))


def _fits(value: object, expected: object) -> bool:
    """Return whether a value is as a filter wants it; operators are in a mapping, as in `{"$gte": 3}`."""
    if isinstance(expected, Mapping):
        if any(str(name).startswith("$") for name in expected):
            return all(_compare(value, operator, operand) for operator, operand in expected.items())
        return isinstance(value, Mapping) and all(_fits(value.get(name), item) for name, item in expected.items())
    if isinstance(expected, list | tuple):
        return isinstance(value, list) and len(value) == len(expected) and all(map(_fits, value, expected))
    return value == expected


def _compare(value: Any, operator: str, operand: Any) -> bool:
    if operator == "$eq":
        return bool(value == operand)
    if operator == "$ne":
        return bool(value != operand)
    if operator not in _ORDERS:
        raise InvalidRequest(f"a filter has $eq, $ne, $gt, $gte, $lt and $lte, not {operator!r}")
    try:
        return bool(_ORDERS[operator](value, operand))
    except TypeError:  # a number is neither more nor less than a text, or than nothing
        return False
