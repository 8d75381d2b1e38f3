"""A checkpointer of LangGraph that keeps its threads in workspaces.

Files of a thread, below `/workspaces/THREAD/langgraph.d/`:

    checkpoints/NAMESPACE/CHECKPOINT.json         one checkpoint with the values of all channels
    writes/NAMESPACE/CHECKPOINT/TASK.json         what one task has written after it

A checkpoint is one file, so it is stored whole or not at all, and no two writers share a file: checkpoints have new
ids, and each task has a file of its own. The namespace of the graph itself is empty, and here `graph`; others belong
to subgraphs.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from cfs import api
from cfs.errors import InvalidRequest, PreconditionFailed
from cfs_langgraph import records
from cfs_langgraph.connection import ServerConnections, Steps, content_of, deleted, paths_below
from cfs_langgraph.paths import escape, unescape, workspace_of

_FOLDER = "langgraph.d"  # no sub-session can have this name
_ROOT = "graph"
_SUFFIX = ".json"
_CHECKPOINT = re.compile(rf"/workspaces/(.+)/{re.escape(_FOLDER)}/checkpoints/([^/]+)/([^/]+){re.escape(_SUFFIX)}")
_DELTAS = "counters_since_delta_snapshot"


@dataclass(frozen=True, slots=True)
class _Thread:
    """Where a thread has its files."""

    id: str

    @property
    def folder(self) -> str:
        return f"{workspace_of(self.id)}/{_FOLDER}/"

    def checkpoints(self, namespace: str | None = None) -> str:
        """The directory of the checkpoints, or of those of one namespace."""
        return f"{self.folder}checkpoints/" + ("" if namespace is None else f"{_component(namespace)}/")


class _CheckpointKey(NamedTuple):
    """What identifies a checkpoint. Ids grow with time."""

    id: str
    namespace: str
    thread: str

    @property
    def path(self) -> str:
        return f"{_Thread(self.thread).checkpoints(self.namespace)}{escape(self.id)}{_SUFFIX}"

    @property
    def writes(self) -> str:
        return f"{_Thread(self.thread).folder}writes/{_component(self.namespace)}/{escape(self.id)}/"

    @property
    def config(self) -> RunnableConfig:
        return {
            "configurable": {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": self.id},
        }


class CFSSaver(BaseCheckpointSaver[int]):
    """Keeps the state of graphs in the workspaces of a server.

    `url` and `token` default to `CFS_URL` and `CFS_TOKEN`. The token needs the rights to list, read, write and delete
    below `/workspaces/THREAD/`. What a call has stored is on the server's disk when it returns. Errors are those of
    `cfs.errors`. The methods with and without coroutines do the same; threads may share the object. Close it, or use
    it as a context manager, to close its connections.
    """

    def __init__(
        self, *, url: str | None = None, token: str | None = None, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(serde=serde)
        self._connection = ServerConnections(url, token)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one of the thread; None if there is none."""
        return self._connection.run(self._get(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one of the thread; None if there is none."""
        return await self._connection.arun(self._get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of a thread, of a namespace in it, or of all threads.

        `filter` compares values of the metadata. Without a `config` all files that the token may list are looked at.
        """
        yielded = 0
        for key in self._connection.run(_candidates(config, before)):
            if limit is not None and yielded >= limit:
                return
            if checkpoint := self._connection.run(self._load(key, filter)):
                yielded += 1
                yield checkpoint

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; see `list`."""
        yielded = 0
        for key in await self._connection.arun(_candidates(config, before)):
            if limit is not None and yielded >= limit:
                return
            if checkpoint := await self._connection.arun(self._load(key, filter)):
                yielded += 1
                yield checkpoint

    def _get(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        if (checkpoint := get_checkpoint_id(config)) is None:
            stored = yield from _candidates(_in_one_namespace(config), None)
            if not stored:
                return None
            checkpoint = stored[0].id
        return (yield from self._load(_CheckpointKey(checkpoint, _namespace(config), _thread(config))))

    def _load(
        self, key: _CheckpointKey, metadata_filter: dict[str, Any] | None = None
    ) -> Steps[CheckpointTuple | None]:
        """Read a checkpoint; None if it is gone or its metadata differ from what is wanted."""
        if (part := (yield from content_of(key.path))) is None:
            return None
        record = records.read(self.serde, part.content, key.path)
        metadata: Any = record["metadata"]
        if any(name not in metadata or metadata[name] != value for name, value in (metadata_filter or {}).items()):
            return None
        checkpoint: Any = record["checkpoint"] | {"channel_values": record["values"]}
        parent = record["parent"].get("checkpoint_id")
        return CheckpointTuple(
            key.config,
            checkpoint,
            metadata,
            None if parent is None else key._replace(id=parent).config,
            (yield from _pending(self.serde, key)),
        )

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - the base class has it
    ) -> RunnableConfig:
        """Store a checkpoint and return its config. All channels are stored, not only those with new versions."""
        return self._connection.run(self._put(config, checkpoint, metadata))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - the base class has it
    ) -> RunnableConfig:
        """Store a checkpoint and return its config; see `put`."""
        return await self._connection.arun(self._put(config, checkpoint, metadata))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written after a checkpoint.

        What it has written before stays, except for errors, interrupts and the answers to them, which are replaced.
        """
        self._connection.run(self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written after a checkpoint; see `put_writes`."""
        await self._connection.arun(self._put_writes(config, writes, task_id, task_path))

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> Steps[RunnableConfig]:
        key = _CheckpointKey(checkpoint["id"], _namespace(config), _thread(config))
        parent = get_checkpoint_id(config)
        sections: records.Sections = {
            "parent": {} if parent is None else {"checkpoint_id": parent},
            "metadata": {**get_checkpoint_metadata(config, metadata)},
            "values": checkpoint["channel_values"],
            "checkpoint": {name: value for name, value in checkpoint.items() if name != "channel_values"},
        }
        yield api.write_file(key.path, records.write(self.serde, sections))
        return key.config

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Steps[None]:
        if (checkpoint := get_checkpoint_id(config)) is None:
            raise InvalidRequest("writes of a task belong to a checkpoint: its config needs a checkpoint_id")
        path = f"{_CheckpointKey(checkpoint, _namespace(config), _thread(config)).writes}{escape(task_id)}{_SUFFIX}"
        part: api.FilePart | None = None
        while True:
            sections: dict[str, dict[str, Any]] = {"channels": {}, "task_paths": {}, "values": {}}
            if part is not None:
                sections = records.read(self.serde, part.content, path)
            _merge(sections, writes, task_path)
            content = records.write(self.serde, sections)
            try:
                yield api.write_file(path, content, etag=None if part is None else part.etag, new=part is None)
            except PreconditionFailed:  # the task has written before, perhaps in another process at the same time
                part = yield from content_of(path)
            else:
                return

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread; the session with its id, and other files beside them, stay."""
        self._connection.run(_delete_thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread; see `delete_thread`."""
        await self._connection.arun(_delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that some runs have made, in all threads; reads every checkpoint."""
        self._connection.run(self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that some runs have made; see `delete_for_runs`."""
        await self._connection.arun(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one."""
        self._connection.run(_copy_thread(_Thread(source_thread_id), _Thread(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one."""
        await self._connection.arun(_copy_thread(_Thread(source_thread_id), _Thread(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the newest of each namespace, or with `delete` all of them.

        Older ones that a `DeltaChannel` of the newest one needs stay, too.
        """
        self._connection.run(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the newest of each namespace; see `prune`."""
        await self._connection.arun(self._prune(thread_ids, strategy))

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        runs = set(run_ids)
        for key in (yield from _candidates(None, None)):
            part = yield from content_of(key.path)
            if part and records.read(self.serde, part.content, key.path)["metadata"].get("run_id") in runs:
                yield from _delete(key)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest(f"the strategy is 'keep_latest' or 'delete', not {strategy!r}")
        for thread in thread_ids:
            if strategy == "delete":
                yield from _delete_thread(thread)
                continue
            stored = yield from _keys_below(_Thread(thread).checkpoints())
            newest = {key.namespace: key for key in sorted(stored)}
            retained: set[_CheckpointKey] = set()
            for key in newest.values():
                retained |= yield from self._needed(key)
            for key in stored:
                if key not in retained:
                    yield from _delete(key)

    def _needed(self, key: _CheckpointKey) -> Steps[set[_CheckpointKey]]:
        """Return a checkpoint with those before it that are needed to restore its delta channels."""
        needed: set[_CheckpointKey] = set()
        deltas: set[str] | None = None
        at: _CheckpointKey | None = key
        while at is not None and (part := (yield from content_of(at.path))):
            needed.add(at)
            record = records.read(self.serde, part.content, at.path)
            if deltas is None:
                deltas = set(record["metadata"].get(_DELTAS) or ())
            deltas -= record["values"].keys()
            parent = record["parent"].get("checkpoint_id")
            at = at._replace(id=parent) if deltas and parent is not None else None
        return needed

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


def _pending(serde: SerializerProtocol, key: _CheckpointKey) -> Steps[list[PendingWrite]]:
    pending: list[tuple[tuple[str, str, int], PendingWrite]] = []
    for path in (yield from paths_below(key.writes)):
        if (part := (yield from content_of(path))) is None:
            continue
        task = unescape(path.removeprefix(key.writes).removesuffix(_SUFFIX))
        writes = records.read(serde, part.content, path)
        for index, value in writes["values"].items():
            order = writes_sort_key(writes["task_paths"][index], task, int(index))
            pending.append((order, (task, writes["channels"][index], value)))
    return [write for _, write in sorted(pending, key=lambda item: item[0])]


def _merge(sections: dict[str, dict[str, Any]], writes: Iterable[tuple[str, Any]], task_path: str) -> None:
    for position, (channel, value) in enumerate(writes):
        index = WRITES_IDX_MAP.get(channel, position)
        if index >= 0 and str(index) in sections["values"]:
            continue
        sections["channels"][str(index)] = channel
        sections["task_paths"][str(index)] = task_path
        sections["values"][str(index)] = value


def _candidates(config: RunnableConfig | None, before: RunnableConfig | None) -> Steps[list[_CheckpointKey]]:
    """List the checkpoints that a config names, newest first."""
    folder, only = "/workspaces/", None
    if config is not None:
        namespace: str | None = config["configurable"].get("checkpoint_ns")
        folder, only = _Thread(_thread(config)).checkpoints(namespace), get_checkpoint_id(config)
    last = get_checkpoint_id(before) if before else None
    stored = yield from _keys_below(folder)
    candidates = (key for key in stored if (only is None or key.id == only) and (last is None or key.id < last))
    return sorted(candidates, reverse=True)


def _keys_below(folder: str) -> Steps[list[_CheckpointKey]]:
    matches = [_CHECKPOINT.fullmatch(path) for path in (yield from paths_below(folder))]
    return [
        _CheckpointKey(unescape(match[3]), "" if match[2] == _ROOT else unescape(match[2]), unescape(match[1]))
        for match in matches
        if match
    ]


def _delete_thread(thread_id: str) -> Steps[None]:
    paths = yield from paths_below(_Thread(str(thread_id)).folder)
    for path in reversed(paths):  # what tasks have written first: without its checkpoint it would be left for ever
        yield from deleted(path)


def _delete(key: _CheckpointKey) -> Steps[None]:
    for path in [*(yield from paths_below(key.writes)), key.path]:
        yield from deleted(path)


def _copy_thread(source: _Thread, target: _Thread) -> Steps[None]:
    paths = yield from paths_below(source.folder)
    for path in reversed(paths):  # checkpoints last, so that none is seen without what was written after it
        if part := (yield from content_of(path)):
            yield api.write_file(target.folder + path.removeprefix(source.folder), part.content)


def _thread(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns", ""))


def _in_one_namespace(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": _thread(config), "checkpoint_ns": _namespace(config)}}


def _component(namespace: str) -> str:
    """Write a namespace as a component of a path; the empty one is `graph`, and one of that name is escaped."""
    return _ROOT if not namespace else f"%{ord(_ROOT[0]):X}{_ROOT[1:]}" if namespace == _ROOT else escape(namespace)
