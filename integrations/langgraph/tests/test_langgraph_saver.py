"""Real graphs whose threads are on a real server: they stop, go on in another program, and go back in time (C11)."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Annotated, Any, TypedDict, cast
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from cfs import Forbidden, InvalidIdentifier, InvalidRequest, NotGranted, api
from cfs.transports.http import Client
from cfs_langgraph import CFSSaver
from cfs_langgraph.paths import escape, unescape, workspace_of
from pytest_cfs import ScriptedServer
from tests.access.support import make
from tests.server.support import serving

LOOP: CheckpointMetadata = {"source": "loop", "step": 1}


@pytest.fixture
def saver(cfs_server: ScriptedServer) -> Iterator[CFSSaver]:
    with CFSSaver() as made:
        yield made


def thread(name: str = "main") -> RunnableConfig:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


def files(url: str) -> list[str]:
    with Client(url) as client:
        return [file.path for file in client.call(api.files("/workspaces/")).files]


def content(url: str, path: str) -> str:
    with Client(url) as client:
        return client.call(api.read_file(path)).content.decode()


def chat(saver: CFSSaver, **options: Any) -> Any:
    """A graph that answers a message with the number of messages before it."""

    def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [AIMessage(f"I know {len(state['messages'])}.")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver, **options)


def ask(graph: Any, text: str, config: RunnableConfig) -> list[str]:
    return [message.text for message in graph.invoke({"messages": [HumanMessage(text)]}, config)["messages"]]


def test_a_thread_goes_on_where_it_was(saver: CFSSaver) -> None:
    ask(chat(saver), "one", thread())
    with CFSSaver() as another:
        assert ask(chat(another), "two", thread()) == ["one", "I know 1.", "two", "I know 3."]
        assert ask(chat(another), "one", thread("other")) == ["one", "I know 1."]


async def test_a_graph_with_coroutines(cfs_server: ScriptedServer) -> None:
    async with CFSSaver() as saver:
        graph = chat(saver)
        for text in ("one", "two"):
            state = await graph.ainvoke({"messages": [HumanMessage(text)]}, thread())
        assert [message.text for message in state["messages"]] == ["one", "I know 1.", "two", "I know 3."]
        steps = [snapshot.metadata["step"] async for snapshot in graph.aget_state_history(thread())]
        assert steps == [4, 3, 2, 1, 0, -1]
        await saver.adelete_thread("main")
        assert (await graph.aget_state(thread())).values == {}


APPROVAL = """
import sys
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from cfs_langgraph import CFSSaver

class State(TypedDict, total=False):
    order: str
    log: str

def prepare(state):
    print("preparing")
    return {"log": f"prepared {state['order']}"}

def approve(state):
    answer = interrupt(f"Buy {state['order']}?")
    return {"log": f"{state['log']}, {answer}"}

graph = StateGraph(State)
graph.add_node("prepare", prepare)
graph.add_node("approve", approve)
graph.add_edge(START, "prepare")
graph.add_edge("prepare", "approve")
graph.add_edge("approve", END)
with CFSSaver() as saver:
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "order-1"}}
    given = {"order": "tea"} if len(sys.argv) == 1 else Command(resume=sys.argv[1])
    result = app.invoke(given, config)
    print(result["__interrupt__"][0].value if "__interrupt__" in result else result["log"])
"""


def program(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", APPROVAL, *arguments], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.feature("langgraph", "workspaces", "resume")
def test_an_interrupt_is_answered_by_another_program(cfs_server: ScriptedServer) -> None:
    """What ran before the question does not run again."""
    assert program() == "preparing\nBuy tea?\n"
    assert program("yes") == "prepared tea, yes\n"


def test_a_killed_server_has_kept_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--engine", "scripted", "--data-dir", str(tmp_path))
    with serving(*flags) as server:
        monkeypatch.setenv("CFS_URL", server.url)
        program()
        server.process.kill()
        server.process.wait()
    with serving(*flags) as server:
        monkeypatch.setenv("CFS_URL", server.url)
        assert program("no") == "prepared tea, no\n"


def test_time_travel(saver: CFSSaver) -> None:
    """The past stays as it was; a run from there makes another future."""
    graph = chat(saver)
    ask(graph, "one", thread())
    ask(graph, "two", thread())
    history = list(graph.get_state_history(thread()))
    assert [snapshot.metadata["step"] for snapshot in history] == [4, 3, 2, 1, 0, -1]
    past = history[3]
    assert [message.text for message in past.values["messages"]] == ["one", "I know 1."]
    assert ask(graph, "other", past.config) == ["one", "I know 1.", "other", "I know 3."]
    assert [message.text for message in graph.get_state(history[0].config).values["messages"]][2] == "two"
    assert [message.text for message in graph.get_state(thread()).values["messages"]][2] == "other"
    assert len(list(graph.get_state_history(thread(), limit=2))) == 2
    assert [found.metadata["step"] for found in graph.get_state_history(thread(), filter={"source": "input"})] == [
        2,
        2,
        -1,
    ]


def test_a_changed_state_is_a_new_checkpoint(saver: CFSSaver) -> None:
    graph = chat(saver)
    ask(graph, "one", thread())
    graph.update_state(thread(), {"messages": [HumanMessage("by hand")]})
    assert [message.text for message in graph.get_state(thread()).values["messages"]] == ["one", "I know 1.", "by hand"]
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.metadata["source"] == "update"


class Fan(TypedDict, total=False):
    results: Annotated[list[str], lambda left, right: sorted([*left, *right])]


def test_tasks_that_run_side_by_side_lose_nothing(saver: CFSSaver) -> None:
    """Twelve tasks ask at the same time. Each answer finds its task, and what was done is not done again."""
    ran: list[str] = []

    def work(state: dict[str, str]) -> dict[str, list[str]]:
        answer = interrupt(state["name"]) if state["name"] > "06" else "done"
        ran.append(state["name"])
        return {"results": [f"{state['name']}: {answer}"]}

    graph = StateGraph(Fan)
    graph.add_node("work", cast("Any", work))
    graph.add_conditional_edges(START, lambda _: [Send("work", {"name": f"{number:02}"}) for number in range(12)])
    app = cast("Any", graph.compile(checkpointer=saver))
    asked = app.invoke({"results": []}, thread())["__interrupt__"]
    assert sorted(question.value for question in asked) == [f"{number:02}" for number in range(7, 12)]
    answers = {question.id: f"answer {question.value}" for question in asked}
    results = app.invoke(Command(resume=answers), thread())["results"]
    assert results[:7] == [f"{number:02}: done" for number in range(7)]
    assert results[7:] == [f"{number:02}: answer {number:02}" for number in range(7, 12)]
    assert sorted(ran) == [f"{number:02}" for number in range(12)]


def test_two_programs_that_write_for_one_task_lose_nothing(saver: CFSSaver) -> None:
    """They share the one file that a task has; each write is in it, and the first of two results stays."""
    stored = saver.put(thread(), empty_checkpoint(), LOOP, {})
    kinds = [ERROR, INTERRUPT, RESUME, "result"]
    barrier = Barrier(len(kinds))

    def write(kind: str, task: str) -> None:
        with CFSSaver() as own:
            barrier.wait()
            own.put_writes(stored, [(kind, f"{kind} of {task}")], task)

    tasks = [str(uuid4()) for _ in range(5)]
    with ThreadPoolExecutor(len(kinds)) as pool:
        for task in tasks:
            list(pool.map(write, kinds, [task] * len(kinds)))
    found = saver.get_tuple(stored)
    assert found is not None
    assert set(found.pending_writes or ()) == {(task, kind, f"{kind} of {task}") for task in tasks for kind in kinds}
    saver.put_writes(stored, [("result", "another"), ("second", 2)], tasks[0])
    saver.put_writes(stored, [(RESUME, "another")], tasks[0])
    found = saver.get_tuple(stored)
    assert found is not None
    mine = {channel: value for task, channel, value in found.pending_writes or () if task == tasks[0]}
    assert mine["result"] == f"result of {tasks[0]}"
    assert (mine["second"], mine[RESUME]) == (2, "another")


def test_subgraphs_have_namespaces_of_their_own(saver: CFSSaver, cfs_server: ScriptedServer) -> None:
    def inner(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [AIMessage(str(interrupt("Really?")))]}

    below = StateGraph(MessagesState)
    below.add_node("inner", inner)
    below.add_edge(START, "inner")
    outer = StateGraph(MessagesState)
    outer.add_node("below", below.compile())
    outer.add_edge(START, "below")
    graph = cast("Any", outer.compile(checkpointer=saver))
    graph.invoke({"messages": [HumanMessage("go")]}, thread())
    tasks = graph.get_state(thread(), subgraphs=True).tasks
    assert tasks[0].state.values["messages"][0].text == "go"
    state = graph.invoke(Command(resume="yes"), thread())
    assert [message.text for message in state["messages"]] == ["go", "yes"]
    folders = {
        path.split("/checkpoints/")[1].split("/")[0] for path in files(cfs_server.url) if "/checkpoints/" in path
    }
    assert len(folders) == 2
    assert "graph" in folders


def test_deleting_a_thread_leaves_everything_else(saver: CFSSaver, cfs_server: ScriptedServer) -> None:
    cfs_server.session("main").send("hi")
    with Client(cfs_server.url) as client:
        client.call(api.write_file("/workspaces/main/notes.txt", b"mine"))
    graph = chat(saver)
    for name in ("main", "main/sub", "main2"):
        ask(graph, "one", thread(name))
    saver.delete_thread("main")
    saver.delete_thread("main")
    assert graph.get_state(thread()).values == {}
    assert "/workspaces/main/notes.txt" in files(cfs_server.url)
    assert cfs_server.session("main").read() == "User: hi\nAssistant: hi\n"
    for name in ("main/sub", "main2"):
        assert ask(graph, "two", thread(name)) == ["one", "I know 1.", "two", "I know 3."]
    saver.delete_thread("main2")
    assert not [path for path in files(cfs_server.url) if path.startswith("/workspaces/main2/")]


def test_a_person_can_read_a_checkpoint(saver: CFSSaver, cfs_server: ScriptedServer) -> None:
    ask(chat(saver), "Grüße, 世界", thread())
    newest = [path for path in files(cfs_server.url) if "/checkpoints/graph/" in path][-1]
    assert newest.startswith("/workspaces/main/langgraph.d/checkpoints/graph/")
    text = content(cfs_server.url, newest)
    assert '"messages": [\n   "human: Grüße, 世界",\n   "ai: I know 1."\n  ]' in text
    assert '"source": "loop",\n  "step": 1' in text


class Rot13:
    """A cipher, of a kind."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes((each + 13) % 256 for each in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rot"
        return bytes((each - 13) % 256 for each in ciphertext)


def test_with_a_serializer_that_encrypts_no_value_can_be_read(cfs_server: ScriptedServer) -> None:
    with CFSSaver(serde=EncryptedSerializer(Rot13())) as saver:
        stored = saver.put(
            {"configurable": {"thread_id": "main", "checkpoint_ns": ""}, "metadata": {"customer": "Alice"}},
            empty_checkpoint() | {"channel_values": {"secret": "treasure", "number": 4711}},
            LOOP,
            {},
        )
        saver.put_writes(stored, [("secret", "treasure")], "task")
        everything = "".join(content(cfs_server.url, path) for path in files(cfs_server.url))
        assert "secret" in everything
        for word in ("treasure", "4711", "Alice", "dHJlYXN1cmU"):
            assert word not in everything
        found = saver.get_tuple(stored)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"secret": "treasure", "number": 4711}
        assert cast("dict[str, Any]", found.metadata)["customer"] == "Alice"
        assert found.pending_writes == [("task", "secret", "treasure")]
        assert [each.config for each in saver.list(None, filter={"customer": "Alice"})] == [stored]


def test_every_value_comes_back_as_it_was(saver: CFSSaver) -> None:
    """What JSON would change (keys that are numbers, sets, dates) goes through LangGraph's own serializer."""
    values: dict[str, Any] = {
        "nothing": None,
        "truth": True,
        "text": 'x\n"\u2028\x00',
        "big": 2**80,
        "float": 0.1,
        "nested": {"a": [1, {"b": None}], "": ""},
        "numbers": {1: "one"},
        "set": {1, 2},
        "bytes": b"\x00\xff",
        "date": datetime(2026, 1, 2, tzinfo=UTC),
        "infinite": float("inf"),
        "message": HumanMessage("hi", id="1"),
        "encoded": ["msgpack", "x"],
    }
    stored = saver.put(thread(), empty_checkpoint() | {"channel_values": values}, LOOP, {})
    saver.put_writes(stored, list(values.items()), "task")
    found = saver.get_tuple(stored)
    assert found is not None
    back = found.checkpoint["channel_values"]
    assert back == values
    assert {name: type(value) for name, value in back.items()} == {name: type(value) for name, value in values.items()}
    assert [(channel, value) for _, channel, value in found.pending_writes or ()] == list(values.items())


@pytest.mark.parametrize(
    "name",
    ["a/b", "a//b", "..", ".hidden", "user:1", "100%", "a%2Fb", "*?\\", "a b", "世界", "\u2044", "x\ny", "graph"],
)
def test_a_thread_may_have_any_name(saver: CFSSaver, name: str) -> None:
    stored = saver.put({"configurable": {"thread_id": name, "checkpoint_ns": name}}, empty_checkpoint(), LOOP, {})
    assert [found.config for found in saver.list(None)] == [stored]
    assert stored["configurable"]["thread_id"] == stored["configurable"]["checkpoint_ns"] == name
    assert saver.get_tuple(thread(name)) is None
    saver.delete_thread(name)
    assert saver.get_tuple(stored) is None


def test_names_in_paths_come_back() -> None:
    for name in ("%", "a/b", "..", "\u2025", "graph", "x" * 300, "\x80"):
        assert unescape(escape(name)) == name
    assert workspace_of("main/coder") == "/workspaces/main/coder"
    for wrong in ("", "\ud800"):
        with pytest.raises(InvalidIdentifier):
            workspace_of(wrong)


def test_other_files_are_not_taken_for_checkpoints(saver: CFSSaver, cfs_server: ScriptedServer) -> None:
    stored = saver.put(thread(), empty_checkpoint(), LOOP, {})
    with Client(cfs_server.url) as client:
        for path in ("main/langgraph.d/checkpoints/graph/notes.txt", "langgraph.d/checkpoints/x.json", "main/x.json"):
            client.call(api.write_file(f"/workspaces/{path}", b"{}"))
        assert [found.config for found in saver.list(None)] == [stored]
        broken = "/workspaces/main/langgraph.d/checkpoints/graph/zzz.json"
        client.call(api.write_file(broken, b"{}"))
    with pytest.raises(InvalidRequest, match=f"{broken} cannot be read"):
        saver.get_tuple(thread())


def test_grants_decide(tmp_path: Path) -> None:
    """A token reaches the threads that its grants cover; one that may only read cannot go on with them."""
    tokens = tmp_path / "tokens.toml"
    alice = make(tokens, "alice", "/workspaces/alice/")
    reader = make(tokens, "reader", "/workspaces/alice/=list,file,read")
    blind = make(tokens, "blind", "/workspaces/alice/=file,read,write,delete")
    bob = make(tokens, "bob", "/workspaces/bob/")
    with serving("--engine", "scripted", "--tokens", str(tokens)) as server:
        with CFSSaver(url=server.url, token=alice) as mine:
            ask(chat(mine), "one", thread("alice"))
            stored = mine.get_tuple(thread("alice"))
            assert stored is not None
        with CFSSaver(url=server.url, token=reader) as other:
            assert other.get_tuple(thread("alice")) == stored
            with pytest.raises(Forbidden):
                other.put(thread("alice"), empty_checkpoint(), LOOP, {})
            with pytest.raises(Forbidden):
                other.delete_thread("alice")
        with CFSSaver(url=server.url, token=blind) as other, pytest.raises(Forbidden):
            other.get_tuple(thread("alice"))  # without the right to list, it must not look like a new thread
        with CFSSaver(url=server.url, token=bob) as other:
            assert list(other.list(None)) == []
            with pytest.raises(NotGranted):
                other.get_tuple(stored.config)
            with pytest.raises(NotGranted):
                ask(chat(other), "two", thread("alice"))
            ask(chat(other), "one", thread("bob"))


def joined(state: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *chain.from_iterable(writes)]


class Long(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(joined)]


def test_pruning_keeps_what_the_newest_checkpoint_needs(saver: CFSSaver, cfs_server: ScriptedServer) -> None:
    """A delta channel is restored from the writes of earlier checkpoints; without one, they all go."""
    graph = StateGraph(Long)
    graph.add_node("work", lambda state: {"log": [f"{len(state['log'])}"]})
    graph.add_edge(START, "work")
    app = cast("Any", graph.compile(checkpointer=saver))
    for _ in range(3):
        app.invoke({"log": ["given"]}, thread())
    before = app.get_state(thread()).values
    assert before == {"log": ["given", "1", "given", "3", "given", "5"]}
    saver.prune(["main"])
    assert app.get_state(thread()).values == before
    ask(chat(saver), "one", thread("plain"))
    saver.prune(["plain"])
    kept = [path for path in files(cfs_server.url) if path.startswith("/workspaces/plain/")]
    assert len([path for path in kept if "/checkpoints/" in path]) == 1
    assert ask(chat(saver), "two", thread("plain")) == ["one", "I know 1.", "two", "I know 3."]
    with pytest.raises(InvalidRequest, match="'keep_latest' or 'delete'"):
        saver.prune(["plain"], strategy="all")


def test_more_checkpoints_than_one_page_lists(saver: CFSSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cfs_langgraph.connection._PAGE", 2)
    stored: Sequence[RunnableConfig] = [saver.put(thread(), empty_checkpoint(), LOOP, {}) for _ in range(5)]
    assert [found.config for found in saver.list(thread())] == list(reversed(stored))
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.config == stored[-1]
