"""Takes sessions back to an earlier version of their histories, and forward again.

A plan is made first, from the stored past of each session. Carrying it out cancels the turns of these sessions, and
then changes all of them without a pause, so that their records become durable together or not at all. The files that
the agents of the sessions have changed follow (`FileRewind`).
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from cfs.errors import Conflict
from cfs.wire import Message
from cfs_server.domain.changes import FilesRewound, Rewind
from cfs_server.domain.past import Moment, Past
from cfs_server.domain.questions import open_questions
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.sessions.session import Session
from cfs_server.sessions.store import SessionStore

_IDLE_SECONDS = 10.0
"""How long a rewind waits for the end of cancelled turns."""

Numbered = tuple[tuple[int, Message], ...]


@dataclass(frozen=True, slots=True)
class RewindStep:
    """What a rewind does to one session; see `cfs.wire.RewoundSession`."""

    session: Session
    to: int | None
    history: SizedMessages
    removed: Numbered
    restored: Numbered
    cancelled: tuple[str, ...]
    questions: tuple[str, ...]

    @property
    def changes_something(self) -> bool:
        """Whether the history, or a turn, is another one after it."""
        return bool(self.removed or self.restored or self.cancelled)

    @property
    def answers(self) -> bool:
        """Whether the history ends with a message that gets its turn again (S14)."""
        messages = self.history.messages
        return self.changes_something and bool(messages) and messages[-1].role == "user"


_WITHOUT_EFFECTS = frozenset(
    {"read_file", "list_directory", "search_files", "sync_context", "update_plan", "sys_wait_agent"}
    | {"sys_spawn_agent", "sys_finish_task", "sys_lock_file", "sys_unlock_file"}
)
"""Tools of the agents of CFS whose calls change nothing, or only sessions, which the plan lists."""

_WRITING_FILES = frozenset({"write_file", "edit_file"})


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The steps of a rewind, that of the session itself first.

    `at` is when it was to which everything goes back. `undone` is the rewind that a redo undoes, made then.
    Without `messages` the histories stay as they are.
    """

    steps: tuple[RewindStep, ...]
    operation: str
    at: Moment
    undone: Rewind | None = None
    messages: bool = True

    @property
    def sessions(self) -> tuple[str, ...]:
        """The names of the sessions, that of the rewound one first. The changes of files by their agents are undone."""
        return tuple(step.session.id for step in self.steps)

    def lasting(self, *, with_files: bool) -> tuple[str, ...]:
        """Return sentences that say what is not undone, where the files of the agents go back or stay."""
        folders = self._folders
        undone = _WITHOUT_EFFECTS | _WRITING_FILES if with_files or folders else _WITHOUT_EFFECTS
        removed = [message for step in self.steps for _, message in step.removed]
        calls = Counter(call.name for message in removed for call in message.tool_calls if call.name not in undone)
        stay = [f"Files in {folder} are not taken back, as they are not on the server: use git." for folder in folders]
        if calls:
            names = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in sorted(calls.items()))
            stay.append(f"Other effects of calls stay as they are: {names}.")
        return tuple(stay)

    @property
    def _folders(self) -> list[str]:
        """The folders elsewhere in which the agents of the sessions that go back have worked."""
        back = [step.session.work for step in self.steps if step.removed or step.cancelled or not self.messages]
        return list(dict.fromkeys(work.folder for work in back if work is not None and work.folder is not None))


class FileRewind(Protocol):
    """The files that go back with the sessions of a plan."""

    async def plan(self) -> FilesRewound | None:
        """Plan what becomes of them. Raises `Conflict` if others have changed them since."""

    def note(self, operation: str, agent: str) -> None:
        """Note what is planned, together with the records of the sessions."""

    async def finish(self) -> None:
        """Do what is noted. Raises `StorageFull` if the disk has no room for it."""


async def plan_rewind(store: SessionStore, members: Sequence[Session], to: float, *, messages: bool) -> RewindPlan:
    """Plan to take the first session to a version (an `int`), or to a time, and the others to the same time.

    Raises `NotFound` if the session has no such version.
    """
    first = await store.past(members[0])
    version = first.at(to)
    at = version.moment if isinstance(to, int) and version is not None else Moment(to)
    steps = [_step(members[0], first, None if version is None else version.number, messages=messages)]
    for member in members[1:]:
        past = await store.past(member)
        version = past.at_moment(at)
        steps.append(_step(member, past, None if version is None else version.number, messages=messages))
    return RewindPlan(tuple(steps), uuid.uuid4().hex[:12], at, messages=messages)


async def plan_redo(store: SessionStore, members: Sequence[Session]) -> RewindPlan:
    """Plan to undo the last rewind of the first session, in all members that it changed.

    Raises `Conflict` if there is none, or if something was said in one of them since.
    """
    past = await store.past(members[0])
    last, rewind = past.last_rewind()
    steps = [_step(members[0], past, last.number - 1, messages=rewind.messages)]
    for member in members[1:]:
        past = await store.past(member)
        rewound = [
            version for version in past.versions if version.rewind and version.rewind.operation == rewind.operation
        ]
        if not rewound or rewound[-1].rewind is None or rewound[-1].rewind.redo:
            continue
        if rewound[-1] is not past.current:
            raise Conflict(f"session {member.id!r} has changed since the rewind: rewind it on its own")
        steps.append(_step(member, past, rewound[-1].number - 1, messages=rewind.messages))
    return RewindPlan(tuple(steps), rewind.operation, last.moment, rewind, rewind.messages)


async def carry_out(store: SessionStore, plan: RewindPlan, files: FileRewind | None) -> None:
    """Cancel the turns of the sessions, put the planned histories in the place of theirs, and let the files follow.

    Raises `Conflict` if the turns do not end or if others have changed the files, or `StorageFull`; then no history and
    no file has changed.
    """
    await _end_turns([step.session for step in plan.steps if step.changes_something])
    rewound = await files.plan() if files is not None else None  # with what the turns have still done
    first = plan.steps[0]
    steps = [step for step in plan.steps if step.changes_something or (step is first and rewound is not None)]
    redo = plan.undone is not None
    async with store.loaded(first.session):
        store.rewind(
            (
                step.session,
                step.history,
                Rewind(step.to, plan.operation, redo, rewound if step is first else None, plan.messages),
            )
            for step in steps
        )
        if files is not None and rewound is not None:
            files.note(plan.operation, first.session.id)
    if files is not None and rewound is not None:
        if store.journal is not None:
            await store.journal.durable()
        await files.finish()
        store.recall_agents(first.session.id)


async def _end_turns(sessions: Sequence[Session]) -> None:
    try:
        async with asyncio.timeout(_IDLE_SECONDS):
            while busy := [session for session in sessions if not session.idle]:
                for session in busy:
                    session.cancel(queued=True)
                for session in busy:
                    if not session.idle:
                        session.require_going_on()
                        await session.changed.wait()
    except TimeoutError:
        raise Conflict("a turn did not end in time after it was cancelled: try again") from None


def _step(session: Session, past: Past, target: int | None, *, messages: bool) -> RewindStep:
    now = past.messages(past.current.number)
    history = now if not messages else SizedMessages() if target is None else past.messages(target)
    pairs = zip(now.messages, history.messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    turns = [turn for turn in (session.running, *session.queue) if turn is not None]
    return RewindStep(
        session,
        target,
        history,
        tuple(enumerate(now.messages))[same:],
        tuple(enumerate(history.messages))[same:],
        tuple(turn.message.content for turn in turns),
        tuple(question.text for question in open_questions(session.questions)),
    )
