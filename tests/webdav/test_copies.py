"""Programs that keep copies of sessions and send them whole (davfs2), against each other and everybody else (W2)."""

import asyncio
import io
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfs.errors import CfsError
from cfs.wire import Message
from cfs_server.domain.turns import TurnRequest
from cfs_webdav.tree import Conditions
from tests.webdav.support import Caller, mount

NAME = "chat1"
CLIENTS = 3

contents = st.sampled_from(
    [
        "m{:02}\n",
        "m{:02}",
        "User: m{:02}\n",
        "m{:02}\nUser: x\n",
        "m{:02}\nAssistant: y\n",
        "m{:02}\n\\Assistant: y\n",
        "  m{} é\n\n",
    ]
)
clients = st.integers(0, CLIENTS - 1)
steps = st.one_of(
    st.tuples(st.just("append"), clients, contents),
    st.tuples(st.just("append"), clients, contents),
    st.tuples(st.just("append"), clients, contents),
    st.tuples(st.just("overwrite"), clients, contents),
    st.tuples(st.just("resend"), clients, st.just("")),
    st.tuples(st.just("read"), clients, st.just("")),
    st.tuples(st.just("edit"), clients, st.just("")),
    st.tuples(st.just("say"), clients, contents),
    st.tuples(st.just("speak"), clients, st.just("")),
    st.tuples(st.just("settle"), clients, st.just("")),
)


@dataclass
class Copy:
    """What one program has of the session, and the name under which it got it."""

    data: bytes = b""
    etag: str | None = None


class World:
    """The session, the copies of it, and what everybody was told has been accepted."""

    def __init__(self, ann: Caller) -> None:
        self.ann = ann
        self.copies = [Copy() for _ in range(CLIENTS)]
        self.said: list[str] = []
        self.count = 0

    async def step(self, kind: str, client: int, content: str) -> None:
        """Do one thing."""
        copy, self.count = self.copies[client], self.count + 1
        text = content.format(self.count)  # none begins with another: "m10" may be "m1" and more by rule 4
        match kind:
            case "append":
                self.put(copy, copy.data + text.encode(), text)
            case "overwrite":
                self.put(copy, text.encode(), text)
            case "resend":
                self.put(copy, copy.data, "")
            case "edit":
                self.edit(copy)
            case "read":
                self.read(copy)
            case "say":
                self.ann.principal.gate.submit(NAME, TurnRequest(Message(role="user", content=text)))
                self.said.append(text)
            case "speak":
                self.ann.harness.engine.step()
                for _ in range(5):
                    await asyncio.sleep(0)
            case "settle" if self.ann.harness.store.find(NAME):
                self.ann.harness.engine.release()
                await self.ann.harness.settled(NAME)
                self.ann.harness.engine.hold()

    def put(self, copy: Copy, body: bytes, added: str) -> None:
        """Send a copy that has this more than before; if it is refused nothing has changed, and the copy is new."""
        conditions = Conditions(copy.etag, None if copy.etag else "*")
        before = self.ann.everything()
        etag = self.send(body, conditions)
        if etag is None:
            assert self.ann.everything() == before
            self.read(copy)
            return
        copy.data, copy.etag = body, f'"{etag}"'
        if added:
            self.said.append(added.removesuffix("\n").removeprefix("User: "))
        elif len(before) > 1:
            assert self.ann.everything() == before

    def send(self, body: bytes, conditions: Conditions) -> str | None:
        """PUT a body; return the ETag of the answer, None where it was refused."""
        try:
            return self.ann.tree.write(f"/{NAME}", io.BytesIO(body), conditions)
        except CfsError as error:
            if error.status not in (409, 412, 422):
                raise
            return None

    def edit(self, copy: Copy) -> None:
        """Change the past in a copy that is out of date: it is refused, and nothing changes."""
        session = self.ann.harness.store.find(NAME)
        if session is None or copy.etag == session.etag or b"\nAssistant: " not in copy.data:
            return
        before, edited = self.ann.everything(), copy.data.replace(b"m", b"M", 1)
        assert self.send(edited, Conditions(copy.etag)) is None
        assert self.ann.everything() == before

    def read(self, copy: Copy) -> None:
        """Take a new copy."""
        session = self.ann.harness.store.find(NAME)
        copy.data = session.history.text.encode() if session else b""
        copy.etag = session.etag if session else None

    async def check(self) -> None:
        """What was accepted is there, once each and in its order, and each has its answer."""
        self.ann.harness.engine.release()
        if self.ann.harness.store.find(NAME) is None:
            assert self.said == []
            return
        history = (await self.ann.harness.settled(NAME)).history.messages
        assert [message.content for message in history if message.role == "user"] == self.said
        assert [message.role for message in history] == ["user", "assistant"] * len(self.said)


async def run(script: list[tuple[str, int, str]]) -> None:
    """Play a script."""
    async with mount() as ann:
        ann.harness.engine.hold()
        world = World(ann)
        for step in script:
            await world.step(*step)
            ann.harness.store.check_integrity()
        await world.check()


@settings(max_examples=settings().max_examples * 3, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=40))
def test_no_message_is_lost_or_doubled(script: list[tuple[str, int, str]]) -> None:
    asyncio.run(run(script))
