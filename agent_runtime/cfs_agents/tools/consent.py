"""The consent of a person to a command: here, elsewhere, or not needed (A5)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from cfs.wire import QuestionKind
from cfs_agents.tools.errors import ToolError

_LONGEST_CHOICE = 1_000
"""Characters of an answer that people read before they choose it."""


class CommandMode(StrEnum):
    """Whether an agent may run commands, and how. The default is `NONE` everywhere.

    - `NONE`: there is no tool for commands.
    - `ASK`: commands run as your user, each after a person has allowed it.
    - `BWRAP`: commands run without a question, in a bubblewrap sandbox.
    - `HOST`: commands run without a question, as your user.
    """

    NONE = "none"
    ASK = "ask"
    BWRAP = "bwrap"
    HOST = "host"


class Answer(StrEnum):
    """A person's answer to a request. `ALWAYS` also allows equal ones, `PATTERN` those that its patterns cover."""

    YES = "yes"
    NO = "no"
    ALWAYS = "always"
    PATTERN = "pattern"


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command that an agent wants to run, exactly as it will run, and its directory.

    Of another kind than `command` it is the call of a tool, with its arguments. `patterns` are rules that would allow
    it together, for an answer that lasts; there may be none.
    """

    command: str
    directory: str
    background: bool = False
    kind: QuestionKind = "command"
    patterns: tuple[str, ...] = field(default=(), compare=False)

    @property
    def pattern_choice(self) -> str:
        """The answer that allows all that the patterns cover, in words; empty without any, or if they are too long."""
        text = f"always {', '.join(self.patterns)}"
        return text if self.patterns and len(text) <= _LONGEST_CHOICE else ""


@dataclass(frozen=True, slots=True)
class Permission:
    """A person has allowed a call, with this answer: who, or None for somebody here."""

    answer: Answer
    by: str | None = None


Ask = Callable[[str, CommandRequest], Awaitable[Answer]]
"""Asks a person; the arguments are the agent's name and the request. What is no answer of the enumeration means no.

It is cancelled with a reason as its message when the same question has been answered elsewhere.
"""


class Refusal(ToolError):
    """A person has not allowed a call. `by` names who; None for the agent's own terminal or editor."""

    def __init__(self, message: str, by: str | None) -> None:
        super().__init__(message)
        self.by = by


class RemoteQuestion(Protocol):
    """The same question in another place, such as a session on a server."""

    async def answer(self) -> tuple[Answer, str]:
        """Ask, and return the answer and who gave it. Raises `ToolError` if no person can be asked there."""
        ...

    async def settled(self, answer: Answer | None) -> Answer | None:
        """End the question with an answer that was given here; None withdraws it. Return the answer that counts.

        That is the other one if it came first.
        """
        ...


def command_mode(mode: CommandMode, ask: Ask | None, *, elsewhere: bool = False) -> CommandMode:
    """Return the mode; raises `ValueError` if it is unknown, or if it is `ASK` and no person can be asked."""
    mode = CommandMode(mode)
    if mode is CommandMode.ASK and ask is None and not elsewhere:
        raise ValueError("commands='ask' needs `ask`, a coroutine function that asks a person")
    return mode


class Consent:
    """Asks a person before each command, except those that are always allowed. All agents of a tree share one object.

    `ask` has one question at a time; others wait. With a question `elsewhere` both are asked, and the first answer
    counts. Without `ask` there is only the one elsewhere.
    """

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self.patterns: dict[str, None] = {}
        """Patterns that are always allowed, in the order of the answers."""
        self._always: set[CommandRequest] = set()
        self._turn = asyncio.Lock()
        self._open: dict[asyncio.Future[None], CommandRequest] = {}
        """What other agents wait for, each with the future that ends the wait."""

    def holds(self, request: CommandRequest) -> bool:
        """Return whether the command is always allowed."""
        return request in self._always

    async def require(self, agent: str, request: CommandRequest, elsewhere: RemoteQuestion | None = None) -> Permission:
        """Return the permission if the command may run; raises `ToolError` if it may not."""
        if self.holds(request):
            return Permission(Answer.ALWAYS)
        answer: Answer | None
        if elsewhere is None:
            answer, by = await self._here(agent, request), None
        else:
            answer, by = await self._both(agent, request, elsewhere)
        if answer == Answer.ALWAYS:
            self._always.add(request)
            for future, same in self._open.items():
                if same == request and not future.done():
                    future.set_result(None)
            return Permission(Answer.ALWAYS, by)
        if answer == Answer.PATTERN and request.pattern_choice:
            self.patterns |= dict.fromkeys(request.patterns)
            return Permission(Answer.PATTERN, by)
        if answer != Answer.YES:
            what = "command" if request.kind == "command" else "call"
            raise Refusal(
                f"the user did not allow this {what}, and it was not run. Do not try it again: do without it, or say"
                " in your answer what you would need it for",
                by,
            )
        return Permission(Answer.YES, by)

    async def _here(self, agent: str, request: CommandRequest) -> Answer:
        if self._ask is None:
            raise ToolError("no person can be asked whether this may run, and it was not run")
        async with self._turn:
            return Answer.YES if self.holds(request) else await self._ask(agent, request)

    async def _both(
        self, agent: str, request: CommandRequest, elsewhere: RemoteQuestion
    ) -> tuple[Answer | None, str | None]:
        """Ask here and elsewhere; return the first answer, and who gave it elsewhere. The other question ends."""
        local = None if self._ask is None else asyncio.create_task(self._here(agent, request))
        await asyncio.sleep(0)
        if local is not None and local.done():
            return local.result(), None  # a function decided, and no person
        remote = asyncio.create_task(elsewhere.answer())
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[decided] = request
        notice = ""
        try:
            await _first(remote, local, decided)
            if remote.done() and remote.exception() is None:
                answer, by = remote.result()
                notice = f"{by} has answered {answer}"
                return answer, by
            await _end(remote)
            if decided.done():
                notice = "always allowed by now"
                await elsewhere.settled(None)
                return Answer.YES, None
            return await elsewhere.settled(local.result() if local is not None else remote.result()[0]), None
        except BaseException:
            await _end(remote)
            await elsewhere.settled(None)
            raise
        finally:
            del self._open[decided]
            await _end(local, notice)


async def _first(
    remote: "asyncio.Task[Any]", local: "asyncio.Task[Any] | None", decided: "asyncio.Future[None]"
) -> None:
    """Wait until one of them is done. A failure elsewhere does not count while somebody can be asked here."""
    while True:
        waiting = {waiter for waiter in (remote, local, decided) if waiter is not None}
        if remote.done() and remote.exception() is not None and local is not None:
            waiting.remove(remote)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not remote.done() or remote.exception() is None or local is None or local.done() or decided.done():
            return


async def _end(task: "asyncio.Task[Any] | None", reason: str = "") -> None:
    """Cancel a task for a reason that its question can show, and wait for its end."""
    if task is not None and not task.done():
        task.cancel(reason)
        await asyncio.wait([task])
