"""Questions of agents, put to the person at an MCP client while a tool call waits for the agent (A5, H9).

A client that can elicit gets the question, and its answer is sent to the server: by a request of this server in the
versions of the protocol with a back channel, and as an `input_required` result in those without one, after which the
client repeats its call. Without either, or if the person declines, the call returns and its result says what is asked.
No tool answers: a model would answer itself.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

import anyio
from mcp import MCPError, types

from cfs import api, wire
from cfs.errors import CfsError, Conflict, NotFound
from cfs.state.question_text import question_text
from cfs.transports.async_http import AsyncClient
from cfs_mcp import schemas

_POLL_SECONDS = 25.0

Elicit = Callable[[str, types.ElicitRequestedSchema], Awaitable[types.ElicitResult]]
"""Asks the person at the client by a request of the server."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A question that the client has to put to its person before it repeats its call, and what the call needs then.

    `key` is the idempotency key of the message that the call has sent, `declined` the questions left open.
    """

    session: str
    question: wire.Question
    key: str | None
    declined: tuple[str, ...]

    @property
    def result(self) -> types.InputRequiredResult:
        """The result in place of the tool's."""
        message, schema = _form(self.session, self.question)
        params = types.ElicitRequestFormParams(message=message, requested_schema=schema)
        state = {"session": self.session, "key": self.key, "declined": self.declined}
        return types.InputRequiredResult(
            input_requests={self.question.id: types.ElicitRequest(params=params)}, request_state=json.dumps(state)
        )


@dataclass(slots=True)
class Asking:
    """How the questions of one tool call are asked.

    `elicit` asks at once. `by_result` says that the client elicits what a result names; then `pending` is set.
    """

    elicit: Elicit | None = None
    by_result: bool = False
    key: str | None = None
    declined: set[str] = field(default_factory=set)
    pending: Pending | None = None

    async def resume(self, client: AsyncClient, params: types.CallToolRequestParams) -> None:
        """Take up a call that is repeated after its question: send the answer, and take over the key of its message.

        What the client sends is used within the caller's rights only. Raises `CfsError`.
        """
        if params.request_state is None:
            return
        try:
            state = json.loads(params.request_state)
            session, self.key = str(state["session"]), state["key"]
            self.declined = set(map(str, state["declined"]))
        except (ValueError, TypeError, KeyError):
            return
        for question, response in (params.input_responses or {}).items():
            answer = _answer_in(response)
            if answer is None:
                self.declined.add(question)
            else:
                await _send(client, session, question, answer)

    async def attend(self, client: AsyncClient, session: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work that waits for a session, until it is done or a question is left open.

        Raises the error of the work.
        """
        failure: CfsError | None = None
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                with suppress(CfsError):  # without the right to see questions the work just goes on
                    if await self._ask_all(client, session):
                        group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                await work()
            except CfsError as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _ask_all(self, client: AsyncClient, session: str) -> bool:
        """Ask each question of a tree of agents as it comes; return True if one is left open."""
        async with aclosing(_questions(client, session)) as questions:
            async for name, question in questions:
                if not await self._ask(client, name, question):
                    return True
        return False

    async def _ask(self, client: AsyncClient, session: str, question: wire.Question) -> bool:
        if question.id in self.declined:
            return False
        if (await client.call(api.question(session, question.id))).state != "open":
            return True
        if self.by_result:
            self.pending = Pending(session, question, self.key, tuple(self.declined))
            return False
        if self.elicit is None:
            return False
        answer = None
        async with anyio.create_task_group() as group:  # an answer from elsewhere ends the question here

            async def closed() -> None:
                with suppress(CfsError):
                    while (await client.call(api.question(session, question.id, _POLL_SECONDS))).state == "open":
                        pass
                group.cancel_scope.cancel()

            group.start_soon(closed)
            with suppress(MCPError):  # the client does not ask after all
                answer = _answer_in(await self.elicit(*_form(session, question)))
            group.cancel_scope.cancel()
        if answer is not None:
            await _send(client, session, question.id, answer)
            return True
        with suppress(CfsError):
            return (await client.call(api.question(session, question.id))).state != "open"
        return True  # it has gone with its turn


async def open_questions(client: AsyncClient, session: str) -> list[schemas.OpenQuestion]:
    """Return the open questions of a session and of those below it, for the result of a call that waited."""
    questions: list[schemas.OpenQuestion] = []
    with suppress(CfsError):
        async for name, question in _present(client, session):
            questions.append(
                schemas.OpenQuestion(
                    session=name,
                    id=question.id,
                    text=question_text(name, question),
                    choices=list(question.choices),
                    how_to_answer=f"A person answers, not you: cfs answer {name} {question.id[:8]}"
                    f" {'|'.join(question.choices)}, or in the dashboard.",
                )
            )
    return questions


async def _questions(client: AsyncClient, session: str) -> AsyncGenerator[tuple[str, wire.Question], None]:
    """Yield the open questions of a tree, and new ones as they come."""
    async with aclosing(client.events(replace(api.events(), announce=True))) as events:
        async for event in events:
            if event.type in ("connected", "stale"):
                with suppress(CfsError):  # the session does not exist yet
                    async for name, question in _present(client, session):
                        yield name, question
            elif event.type == "question.asked" and (
                event.session == session or event.session.startswith(f"{session}/")
            ):
                data = {"asked_at": event.time, "state": "open", **event.data}
                yield event.session, wire.Question.model_validate(data)


async def _present(client: AsyncClient, session: str) -> AsyncIterator[tuple[str, wire.Question]]:
    for name in _asking(await client.call(api.sub_sessions(session))):
        for question in await client.call(api.questions(name)):
            yield name, question


def _asking(tree: wire.SessionTree) -> Iterator[str]:
    if tree.open_questions:
        yield tree.id
    for child in tree.children:
        yield from _asking(child)


def _form(session: str, question: wire.Question) -> tuple[str, types.ElicitRequestedSchema]:
    answer = {"type": "string", "title": "Answer", "enum": list(question.choices)}
    schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    return question_text(session, question), schema


def _answer_in(response: object) -> str | None:
    """Return the answer of a person; None if the person has declined."""
    if not isinstance(response, types.ElicitResult) or response.action != "accept":
        return None
    answer = (response.content or {}).get("answer")
    return answer if isinstance(answer, str) else None


async def _send(client: AsyncClient, session: str, question: str, answer: str) -> None:
    with suppress(Conflict, NotFound):  # somebody was faster, or its turn is over
        await client.call(api.answer(session, question, answer))
