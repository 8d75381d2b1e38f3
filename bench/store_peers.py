"""One store of conversations under load, in the environment of its own library: a part of `bench/store.py`.

    python store_peers.py NAME FOLDER load CLIENTS MESSAGES    accept messages; print figures as JSON
    python store_peers.py NAME FOLDER seed CONVERSATIONS       store a message in each of so many conversations
    python store_peers.py NAME FOLDER start CONVERSATIONS      open such a store, read one conversation, add a message

NAME is `langgraph-sqlite`, `langgraph-postgres` (with the address of the database in POSTGRES), `llm` or `openhands`.
To accept a message means: its text of 500 bytes is in a conversation, and the library's call has returned. A
conversation gets 20 messages, then a client begins another one.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

EACH = 20
BYTES = 500


class Store(Protocol):
    """A store of conversations. A conversation is a number."""

    async def open(self, folder: Path) -> None:
        """Open it, or make it."""

    async def accept(self, conversation: int, text: str) -> None:
        """Store a message of a user."""

    async def read(self, conversation: int) -> int:
        """Read a conversation; return the number of its messages."""

    async def close(self) -> None:
        """Close it."""

    def size(self, folder: Path) -> int:
        """Return its bytes on disk after it was closed."""


class LangGraph:
    """A graph of messages with a checkpointer; a conversation is a thread of it."""

    def __init__(self, postgres: str = "") -> None:
        self._postgres = postgres
        self._stack = AsyncExitStack()

    async def open(self, folder: Path) -> None:
        """Compile the graph."""
        from langgraph.graph import END, START, MessagesState, StateGraph

        saver: Any
        if self._postgres:
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
            from psycopg.rows import dict_row
            from psycopg_pool import AsyncConnectionPool

            options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
            pool = AsyncConnectionPool(self._postgres, min_size=4, max_size=16, open=False, kwargs=options)
            saver = AsyncPostgresSaver(await self._stack.enter_async_context(pool))
        else:
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            saver = await self._stack.enter_async_context(
                AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db"))
            )
        await saver.setup()
        self._saver = saver
        graph = StateGraph(MessagesState)
        graph.add_node("answer", lambda _: {"messages": []})
        graph.add_edge(START, "answer")
        graph.add_edge("answer", END)
        self._graph = graph.compile(checkpointer=saver)

    async def accept(self, conversation: int, text: str) -> None:
        """Write a checkpoint with one more message."""
        thread: Any = {"configurable": {"thread_id": str(conversation)}}
        await self._graph.aupdate_state(thread, {"messages": [("user", text)]}, as_node="answer")

    async def read(self, conversation: int) -> int:
        """Read the newest checkpoint."""
        state = await self._graph.aget_state({"configurable": {"thread_id": str(conversation)}})
        return len(state.values.get("messages", ()))

    async def close(self) -> None:
        """Close the connections."""
        if self._postgres:
            async with self._saver.conn.connection() as connection:
                await connection.execute("checkpoint")
                found = await connection.execute("select pg_database_size(current_database()) as size")
                self._size = (await found.fetchone())["size"]
        await self._stack.aclose()

    def size(self, folder: Path) -> int:
        """The database."""
        return self._size if self._postgres else _bytes(folder)


class Llm:
    """The log database of `llm`. It logs an exchange, so that each message has a reply of one word."""

    async def open(self, folder: Path) -> None:
        """Open the database."""
        import sqlite3

        import llm
        import sqlite_utils
        from llm.migrations import migrate

        class Short(llm.Model):  # type: ignore[misc] # not installed where types are checked
            model_id = "short"

            def execute(self, *_: Any, **__: Any) -> Any:
                yield "ok"

        model = Short()

        class Plugin:
            @llm.hookimpl  # type: ignore[untyped-decorator]
            def register_models(self, register: Callable[..., None]) -> None:
                register(model)

        llm.plugins.pm.register(Plugin())
        self._connection = sqlite3.connect(folder / "logs.db", check_same_thread=False)
        self._database = sqlite_utils.Database(self._connection)
        migrate(self._database)
        self._model = model
        self._lock = Lock()
        self._conversations: dict[int, Any] = {}

    async def accept(self, conversation: int, text: str) -> None:
        """Log an exchange, in a thread."""
        known = self._conversations.get(conversation)
        if known is None:
            known = self._conversations[conversation] = self._model.conversation()
            known.id = f"conversation-{conversation}"

        def log() -> None:
            with self._lock:
                response = known.prompt(text)
                response.text()
                response.log_to_db(self._database)
                if self._connection.in_transaction:
                    self._connection.commit()

        await asyncio.to_thread(log)

    async def read(self, conversation: int) -> int:
        """Load a conversation as `llm -c` does."""
        from llm.cli import load_conversation

        found = load_conversation(f"conversation-{conversation}", database=str(_database_of(self._connection)))
        self._conversations[conversation] = found
        found.model = self._model
        return len(found.loaded_messages or found.responses)

    async def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def size(self, folder: Path) -> int:
        """The database."""
        return _bytes(folder)


def _database_of(connection: Any) -> str:
    return str(connection.execute("pragma database_list").fetchone()[2])


class OpenHands:
    """The file store of OpenHands: a file for each event of a conversation."""

    async def open(self, folder: Path) -> None:
        """Open the folder."""
        import litellm
        from openhands.sdk.conversation.event_store import EventLog

        self._modules = litellm, EventLog  # imported before there are threads
        self._folder = folder
        self._logs: dict[int, Any] = {}

    def _log(self, conversation: int) -> Any:
        from openhands.sdk.conversation.event_store import EventLog
        from openhands.sdk.io import LocalFileStore

        if conversation not in self._logs:
            self._logs[conversation] = EventLog(LocalFileStore(str(self._folder / f"{conversation}")))
        return self._logs[conversation]

    async def accept(self, conversation: int, text: str) -> None:
        """Append an event, in a thread."""
        from openhands.sdk import Message, TextContent
        from openhands.sdk.event import MessageEvent

        log = self._log(conversation)
        event = MessageEvent(source="user", llm_message=Message(role="user", content=[TextContent(text=text)]))
        await asyncio.to_thread(log.append, event)

    async def read(self, conversation: int) -> int:
        """Read the events."""
        return len(list(self._log(conversation)))

    async def close(self) -> None:
        """Do nothing: all is written."""

    def size(self, folder: Path) -> int:
        """All files."""
        return _bytes(folder)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


STORES: dict[str, Callable[[], Store]] = {
    "langgraph-sqlite": LangGraph,
    "langgraph-postgres": lambda: LangGraph(os.environ["POSTGRES"]),
    "llm": Llm,
    "openhands": OpenHands,
}


async def load(store: Store, folder: Path, clients: int, messages: int) -> dict[str, float]:
    """Let some clients store messages, each of them the next one as soon as the last one is stored."""
    await store.open(folder)
    text, times = "x" * BYTES, list[float]()
    each = messages // clients

    async def client(number: int) -> None:
        for done in range(each):
            began = time.perf_counter()
            await store.accept(number * each + done // EACH, text)
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(client(-1 - number) for number in range(2)))  # what is made on first use
    times.clear()
    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    taken = time.perf_counter() - began
    await store.close()
    return {
        "accepts": len(times) / taken,
        "p50": statistics.median(times) * 1e3,
        "p99": sorted(times)[int(len(times) * 0.99)] * 1e3,
        "bytes": store.size(folder) / (each * (clients + 2)),
    }


async def seed(store: Store, folder: Path, conversations: int) -> dict[str, float]:
    """Fill a store."""
    await store.open(folder)
    text = "x" * BYTES

    async def client(first: int) -> None:
        for conversation in range(first, conversations, 8):
            await store.accept(conversation, text)

    await client(conversations - 1)  # what is made on first use
    await asyncio.gather(*map(client, range(8)))
    await store.close()
    return {}


async def start(store: Store, folder: Path, conversations: int) -> dict[str, float]:
    """Open a store and use it."""
    await store.open(folder)
    found = await store.read(conversations // 2)
    assert found, found
    await store.accept(conversations // 2, "x" * BYTES)
    seconds = time.time() - float(os.environ["BEGAN"])
    await store.close()
    return {"seconds": seconds}


def main(name: str, folder: str, what: str, *numbers: str) -> None:
    """Do one of these and print what was measured."""
    work: dict[str, Callable[..., Any]] = {"load": load, "seed": seed, "start": start}
    Path(folder).mkdir(parents=True, exist_ok=True)
    print(json.dumps(asyncio.run(work[what](STORES[name](), Path(folder), *map(int, numbers)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
