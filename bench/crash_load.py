"""Clients that use a server through every face while it is killed, and note what was acknowledged (`crash_ledger`).

A client does one thing at a time. When an answer is lost, it leaves the session alone until the next check has found
out what happened, or sends the request again with its idempotency key.
"""

import asyncio
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from cfs.contract.sse import SSEDecoder
from cfs.contract.transcript import render, shown
from cfs.errors import CfsError
from cfs.session.async_session import AsyncSession
from cfs.wire import Message, ToolCall
from crash_ledger import Outcome, Part, Reading, Said, Seen, Shown, Talk, Write
from outages import ANSWER, Agent, Case, Upstream, chunk, effects

CREATED = {"max_tokens": 12}
_LONGEST = 14
"""Messages after which a client begins another session."""
_TASK_SECONDS = 120.0
"""How long a task of agents may take."""


class Answer(NamedTuple):
    """How a request ended, and the response if there is one."""

    outcome: Outcome
    response: httpx.Response | None = None

    @property
    def json(self) -> Any:
        """The body of an acknowledgement."""
        assert self.response is not None
        return self.response.json()


@dataclass
class World:
    """What all clients share."""

    url: str
    mount: Path | None
    draw: random.Random
    keys: bool = False
    """Whether messages carry idempotency keys and are sent again after a lost answer."""
    echo: bool = False
    """Whether the engine repeats each message."""
    talks: list[Talk] = field(default_factory=list)
    files: dict[str, set[bytes | None]] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    stop: bool = False
    up: asyncio.Event = field(default_factory=asyncio.Event)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8, "mount"))
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 40)))

    def number(self) -> int:
        """Return a number that was never used."""
        return next(self._numbers)

    def talk(self, face: str, *, agent: bool = False) -> Talk:
        """Begin to note a session that does not exist yet."""
        talk = Talk([f"{face}-{self.number()}"], agent=agent, exists={False})
        self.talks.append(talk)
        return talk

    def write(self, talk: Talk, face: str, *, generate: bool = True) -> Write:
        """Note that a message is sent now."""
        text = f"{face} says {self.number()} to {talk.id}"
        write = Write(text, time.monotonic(), face, generate=generate, expected=text if self.echo else None)
        talk.writes.append(write)
        talk.exists |= {True}
        talk.touched = True
        return write

    def wrote(self, talk: Talk, write: Write, outcome: Outcome) -> None:
        """Note how a message ended."""
        write.ended(outcome, time.monotonic())
        self.count(write.face, outcome)
        if outcome == "acknowledged":
            talk.exists = {True}
        elif outcome == "refused" and talk.exists == {True, False} and len(talk.writes) == 1:
            talk.exists = {False}

    def count(self, face: str, outcome: Outcome) -> None:
        """Count what ended."""
        self.counts[face, outcome] += 1

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Do something that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)


class Client:
    """Sends requests by HTTP. A subclass does one thing in `step`."""

    face = "rest"

    def __init__(self, world: World) -> None:
        self.world = world
        self.own: list[Talk] = []
        self.http = httpx.AsyncClient(base_url=world.url, timeout=20, trust_env=False)

    async def run(self) -> None:
        """Do one thing after the other while the server is up, until the world stops."""
        while not self.world.stop:
            await self.world.up.wait()
            if not self.world.stop:
                await self.step()

    async def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def ask(self, method: str, path: str, **request: Any) -> Answer:
        """Send a request once."""
        try:
            response = await self.http.request(method, path, **request)
        except httpx.ConnectError:
            await asyncio.sleep(0.02)
            return Answer("refused")
        except httpx.HTTPError:
            return Answer("unknown")
        if response.status_code < 400:
            return Answer("acknowledged", response)
        return Answer("unknown" if response.status_code >= 500 else "refused", response)

    async def ask_again(self, method: str, path: str, key: str, **request: Any) -> Answer:
        """Send a request, and again with the same idempotency key while its outcome is unknown."""
        headers = {"Idempotency-Key": key} | request.pop("headers", {})
        answer = await self.ask(method, path, headers=headers, **request)
        for _ in range(20 if self.world.keys else 0):
            if answer.outcome != "unknown":
                break
            await self.world.up.wait()
            again = await self.ask(method, path, headers=headers, **request)
            if again.outcome == "acknowledged" or again.response is not None:
                answer = again
        return answer

    # -- sessions that are this client's own ----------------------------------------------------------------------

    async def some(self) -> Talk | None:
        """Return one of the own sessions whose state is known, or a new one; None if it could not be created."""
        self.own = [talk for talk in self.own if talk.exists != {False} and len(talk.bases[0]) < _LONGEST]
        usable = [talk for talk in self.own if talk.certain and len(talk.writes) < _LONGEST]
        if len(usable) < 2 and len(self.own) < 6:
            talk = self.world.talk(self.face)
            self.own.append(talk)
            return talk if await self.create(talk) else None
        if usable:
            return self.world.draw.choice(usable)
        await asyncio.sleep(0.02)
        return None

    async def create(self, talk: Talk) -> bool:
        """Create a session, with few tokens for each reply."""
        talk.exists, talk.touched = {True, False}, True
        settings = CREATED | ({"driver": "agent"} if talk.agent else {})
        answer = await self.ask("POST", "/v1/sessions", json={"id": talk.id, "settings": settings})
        self.world.count("create", answer.outcome)
        if answer.outcome != "unknown":
            talk.exists = {answer.outcome == "acknowledged"}
        return answer.outcome == "acknowledged"

    def settled(self, talk: Talk) -> bool:
        """Whether the history is known exactly."""
        return talk.certain and not talk.writes


class RestClient(Client):
    """Uses every write of the REST interface."""

    async def step(self) -> None:
        """Send a message in one of three ways, or do something else to a session."""
        shared = [talk for talk in self.world.talks if talk.id.startswith("shared")]
        if shared and self.world.draw.random() < 0.15:
            await self.say(self.world.draw.choice(shared))
            return
        if (talk := await self.some()) is None:
            return
        ways = (self.say, self.wait, self.stream, self.note, self.set, self.fork, self.rename, self.delete, self.edit)
        await self.world.draw.choices(ways, (30, 12, 10, 5, 6, 5, 5, 4, 8))[0](talk)

    async def say(self, talk: Talk) -> None:
        """Send a message and do not wait."""
        write = self.world.write(talk, "rest")
        path = f"/v1/sessions/{talk.id}/messages"
        answer = await self.ask_again("POST", path, write.text, json={"content": write.text})
        self.world.wrote(talk, write, answer.outcome)

    async def note(self, talk: Talk) -> None:
        """Send a message that wants no reply."""
        write = self.world.write(talk, "rest note", generate=False)
        body = {"content": write.text, "generate": False}
        answer = await self.ask_again("POST", f"/v1/sessions/{talk.id}/messages", write.text, json=body)
        self.world.wrote(talk, write, answer.outcome)

    async def wait(self, talk: Talk) -> None:
        """Send a message and wait for its reply."""
        write = self.world.write(talk, "rest wait")
        path = f"/v1/sessions/{talk.id}/messages?wait=true"
        answer = await self.ask_again("POST", path, write.text, json={"content": write.text})
        if answer.outcome == "acknowledged":
            write.reply = answer.json["reply"]
        self.world.wrote(talk, write, answer.outcome)

    async def stream(self, talk: Talk) -> None:
        """Send a message and read the events of its turn. `message.added` acknowledges it, the end its reply."""
        write = self.world.write(talk, "rest stream")
        outcome: Outcome = "unknown"
        headers, decoder = {"Accept": "text/event-stream"}, SSEDecoder()
        path = f"/v1/sessions/{talk.id}/messages"
        try:
            async with self.http.stream("POST", path, json={"content": write.text}, headers=headers) as response:
                if 400 <= response.status_code < 500:
                    outcome = "refused"
                async for data in response.aiter_bytes():
                    for event in decoder.feed(data):
                        if event.event == "message.added":
                            outcome = "acknowledged"
                        if event.event in ("turn.finished", "turn.failed"):
                            write.reply = json.loads(event.data)["data"]["reply"]
        except httpx.ConnectError:
            outcome = "refused"
        except httpx.HTTPError:
            pass
        self.world.wrote(talk, write, outcome)

    async def set(self, talk: Talk) -> None:
        """Change a setting."""
        value = self.world.number()
        talk.seeds.append(value)
        talk.touched = True
        answer = await self.ask("PATCH", f"/v1/sessions/{talk.id}/settings", json={"seed": value})
        _was_set(talk, value, answer.outcome)
        self.world.count("settings", answer.outcome)

    async def fork(self, talk: Talk) -> None:
        """Copy a session whose history is known."""
        if not self.settled(talk):
            return
        copy = self.world.talk(self.face)
        copy.bases, copy.seeds, copy.exists = list(talk.bases), list(talk.seeds), {True, False}
        answer = await self.ask("POST", f"/v1/sessions/{talk.id}/fork", json={"id": copy.id})
        if answer.outcome != "unknown":
            copy.exists = {answer.outcome == "acknowledged"}
        self.own.append(copy)
        self.world.count("fork", answer.outcome)

    async def rename(self, talk: Talk) -> None:
        """Give a session another name."""
        old, new = talk.id, f"{self.face}-{self.world.number()}"
        talk.names, talk.touched = [new, old], True
        answer = await self.ask("POST", f"/v1/sessions/{old}/rename", json={"id": new})
        if answer.outcome != "unknown":
            talk.names = [new] if answer.outcome == "acknowledged" else [old]
        self.world.count("rename", answer.outcome)

    async def delete(self, talk: Talk) -> None:
        """Delete a session."""
        talk.exists, talk.touched = {True, False}, True
        answer = await self.ask("DELETE", f"/v1/sessions/{talk.id}")
        if answer.outcome != "unknown":
            talk.exists = {answer.outcome != "acknowledged"}
        self.world.count("delete", answer.outcome)

    async def edit(self, talk: Talk) -> None:
        """Replace the history of an idle session by an edited one, if the version is the one that was read."""
        if not (self.settled(talk) and talk.bases[0] and talk.etag):
            return
        edited = [*talk.bases[0][:-1], Said("assistant", f"edited {self.world.number()}")]
        if talk.bases[0][-1].role == "user":
            edited = [*talk.bases[0], *edited[-1:]]
        text = render(Message(role=said.role, content=said.text) for said in edited)
        talk.bases, talk.touched = [talk.bases[0], tuple(edited)], True
        headers = {"If-Match": talk.etag, "Content-Type": "text/plain"}
        answer = await self.ask("PUT", f"/v1/sessions/{talk.id}/transcript", content=text.encode(), headers=headers)
        if answer.outcome != "unknown":
            talk.bases = talk.bases[1:] if answer.outcome == "acknowledged" else talk.bases[:1]
        if answer.response is not None and answer.response.status_code == 412:
            self.world.problems.append(f"{talk.id}: its version {talk.etag} is refused: {answer.response.text}")
        if answer.response is not None and answer.outcome == "acknowledged":
            talk.etag = answer.response.headers.get("ETag", talk.etag)
        self.world.count("edit", answer.outcome)


def _was_set(talk: Talk, value: int, outcome: Outcome) -> None:
    if outcome == "acknowledged":
        talk.seeds = [value]
    elif outcome == "refused":
        talk.seeds.remove(value)


class SdkClient(Client):
    """Uses the SDK, which sends again by itself what it may."""

    face = "sdk"

    async def step(self) -> None:
        """Send a message, or stream a reply, or change a setting."""
        if (talk := await self.some()) is None:
            return
        async with _opened(talk, self.world.url) as session:
            draw = self.world.draw.random()
            if draw < 0.2:
                value = self.world.number()
                talk.seeds.append(value)
                talk.touched = True
                outcome = await _outcome(session.configure(seed=value))
                _was_set(talk, value, outcome)
                self.world.count("sdk settings", outcome)
                return
            write = self.world.write(talk, "sdk")
            if draw < 0.6:
                reply: Any = None

                async def send() -> None:
                    nonlocal reply
                    reply = await session.send(write.text)

                outcome = await _outcome(send())
                if outcome == "acknowledged":
                    write.reply = reply.text
            else:
                iterator = session.stream(write.text)
                outcome = await _outcome(_read(iterator))
                if outcome == "acknowledged":
                    write.shown = iterator.text.strip()
            self.world.wrote(talk, write, outcome)


@asynccontextmanager
async def _opened(talk: Talk, url: str) -> AsyncIterator[AsyncSession]:
    """A session that is known to exist: unlike `async with session`, this creates nothing."""
    session = AsyncSession(talk.id, url=url, timeout=30)
    try:
        yield session
    finally:
        await session.close()


async def _read(pieces: Any) -> None:
    async for _ in pieces:
        pass


async def _outcome(call: Awaitable[Any]) -> Outcome:
    try:
        await call
    except CfsError as error:
        await asyncio.sleep(0.02)
        return "unknown" if error.status >= 500 else "refused"
    return "acknowledged"


class DavClient(Client):
    """Writes by WebDAV: messages, renames, copies, deletions, properties, and files of workspaces."""

    face = "dav"

    async def step(self) -> None:
        """Do one of these."""
        if self.world.draw.random() < 0.25:
            await self.file()
            return
        if (talk := await self.some()) is None:
            return
        await self.world.draw.choices((self.put, self.move, self.copy, self.set, self.delete), (60, 6, 6, 8, 4))[0](
            talk
        )

    async def put(self, talk: Talk) -> None:
        """Send a message as a file."""
        write = self.world.write(talk, "dav")
        answer = await self.ask("PUT", f"/dav/sessions/{talk.id}", content=write.text.encode())
        self.world.wrote(talk, write, answer.outcome)

    async def move(self, talk: Talk) -> None:
        """Rename."""
        old, new = talk.id, f"dav-{self.world.number()}"
        talk.names, talk.touched = [new, old], True
        headers = {"Destination": f"{self.world.url}/dav/sessions/{new}"}
        answer = await self.ask("MOVE", f"/dav/sessions/{old}", headers=headers)
        if answer.outcome != "unknown":
            talk.names = [new] if answer.outcome == "acknowledged" else [old]
        self.world.count("dav move", answer.outcome)

    async def copy(self, talk: Talk) -> None:
        """Fork."""
        if not self.settled(talk):
            return
        copy = self.world.talk("dav")
        copy.bases, copy.seeds, copy.exists = list(talk.bases), list(talk.seeds), {True, False}
        headers = {"Destination": f"{self.world.url}/dav/sessions/{copy.id}"}
        answer = await self.ask("COPY", f"/dav/sessions/{talk.id}", headers=headers)
        if answer.outcome != "unknown":
            copy.exists = {answer.outcome == "acknowledged"}
        self.own.append(copy)
        self.world.count("dav copy", answer.outcome)

    async def set(self, talk: Talk) -> None:
        """Change a setting by a property."""
        value = self.world.number()
        talk.seeds.append(value)
        talk.touched = True
        body = (
            '<?xml version="1.0"?><D:propertyupdate xmlns:D="DAV:" xmlns:c="cfs:"><D:set><D:prop>'
            f"<c:seed>{value}</c:seed></D:prop></D:set></D:propertyupdate>"
        )
        answer = await self.ask("PROPPATCH", f"/dav/sessions/{talk.id}", content=body.encode())
        outcome: Outcome = answer.outcome
        if answer.response is not None and outcome == "acknowledged" and " 200 " not in answer.response.text:
            outcome = "refused"
        _was_set(talk, value, outcome)
        self.world.count("dav property", outcome)

    async def delete(self, talk: Talk) -> None:
        """Delete."""
        talk.exists, talk.touched = {True, False}, True
        answer = await self.ask("DELETE", f"/dav/sessions/{talk.id}")
        if answer.outcome != "unknown":
            talk.exists = {answer.outcome != "acknowledged"}
        self.world.count("dav delete", answer.outcome)

    async def file(self) -> None:
        """Write a file of a workspace, of which one client writes each."""
        if not self.world.files:
            await self.ask("MKCOL", "/dav/workspaces/crash/")
        path = f"/dav/workspaces/crash/{self.face}{id(self) % 97}-{self.world.draw.randrange(4)}.txt"
        data = f"{self.world.number()}\n".encode() * self.world.draw.choice((1, 100, 5000))
        possible = self.world.files.setdefault(path, {None})
        possible.add(data)
        answer = await self.ask("PUT", path, content=data)
        if answer.outcome == "acknowledged":
            self.world.files[path] = {data}
        elif answer.outcome == "refused":
            possible.discard(data)
        self.world.count("dav file", answer.outcome)


class MountClient(Client):
    """Writes to files of the mount."""

    face = "mount"

    async def step(self) -> None:
        """Append to a file, rename or remove it, or set an attribute."""
        if (talk := await self.some()) is None:
            return
        assert self.world.mount is not None
        path = self.world.mount / talk.id
        draw = self.world.draw.random()
        talk.touched = True
        if draw < 0.06:
            new = f"mount-{self.world.number()}"
            talk.names = [new, talk.id]
            outcome = await self._do(lambda: path.rename(path.with_name(new)))
            if outcome != "unknown":
                talk.names = talk.names[:1] if outcome == "acknowledged" else talk.names[1:]
            self.world.count("mount rename", outcome)
        elif draw < 0.1:
            talk.exists = {True, False}
            outcome = await self._do(path.unlink)
            if outcome != "unknown":
                talk.exists = {outcome != "acknowledged"}
            self.world.count("mount remove", outcome)
        elif draw < 0.2:
            value = self.world.number()
            talk.seeds.append(value)
            outcome = await self._do(lambda: os.setxattr(path, "user.cfs.seed", str(value).encode()))
            _was_set(talk, value, outcome)
            self.world.count("mount attribute", outcome)
        else:
            write = self.world.write(talk, "mount")
            self.world.wrote(talk, write, await self.world.in_thread(lambda: _append(path, write.text)))

    async def _do(self, work: Callable[[], object]) -> Outcome:
        def done() -> Outcome:
            try:
                work()
            except OSError:
                return "unknown"
            return "acknowledged"

        outcome: Outcome = await self.world.in_thread(done)
        return outcome


def _append(path: Path, text: str) -> Outcome:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return "refused"
    try:
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError:
        return "unknown"
    return "acknowledged"


class AgentClient(Client):
    """An agent that answers sessions over HTTP. Now and then it dies and leaves its turn to the next one."""

    face = "agent"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._held: dict[str, Any] | None = None
        self._turn: tuple[Talk, Write] | None = None
        self._until = 0.0
        self._refusals = 0

    async def step(self) -> None:
        """Post a message, claim a turn, or go on with the one that is held."""
        if self._turn is not None:
            await self._work(*self._turn)
            return
        self.own = [talk for talk in self.own if talk.exists != {False} and len(talk.bases[0]) < 2 * _LONGEST]
        if not self.own:
            talk = self.world.talk(self.face, agent=True)
            if await self.create(talk):
                self.own.append(talk)
            return
        talk = self.own[0]
        if not talk.certain:
            await asyncio.sleep(0.02)
            return
        if len(talk.writes) < 3:
            write = self.world.write(talk, "agent's user")
            path = f"/v1/sessions/{talk.id}/messages"
            answer = await self.ask_again("POST", path, write.text, json={"content": write.text})
            self.world.wrote(talk, write, answer.outcome)
        await self._claim(talk)

    async def _claim(self, talk: Talk) -> None:
        lease = self.world.draw.choice((1.0, 30.0))
        answer = await self.ask("POST", f"/v1/sessions/{talk.id}/claim", json={"lease": lease, "wait": 0.2})
        self.world.count("claim", answer.outcome)
        talk.touched = True
        if answer.outcome == "acknowledged" and answer.response is not None and answer.response.status_code == 200:
            self._held = answer.json | {"lease": lease}
            write = next((each for each in talk.writes if each.text == self._held["message"]["content"]), None)
            if write is None:
                self.world.problems.append(f"{talk.id}: a claim shows a message that was never sent: {self._held}")
                return
            write.ended("acknowledged", write.sent)
            self._turn, self._until, self._refusals = (talk, write), time.monotonic() + lease, 0
        elif talk.writes and (refusals := self._refusals + 1) < 4:
            self._refusals = refusals
        elif talk.writes:  # the lease of a dead agent lasts longer than this
            self._refusals = 0
            self.own.remove(talk)

    async def _work(self, talk: Talk, write: Write) -> None:
        """Add a call with its result, or finish, or die."""
        assert self._held is not None
        draw, held = self.world.draw.random(), self._held
        talk.touched = True
        path = f"/v1/sessions/{talk.id}/turns/{held['turn']}"
        body: dict[str, Any] = {"claim": held["claim"]}
        if draw < 0.05:
            self._held = self._turn = None  # the lease is left to run out
            self.own.remove(talk)
            return
        if draw < 0.6:
            number = self.world.number()
            call = ToolCall(id=f"c{number}", name="look", arguments={"n": number})
            added = [
                Message(role="assistant", content="", tool_calls=(call,)),
                Message(role="tool", content=f"result {number}", tool_call_id=call.id),
            ]
            body |= {
                "text": f"t{number} ",
                "messages": [each.model_dump(exclude_defaults=True) for each in added],
                "lease": held["lease"],
            }
            what = "update"
        else:
            text = f"done {self.world.number()}"
            added, what = [Message(role="assistant", content=text)], "finish"
            body["reply"] = text
        request = self.world.number()
        parts = [Part(Said(each.role, shown(each)), request=request) for each in added]
        write.parts += parts
        sent = time.monotonic()
        answer = await self.ask_again("POST", f"{path}/{what}", f"{held['turn']} {parts[0].said.text}", json=body)
        self.world.count(what, answer.outcome)
        for part in parts:
            part.outcome = answer.outcome
        if answer.outcome == "acknowledged":
            self._until = sent + held["lease"]
            if what == "finish":
                self._held = self._turn = None
        elif answer.outcome == "unknown" and what == "finish":
            self._held = self._turn = None
            talk.doubt = True
        elif answer.response is not None:
            if answer.response.status_code in (403, 404) and sent < self._until:
                left = f"{self._until - sent:.1f} s before its end"
                self.world.problems.append(f"{talk.id}: a lease was lost {left}: {answer.response.text}")
            self._held = self._turn = None


# -- agents in processes of their own ---------------------------------------------------------------------------------


class EchoUpstream(Upstream):
    """A model server that plays the scripts of agents' tasks, and repeats every other message, slowly."""

    def __init__(self) -> None:
        super().__init__(pause=0.01)

    def reply(self, messages: Sequence[dict[str, Any]]) -> Iterator[bytes]:
        """Stream the next reply. One that has begun already is continued."""
        asked = [str(message.get("content")) for message in messages if message["role"] == "user"]
        if any("TASK " in text for text in asked):
            yield from super().reply(messages)
            return
        begun = str(messages[-1].get("content") or "") if messages[-1]["role"] == "assistant" else ""
        for piece in re.findall(r"\S+\s*", asked[-1].removeprefix(begun)):
            yield chunk({"content": piece})
        yield chunk({}, "stop", {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
        yield b"[DONE]"


class Trees:
    """`cfs agent serve` with one task after the other, of which each runs a child; its process may be killed."""

    def __init__(self, world: World, upstream: Upstream, folder: Path) -> None:
        self.done = 0
        self._world, self._upstream, self._folder = world, upstream, folder
        self._agent: Agent | None = None
        self._killed = False
        self._last = False
        self._http = httpx.AsyncClient(base_url=world.url, timeout=20, trust_env=False)
        self._task = asyncio.create_task(self._run())

    def kill(self) -> bool:
        """Kill the process and start it again; False if there is none now."""
        if self._agent is None:
            return False
        self._killed = True
        self._agent.kill()
        self._agent.resume()
        return True

    async def finish(self) -> None:
        """Wait until the present task is done, and begin no other."""
        self._last = True
        try:
            await asyncio.wait_for(asyncio.shield(self._task), _TASK_SECONDS)
        except TimeoutError:
            log = self._agent.log()[-2000:] if self._agent else ""
            self._world.problems.append(f"the agents' task does not end: {log}")
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._http.aclose()

    async def _run(self) -> None:
        while not self._last:
            name = f"tree-{self._world.number()}"
            case, folder = Case(name, "kill -9", "serve", 0.0, 0.0, killed=False), self._folder / name
            folder.mkdir()
            self._killed = False
            with Agent(case, self._world.url, folder) as self._agent:
                try:
                    await self._one(case, self._agent)
                finally:
                    agent, self._agent = self._agent, None
            lines = Counter(agent.effects.read_text().splitlines() if agent.effects.exists() else [])
            twice = sum(count - 1 for count in lines.values())
            missing = 0 if self._killed else effects("serve") - len(lines)
            if twice or missing:
                self._world.problems.append(f"{name}: {twice} commands ran twice, {missing} did not run: {dict(lines)}")
            self.done += 1

    async def _one(self, case: Case, agent: Agent) -> None:
        while "an agent answers" not in agent.log():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
        path, text = f"/v1/sessions/{case.name}", f"TASK {case.name} serve"
        sent = False
        while not sent:
            await self._world.up.wait()
            with suppress(httpx.HTTPError):
                said = await self._messages(path)
                sent = (
                    text in said
                    or (
                        await self._http.post(
                            f"{path}/messages", json={"content": text}, headers={"Idempotency-Key": text}
                        )
                    ).is_success
                )
            await asyncio.sleep(0.05)
        said = Counter[str]()
        while not any(ANSWER in each for each in said):
            await asyncio.sleep(0.1)
            with suppress(httpx.HTTPError):
                said = await self._messages(path)
        twice = [each for each, count in said.items() if count > 1]
        if twice:
            self._world.problems.append(f"{case.name} shows twice: {twice}")

    async def _messages(self, path: str) -> Counter[str]:
        body = (await self._http.get(path)).json()
        said = [(each["content"], each.get("tool_calls")) for each in body.get("history", ()) if each["role"] != "tool"]
        return Counter([json.dumps(each) if each[1] else each[0] for each in said])


# -- readers ----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads an event stream and reconnects with the last cursor whenever the connection is lost."""

    def __init__(self, world: World, talk: Talk | None) -> None:
        self.talk = talk
        self.ended = False
        self.reading = Reading(talk.id if talk else "all sessions")
        self.cursor = ""
        self._world = world
        self._http = httpx.AsyncClient(base_url=world.url, timeout=60, trust_env=False)
        self._task = asyncio.create_task(self._run())

    @property
    def newest(self) -> int:
        """The number of the last event."""
        return self.reading.events[-1].number if self.reading.events else self.reading.last

    async def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._http.aclose()

    async def _run(self) -> None:
        while not self.ended:
            await self._world.up.wait()
            path = "/v1/events" if self.talk is None else f"/v1/sessions/{self.talk.id}/events"
            headers = {"Last-Event-ID": self.cursor} if self.cursor else {}
            with suppress(httpx.HTTPError):
                async with self._http.stream("GET", path, params={"after": "0"}, headers=headers) as response:
                    if response.status_code == 404 and self.talk is not None:
                        self.ended = len(self.talk.names) == 1
                    elif response.status_code == 200:
                        await self._read(response)
            await asyncio.sleep(0.02)

    async def _read(self, response: httpx.Response) -> None:
        async for event in decoded(response, all_sessions=self.talk is None):
            self.cursor = event.id
            if event.type != "goodbye":
                self.reading.events.append(event)
            if event.type == "session.deleted" and self.talk is not None:
                self.ended = "renamed_to" not in json.loads(event.json)["data"]


async def decoded(response: httpx.Response, *, all_sessions: bool) -> AsyncIterator[Seen]:
    """Yield the events of a stream."""
    decoder = SSEDecoder()
    async for data in response.aiter_bytes():
        for event in decoder.feed(data):
            body = json.loads(event.data) if event.data else {}
            name = "last" if event.event == "stale" else "position" if all_sessions else "number"
            number = body.get(name, 0)
            yield Seen(number, event.id, event.event, event.data)


async def show(http: httpx.AsyncClient, session: str, *, wait: float) -> tuple[Shown, dict[str, Any]] | None:
    """Ask the server for a session; None if there is none."""
    response = await http.get(f"/v1/sessions/{session}", params={"wait": wait} if wait else {})
    if response.status_code == 404:
        return None
    response.raise_for_status()
    body = response.json()
    history = tuple(Said(each["role"], shown(Message(**each))) for each in body["history"])
    queue = tuple(each["content"] for each in body["queue"])
    seed, settled = body["settings"]["seed"], body["state"] == "idle"
    return Shown(body["id"], history, queue, settled, seed, body["etag"]), body
