"""The file-system agent: a model, tools, and a directory that holds all of its state (A1-A7)."""

import fcntl
import os
import re
import secrets
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Annotated, ClassVar, Self, TypeVar

from cfs.contract.ids import check_id
from cfs.errors import CfsError, Conflict, InvalidIdentifier, NotFound, Unavailable
from cfs.transports.async_http import AsyncClient
from cfs.wire import Message, ToolCall, Usage
from cfs_agents.base.disk import Disk, Warn, disk_errors, replace_file, usable_file, without_damage
from cfs_agents.base.events import AgentEvent, FileChanges, Finished, ToolResult, Warned
from cfs_agents.base.folders import open_own_folder
from cfs_agents.base.logs import get_logger
from cfs_agents.base.messages import LANGUAGES, Language, after_sync, catalogue, system_prompt
from cfs_agents.base.threads import to_the_end
from cfs_agents.base.tracing import task_events
from cfs_agents.context import (
    Change,
    Context,
    ContextFileSystem,
    ContextItem,
    EstimatingCounter,
    TokenCounter,
    WorkingContext,
)
from cfs_agents.guards.files import ChangeLog
from cfs_agents.guards.report import Gap
from cfs_agents.loop.agent import Agent
from cfs_agents.loop.config import AgentConfig, Outcome, SyncTurn
from cfs_agents.loop.model import Model, ModelSettings, ServerModel
from cfs_agents.loop.recorder import NewContext
from cfs_agents.tools import (
    Ask,
    AsyncPersistentShell,
    CommandMode,
    CommandTools,
    Consent,
    FileTools,
    Limits,
    Tool,
    ToolError,
    Warden,
    agent_grants,
    agent_shell,
    command_mode,
    failure_of,
    tool,
    usual_limits,
)
from cfs_agents.tools.files import CONTEXT_WINDOW, GUIDELINE, STORAGE, WORKSPACE, escaped_name
from cfs_agents.tree.published import PublishedWorkspace
from cfs_agents.tree.run_log import FILE as RUN_LOG
from cfs_agents.tree.run_log import AgentLog, Operation, OperationLogger, RunLog, RunState, Sync
from cfs_filesystem import OPERATIONS, ConflictError, DiskFileSystem, FsHandle, Grant, NotFoundError, open_beneath

_log = get_logger(__name__)
_T = TypeVar("_T")

# The directory of an agent, with all of its state (A1).
#
#     agent_root/
#         guideline.md              rules of conduct
#         context_window_main.md    the context window: what the agent has in mind
#         journal.jsonl             the run log: the running conversation, until the next sync
#         ledger.jsonl              the files as they were when the task began, and what has changed since
#         workspace/                work
#         storage/                  documents/ few_shots/ history/ (old windows) offloaded/ (long results)
#         logs/                     operations_*.jsonl
#
# Missing files are created from defaults, so an empty directory is an agent. A directory can be moved.

HISTORY = f"{STORAGE}/history"
OFFLOADED = f"{STORAGE}/offloaded"
LEDGER = "ledger.jsonl"
_FULL_GUIDELINE = "/guideline_full.md"
"""The file of the package with the default guideline for models whose context is not small."""
_FOLDERS = (WORKSPACE, f"{STORAGE}/documents", f"{STORAGE}/few_shots", HISTORY, OFFLOADED, "/logs")
_MOST_BYTES = 4 << 20
_LOST_BLOCK = bytes(16)
"""NUL bytes that no text has: they are in the place of what a disk has lost."""


class AgentRoot:
    """An agent's directory. Only one object at a time can have it open; threads may share that object.

    `context_file` is the name of the file that holds the context window. `warn` gets a sentence for each repair; a
    missing guideline or window is one if `begun` says that the agent has worked before. Raises `Conflict` if another
    program has the directory open, and `Unavailable` or `StorageFull` if the disk refuses.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        language: Language = "en",
        context_file: str = CONTEXT_WINDOW[1:],
        *,
        warn: Warn = _log.warning,
        begun: bool = False,
    ) -> None:
        self.path = Path(path).expanduser().resolve()
        self.language: Language = language
        self.warn = warn
        self._begun = begun
        self.context_window = f"/{context_file}"
        """Logical path of the context window."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._unlock = self._lock()
            try:
                self._disk = DiskFileSystem(self.path, durable=True)
                everything = Grant(prefix="/", ops=OPERATIONS)
                self._handle: FsHandle = self._disk.create_handle([everything])
                self.complete()
            except BaseException:
                self._unlock()
                raise

    def close(self) -> None:
        """Unlock the directory. The end of the process unlocks it, too."""
        self._disk.close()
        self._unlock()

    def _lock(self) -> "weakref.finalize[[int], AgentRoot]":
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        unlock = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            unlock()
            raise Conflict(f"another agent is at work in {self.path}") from None
        except OSError:  # the disk has no locks
            pass
        return unlock

    def complete(self) -> None:
        """Make what is missing, and put aside what cannot be used. Raises `OSError`."""
        for folder in _FOLDERS:
            os.close(open_own_folder(self.path, folder[1:].split("/"), warn=self.warn))
        self._complete_text(GUIDELINE, default(GUIDELINE, self.language), write=False)
        window = self._complete_text(self.context_window, default(CONTEXT_WINDOW, self.language), write=True)
        self.context_window = f"/{window.name}"
        self._begun = True

    def _complete_text(self, logical: str, text: str, *, write: bool) -> Path:
        """Write the default in place of a text that is missing, empty, or no text; return its path."""
        repairs: list[str] = []
        path = usable_file(self.path / logical[1:], repairs.append, write=write)
        if not path.exists():
            replace_file(path, text.encode())
            if self._begun and not repairs:
                repairs.append(f"{path.name} in {self.path} is missing: the default is used in its place")
        elif not (size := path.stat().st_size) or (size <= _MOST_BYTES and _LOST_BLOCK in path.read_bytes()):
            problem = "holds NUL bytes" if size else "is empty"
            path = without_damage(path, text.encode(), f"{problem}: the default is used in its place", repairs.append)
        for sentence in repairs:
            self.warn(sentence)
        return path

    def handle(self, grants: Iterable[Grant]) -> FsHandle:
        """Return a handle with these grants; writes wait for the disk."""
        return self._disk.create_handle(list(grants))

    # -- what the agent goes by -----------------------------------------------------------------------------------

    def guideline(self) -> str:
        """Read the rules of conduct."""
        return self._text(GUIDELINE)

    def window(self) -> str:
        """Read the context window."""
        return self._text(self.context_window)

    def fit_guideline(self, *, small: bool) -> None:
        """Write the default guideline for a model with a small context, or for any other, unless it was edited."""
        text = self._text(GUIDELINE)
        for language in LANGUAGES:
            for form in (True, False):
                if text == guideline(language, small=form) and form is not small:
                    with disk_errors(self.path / GUIDELINE[1:]):
                        self._handle.write(GUIDELINE, guideline(language, small=small))

    def _text(self, path: str) -> str:
        """Read one of the two; if it was removed meanwhile, return its default."""
        with disk_errors(self.path / path[1:]):
            try:
                size = self._handle.file(path)["size"]
                if size > _MOST_BYTES:
                    raise Unavailable(f"{path} of {self.path} has {size:,} bytes, more than any model can read")
                return self._handle.read_binary(path).decode("utf-8", "replace")
            except NotFoundError:
                return default(GUIDELINE if path == GUIDELINE else CONTEXT_WINDOW, self.language)

    # -- the change of windows (A4) -------------------------------------------------------------------------------

    def archive_window(self, archive: str) -> None:
        """Copy the window to a path below the history, unless the copy exists."""
        with disk_errors(self.path / archive[1:]), suppress(ConflictError):
            try:
                window: str | bytes = self._handle.read_binary(self.context_window)
            except NotFoundError:
                window = default(CONTEXT_WINDOW, self.language)
            self._handle.write(archive, window, overwrite=False)

    def write_window(self, window: str) -> None:
        """Replace the window, byte for byte, in one step."""
        with disk_errors(self.path / self.context_window[1:]):
            self._handle.write(self.context_window, window.encode())


def default(path: str, language: Language) -> str:
    """Return the default context window, or the default guideline for a model with a small context."""
    source = files("cfs_agents.tree").joinpath("defaults", language, path[1:])
    return source.read_text(encoding="utf-8")


def guideline(language: Language, *, small: bool) -> str:
    """Return the default guideline: whole, or short for a model with a small context.

    The embedded model was trained on the words of the short one.
    """
    return default(GUIDELINE if small else _FULL_GUIDELINE, language)


# The directory tree in an agent's prompt, of bounded size (A7).

MOST_LINES = 40
_MOST_OF_A_FOLDER = 15
_DEEPEST = 3
_LONGEST_NAME = 60
_MOST_LOOKED_AT = 2_000


def tree(root: Path) -> str:
    """Return a tree of workspace and storage: indented, folders with a slash, without hidden files and the history.

    If there is too much, the number of the rest is given. Links are not followed.
    """
    lines: list[str] = []
    for top in (WORKSPACE, STORAGE):
        lines += [f"{top}/", *_below(root / top[1:], (), 1)]
    if len(lines) > MOST_LINES:
        left_out = len(lines) - MOST_LINES + 1
        lines = [*lines[: MOST_LINES - 1], f"... {left_out} more lines"]
    return "\n".join(lines)


def _below(top: Path, folders: tuple[str, ...], depth: int) -> Iterator[str]:
    indent = " " * depth
    try:
        folder = open_beneath(top, folders)  # commands may have put a link here meanwhile
        try:
            with os.scandir(folder) as found:
                names = (entry for entry in found if not entry.name.startswith("."))
                entries = [
                    (entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(names, _MOST_LOOKED_AT)
                ]
        finally:
            os.close(folder)
    except OSError:
        return
    entries.sort()
    for name, is_folder in entries[:_MOST_OF_A_FOLDER]:
        yield f"{indent}{_shown(name)}{'/' if is_folder else ''}"
        if is_folder and depth < _DEEPEST and name not in ("history", "offloaded"):
            yield from _below(top, (*folders, name), depth + 1)
    if len(entries) > _MOST_OF_A_FOLDER:
        plus = "+" if len(entries) == _MOST_LOOKED_AT else ""
        yield f"{indent}... {len(entries) - _MOST_OF_A_FOLDER}{plus} more"


def _shown(name: str) -> str:
    """Return a name as one line."""
    plain = escaped_name(name)
    return plain if len(plain) <= _LONGEST_NAME else plain[:_LONGEST_NAME] + "..."


# `sync_context`: the model rewrites its context window and so decides what stays in its prompt (A4).

NAME = "sync_context"
WINDOW_TOKENS = 4_000
WINDOW_BYTES = 64 * 1024

_CURRENT_TASK = re.compile(r"^#{1,6}[ \t]*(current task|当前任务)", re.IGNORECASE | re.MULTILINE)
_DESCRIPTION = (
    "Replace the context window by a new text and empty the conversation. The old window is archived."
    " Make it the only call of the reply."
)


class ContextSynchronizer:
    """Checks new context windows. The recorder takes an accepted one by `take` and puts it in place."""

    def __init__(self, counter: TokenCounter, *, most_tokens: int = WINDOW_TOKENS) -> None:
        self._counter = counter
        self._most_tokens = most_tokens
        self._taken: str | None = None

    def tool(self) -> Tool:
        """Return the tool."""
        return tool(_DESCRIPTION, name=NAME)(self.sync_context)

    def take(self) -> str | None:
        """Return the accepted window, once."""
        taken, self._taken = self._taken, None
        return taken

    async def sync_context(self, new_context_content: Annotated[str, "the whole window, in Markdown"]) -> str:
        """Accept a window, or raise `ToolError` with the reason."""
        self._taken = None
        await self._judge(new_context_content)
        self._taken = new_context_content
        return "the new context window is in place; the old one is archived in " + HISTORY

    async def _judge(self, window: str) -> None:
        """Raise `ToolError` for a window that is empty, too large, or has no heading for the task."""
        if not window.strip():
            raise ToolError("the new context window is empty: write all of it, beginning with '# Current Task'")
        try:
            size = len(window.encode())
        except UnicodeEncodeError:
            raise ToolError("the new context window is no text in UTF-8: leave the broken characters out") from None
        if size > WINDOW_BYTES:
            raise ToolError(_too_large(f"{size:,} bytes", f"{WINDOW_BYTES:,}"))
        if not _CURRENT_TASK.search(window):
            raise ToolError("the new context window has no heading '# Current Task': say first what the task is")
        tokens = (await self._counter.count([window]))[0]
        if tokens > self._most_tokens:
            raise ToolError(_too_large(f"{tokens:,} tokens", f"{self._most_tokens:,}"))


def _too_large(size: str, most: str) -> str:
    return (
        f"the new context window has {size}, and {most} are the most: keep what the next steps need, and write the rest"
        " to files below /storage/documents first"
    )


def archive_path(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> str:
    """Return a new path in the history; paths sort by time."""
    return f"{HISTORY}/context_window_{now():%Y%m%d_%H%M%S_%f}_{secrets.token_hex(3)}.md"


class FileRecorder:
    """Stores the state of an agent in its directory, one step at a time; blocking work runs in threads.

    `warn` is called with one sentence when the disk becomes full. Calls see the files of the `published` workspace, and
    their changes are there before their results.
    """

    def __init__(
        self,
        root: AgentRoot,
        run_log: RunLog,
        log: OperationLogger,
        sync: ContextSynchronizer,
        warn: Callable[[str], None],
        published: PublishedWorkspace | None = None,
    ) -> None:
        self._root = root
        self._run_log = run_log
        self._log = log
        self._sync = sync
        self._disk = Disk(root.path)
        self._warn = warn
        self._published = published

    # -- at the start ---------------------------------------------------------------------------------------------

    def recall(self) -> RunState:
        """Read the stored state and complete what a crash interrupted. Blocks."""
        state = self._run_log.read()
        if state.sync is not None:
            self._complete(state.sync)
            state = self._run_log.read()
        if state.last is not None and state.last.id not in self._log:
            self._log.write(state.last)
        return state

    def system(self) -> Message:
        """Build the system prompt from the present files. Blocks."""
        language = self._root.language
        root = self._root
        with disk_errors(root.path):
            root.complete()
        text = system_prompt(root.guideline(), root.window(), tree(root.path), language, root.context_window)
        return Message(role="system", content=text)

    # -- steps of the loop ----------------------------------------------------------------------------------------

    async def before_round(self) -> None:
        """Check the free space of the disk; that takes microseconds, so no thread is needed."""
        if warning := self._disk.check():
            self._warn(warning)

    async def added(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        """Store a message; log a task, and the usage of a reply."""
        await to_the_end(lambda: self._add(item, broken, usage))

    def _add(self, item: ContextItem, broken: Mapping[str, str], usage: Usage | None) -> None:
        place = self._run_log.place()
        self._run_log.item(item, broken)
        if usage is None:
            self._log.write(Operation(place, "task", {"text": item.message.content}, "taken", success=True))
        else:
            cost = usage.model_dump(include={"prompt_tokens", "cached_tokens", "completion_tokens"})
            self._log.write(Operation(place, "model", cost, "replied", success=True))

    async def shortened(self, change: Change) -> None:
        """Store a change of the conversation."""
        await to_the_end(lambda: self._run_log.change(change))

    async def begins(self, calls: Sequence[ToolCall]) -> None:
        """Store which calls are about to run."""
        await to_the_end(lambda: self._run_log.intents(calls))
        if self._published is not None:
            await self._published.both()

    async def done(
        self, call: ToolCall, result: ToolResult, item: ContextItem, later: Sequence[ToolCall]
    ) -> NewContext | None:
        """Store and log a result; a sync changes the window and with it the conversation."""
        window = self._sync.take() if call.name == NAME and result.ok else None
        operation = Operation(self._run_log.place(), call.name, call.arguments, result.text, success=result.ok)
        if window is not None:
            return await to_the_end(lambda: self._change(window, operation, [each.name for each in later]))

        def keep() -> None:
            self._run_log.result(item, operation)
            self._log.write(operation)

        await to_the_end(keep)
        if self._published is not None:
            await self._published.send()
        return None

    async def ended(self, end: Finished) -> None:
        """Store and log how the task ended."""

        def keep() -> None:
            place = self._run_log.place()
            self._run_log.end(end)
            said = f"{end.reason}: {end.detail}" if end.detail else end.reason
            self._log.write(Operation(place, "task_ended", {}, said, success=end.reason == "answered"))

        await to_the_end(keep)

    # -- the change of windows ------------------------------------------------------------------------------------

    def _change(self, window: str, operation: Operation, dropped: Sequence[str]) -> NewContext:
        note = Message(role="user", content=after_sync(self._root.language, dropped))
        sync = Sync(window, archive_path(), ContextItem.of(note, protected=True), operation)
        self._run_log.sync(sync)
        self._complete(sync)
        items = (ContextItem.of(self.system()), sync.item)
        return NewContext(Context(items), len(window.splitlines()))

    def _complete(self, sync: Sync) -> None:
        """Carry out a sync. After a kill it is repeated, so each step may have been done before."""
        self._root.archive_window(sync.archive)
        self._root.write_window(sync.window)
        if sync.operation.id not in self._log:
            self._log.write(sync.operation)
        self._run_log.restart(sync.item)


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
    _PLACES: ClassVar[Mapping[str, str]] = {f"{WORKSPACE}/": "workspace/", f"{STORAGE}/": "storage/"}

    def __init__(
        self, root: AgentRoot, ledger: str = LEDGER, warn: Warn = lambda _: None, repaired: Warn = _log.warning
    ) -> None:
        self._root = root
        self._warn = warn
        apart = (HISTORY[1:], OFFLOADED[1:])  # the runtime's own
        folders = ("workspace", "storage")
        with disk_errors(root.path):
            file = root.path / ledger
            self._ledger = ChangeLog(root.path, file, only=folders, apart=apart, contents=False, warn=repaired)

    def ensure(self) -> None:
        """Start watching a task that a version without a watch has begun. Blocks."""
        with disk_errors(self._root.path):
            self._ledger.mark(self._AGENT, again=False)

    async def begin(self) -> None:
        """Store the state of the files: a task begins."""
        await self._off_the_loop(lambda: self._ledger.restart(self._AGENT))

    async def changes(self) -> FileChanges:
        """Return what has changed since the task began."""
        changes = await self._off_the_loop(self._changes)
        if self._ledger.gap is not None:
            self._warn(_GAPS[self._ledger.gap])
        return changes

    async def unmade(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the named files that were neither created nor changed since the task began."""
        if not names:
            return ()
        places = {
            **self._PLACES,
            f"{self._root.path}/workspace/": "workspace/",
            f"{self._root.path}/storage/": "storage/",
        }
        return await self._off_the_loop(lambda: self._ledger.unmade(self._AGENT, names, places))

    def _changes(self) -> FileChanges:
        kinds: dict[str, list[str]] = {"created": [], "changed": [], "deleted": []}
        for change in self._ledger.since(self._AGENT):
            kinds[change.kind].append(f"/{change.path}")
        return FileChanges(**{kind: tuple(paths) for kind, paths in kinds.items()})

    async def _off_the_loop(self, work: Callable[[], _T]) -> _T:
        def with_errors() -> _T:
            with disk_errors(self._root.path):
                return work()

        return await to_the_end(with_errors)


_CONVERSATION = "conversation"
MAIN = "main"
PUBLISHED = "published/files.json"
"""Which versions of files were equal here and on the server."""

_PUBLISH_SECONDS = 2.0
"""Id of an agent that was given none."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidIdentifier(f"{name!r} cannot name an agent or its file: use letters, digits and . _ - only")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemAgentConfig(AgentConfig):
    """Settings of a file-system agent; `tools` are added to its own, and the runtime sets `system` and `sync_turn`.

    - `window_tokens`: maximum size of the context window.
    - `commands`: whether it may run commands. `CommandMode.ASK` awaits `ask` before each one.
    - `network`: whether sandboxed commands reach the network.
    - `keep_variables`: environment variables that commands get, in addition to harmless ones.
    - `limits`: what commands may use (default: `usual_limits`).
    - `look_alikes`: whether files may be created beside those whose names look the same.
    - `warn`: called with each warning, one sentence.
    """

    window_tokens: int = WINDOW_TOKENS
    commands: CommandMode = CommandMode.NONE
    ask: Ask | None = None
    network: bool = False
    keep_variables: frozenset[str] = frozenset()
    limits: Limits | None = None
    look_alikes: bool = False
    warn: Callable[[str], None] | None = None

    @classmethod
    def of(cls, config: AgentConfig | None) -> "FileSystemAgentConfig":
        """Return the settings of any agent as those of a file-system agent; without one, the defaults."""
        if config is None or isinstance(config, FileSystemAgentConfig):
            return config or cls()
        return cls(**{field.name: getattr(config, field.name) for field in fields(AgentConfig)})

    def __post_init__(self) -> None:
        """Check the settings that depend on each other."""
        AgentConfig.__post_init__(self)
        object.__setattr__(self, "commands", command_mode(self.commands, self.ask))


class FileSystemAgent:
    """An agent whose whole state is a directory. Use it in `async with`.

    `agent_id` names it; agents with different ids may use one directory in turn, each with its own conversation.
    `context_file` is the file in the directory that holds its context window, `context_window_{agent_id}.md` unless
    given. `project_root` is the directory; an empty or missing one becomes an agent. `model` answers; without it the
    server at `CFS_URL` does, with the model that `AgentConfig.from_env` finds.

    Entering raises `Conflict` if another process has the directory open, `InvalidIdentifier` for an id or a name that
    cannot name a file, and `Unavailable` or `StorageFull` if the disk refuses. One task runs at a time. After any
    interruption `resume` continues the task, in another process too.

    With `publish` its files are also in the workspace of that name on the server of `client` while it works: they are
    read and written there over any interface. Without a client it is the server at `CFS_URL`.
    """

    def __init__(
        self,
        agent_id: str = MAIN,
        context_file: str | None = None,
        project_root: str | os.PathLike[str] = "agent_root",
        *,
        model: Model | None = None,
        config: AgentConfig | None = None,
        publish: str | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        self.publish = None if publish is None else check_id(publish)
        self._client = client
        self.agent_id = _plain_name(agent_id)
        self.context_file = _plain_name(f"context_window_{agent_id}.md" if context_file is None else context_file)
        self.project_root = Path(project_root)
        self.config = FileSystemAgentConfig.of(config)
        self.warnings: list[str] = []
        self._model = model
        self._stack = AsyncExitStack()
        self._unfinished = False
        self._doubtful = False

    async def __aenter__(self) -> Self:
        try:
            if self._client is None and (self.publish is not None or self._model is None):
                self._client = await self._stack.enter_async_context(AsyncClient())
            model = self._model or self._server_model()
            await to_the_end(partial(self._open, model))
            await to_the_end(self._recall)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shell is not None:
            await self._shell.close()
        await to_the_end(self._close)
        await self._stack.aclose()

    def _server_model(self) -> Model:
        assert self._client is not None  # noqa: S101 - for the type checker
        return ServerModel(self._client, ModelSettings(name=self.config.model or AgentConfig.from_env().model))

    def _publish(self) -> PublishedWorkspace | None:
        if self.publish is None or self._client is None:
            return None
        handle = self._root.handle([Grant(prefix=WORKSPACE, ops=OPERATIONS)])
        memory = self._root.path / self._own(PUBLISHED)
        return PublishedWorkspace(self._client, self.publish, handle, f"{WORKSPACE}/", memory, warn=self._warned)

    # -- tasks ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What a person calls the agent: its id, or the name of its directory for the main one."""
        return self._root.path.name if self.agent_id == MAIN else self.agent_id

    @property
    def context(self) -> WorkingContext:
        """The conversation, as the model is about to see it."""
        return self._agent.context

    @property
    def task(self) -> str:
        """The text of the last task; empty before the first."""
        return self._agent.task

    @property
    def unfinished(self) -> bool:
        """Whether the last task was interrupted before the model had answered."""
        return self._unfinished

    @property
    def outcome(self) -> Outcome:
        """How the last task ended, or what is known of the running one."""
        return self._agent.outcome

    def interrupt(self) -> None:
        """Stop the running task where it waits; its state is kept. Call it from the thread of the event loop."""
        self._agent.interrupt()

    async def clear(self) -> None:
        """Forget the conversation, and with it an interrupted task. The context window and all files stay."""
        await to_the_end(self._run_log.restart)
        await to_the_end(self._recall)

    async def run(self, task: str) -> Outcome:
        """Work on a task to its end."""
        return await self._through(self.run_stream(task))

    async def resume(self) -> Outcome:
        """Resume the interrupted task. Raises `NotFound` if there is none."""
        if not self.unfinished:
            raise NotFound(f"there is no interrupted task in {self._root.path}")
        return await self._through(self.run_stream())

    async def run_stream(self, task: str | None = None) -> AsyncGenerator[AgentEvent, None]:
        """Work on a task, or continue the unfinished one, and yield events; `Finished` is the last one."""
        if self._doubtful:
            await to_the_end(self._recall)
        else:
            await to_the_end(self._look_again)
        self._doubtful = self._unfinished = True
        self._log.info("a task continues" if task is None else "a task begins")
        try:
            kept = nullcontext() if self._published is None else self._published.kept_equal(_PUBLISH_SECONDS)
            async with kept, aclosing(task_events(self.name, self._agent.run_stream(task))) as events:
                async for event in events:
                    if isinstance(event, Warned):
                        self._warned(event.text)
                    yield event
        except Exception as error:
            self._log.error("the task ended by a defect", error)
            raise
        self._log_end()
        self._doubtful = self.outcome.reason == "failed"
        self._unfinished = not self.outcome.over
        with suppress(CfsError):  # what cannot be cleaned today can tomorrow
            await self._agent.context.clean()

    async def _through(self, events: AsyncGenerator[AgentEvent, None]) -> Outcome:
        async with aclosing(events):
            async for _ in events:
                pass
        return self.outcome

    # -- state ----------------------------------------------------------------------------------------------------

    def _open(self, model: Model) -> None:
        config = self.config
        counter = config.counter or EstimatingCounter()
        ledger = self._own(LEDGER)
        begun = os.path.lexists(self.project_root.expanduser() / ledger)
        early: list[str] = []  # before there is a log to write them to
        self._root = AgentRoot(self.project_root, config.language, self.context_file, warn=early.append, begun=begun)
        try:
            self._log = AgentLog(self._root.path / "logs", self.agent_id, early.append)
            for sentence in early:
                self._warned(sentence)
            self._root.warn = self._warned
            self._run_log = RunLog(self._root.path / self._own(RUN_LOG), self._warned, begun=begun)
            log = OperationLogger(self._root.path / "logs", warn=self._warned)
        except BaseException:
            self._root.close()
            raise
        sync = ContextSynchronizer(counter, most_tokens=config.window_tokens)
        self._published = self._publish()
        self._recorder = FileRecorder(
            self._root, self._run_log, log, sync, lambda sentence: self._agent.warn(sentence), self._published
        )
        self._warden = Warden()
        self._shell = self._make_shell()
        storage = self._root.path / STORAGE[1:]
        self._files = ContextFileSystem(
            self._root.path / OFFLOADED[1:],
            self._own(_CONVERSATION),
            shown_as=OFFLOADED,
            trusted=storage,
            warn=self._warned,
        )
        with suppress(CfsError):  # a full disk: then nothing is off-loaded
            self._files.open()
        self._watch = RootWatch(self._root, ledger, lambda sentence: self._agent.warn(sentence), self._warned)
        self._agent = Agent(
            model,
            self._agent_config(sync, counter),
            files=self._files,
            recorder=self._recorder,
            watch=self._watch,
            system_for=self._system_for,
        )
        self._agent.tools.on_error = lambda call, error: self._log.error(f"the tool {call.name} failed", error)

    def _own(self, name: str) -> str:
        """Return the name of a file that this agent does not share with others of the same directory."""
        stem, dot, ending = name.partition(".")
        return name if self.agent_id == MAIN else f"{stem}_{self.agent_id}{dot}{ending}"

    def _make_shell(self) -> AsyncPersistentShell | None:
        config = self.config
        if config.commands is CommandMode.NONE:
            return None
        limits = config.limits or usual_limits()
        box = config.commands is CommandMode.BWRAP
        settings = agent_shell(
            self._root.path,
            sandbox=box,
            network=config.network,
            limits=limits,
            keep_variables=config.keep_variables,
            warden=self._warden,
        )
        return AsyncPersistentShell(settings)

    def _file_tools(self, handle: FsHandle) -> list[Tool]:
        return FileTools(handle, look_alikes=self.config.look_alikes).tools()

    def _commands(self, handle: FsHandle) -> list[Tool]:
        config = self.config
        if self._shell is None:
            return []
        require = None
        if config.commands is CommandMode.ASK and config.ask is not None:
            require = partial(Consent(config.ask).require, self.name)
        return CommandTools(self._shell, self._root.path, handle, require=require).tools()

    def _agent_config(self, sync: ContextSynchronizer, counter: TokenCounter) -> AgentConfig:
        config = self.config
        handle = self._root.handle(agent_grants(self._root.context_window))
        settings = {field.name: getattr(config, field.name) for field in fields(AgentConfig)} | {
            "tools": [*self._file_tools(handle), *self._commands(handle), sync.tool(), *config.tools],
            "counter": counter,
            "sync_turn": SyncTurn(prompt=catalogue(config.language).sync_turn, tools=[NAME]),
            "system": None,
        }
        return AgentConfig(**settings)

    def _close(self) -> None:
        self._warden.close()
        self._log.close()
        self._files.close()
        self._run_log.close()
        self._root.close()

    def _recall(self) -> None:
        """Set the conversation to what is stored."""
        state = self._recorder.recall()
        context = Context((ContextItem.of(self._recorder.system()), *state.context.items))
        last = state.last_call
        failed = failure_of(last.operation, last.params, last.outcome, ok=last.success) if last else ""
        self._agent.resume_at(context, begun=state.begun, broken=state.broken, failed_call=failed)
        self._agent.outcome = Outcome(state.end.reason, detail=state.end.detail) if state.end else Outcome()
        self._unfinished = state.unfinished
        if state.unfinished:
            self._watch.ensure()

    def _look_again(self) -> None:
        """Rebuild the system prompt: files and window may have changed since the last task."""
        first, *rest = self._agent.context.context.items
        now = self._recorder.system()
        if now != first.message:
            self._agent.context.context = Context((replace(first, message=now, tokens=None), *rest))

    async def _system_for(self, small: bool) -> Message:
        """Return the system prompt for a model with a small context, or for any other."""

        def fitted() -> Message:
            self._root.fit_guideline(small=small)
            return self._recorder.system()

        return await to_the_end(fitted)

    def _log_end(self) -> None:
        outcome = self.outcome
        ending = f"the task ended as {outcome.reason}" + (f": {outcome.detail}" if outcome.detail else "")
        if outcome.error is None:
            self._log.info(ending)
        else:
            self._log.error(ending, outcome.error)

    def _warned(self, sentence: str) -> None:
        self._log.warning(sentence)
        self.warnings.append(sentence)
        if self.config.warn is not None:
            self.config.warn(sentence)
