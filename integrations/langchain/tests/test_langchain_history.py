"""The chat history of LangChain in a session of a real server, by its own base class and in a runnable (C11)."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI

from cfs import InvalidIdentifier, InvalidRequest, Unreachable
from cfs.wire import Message
from cfs_langchain import CFSChatMessageHistory, from_session, to_session
from pytest_cfs import ScriptedServer

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")

Blocks = list[str | dict[Any, Any]]
CALL = {"name": "read", "args": {"path": "a", "lines": [1, None]}, "id": "c1", "type": "tool_call"}
CONVERSATION: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("What is in a?", name="Ann"),
    AIMessage("", additional_kwargs={"reasoning_content": "I must look."}, tool_calls=[CALL]),
    ToolMessage("", tool_call_id="c1"),
    AIMessage("Nothing.\nUser: is this a turn?\n", name="helper"),
]


@pytest.fixture
def history(cfs_server: ScriptedServer) -> CFSChatMessageHistory:
    return CFSChatMessageHistory("chat")


@pytest.mark.feature("langchain-core", "chat history", "tools")
def test_messages_come_back_as_they_were(history: CFSChatMessageHistory) -> None:
    """Calls, ids, names and thinking are kept, and texts exactly; another object reads the same."""
    history.add_messages(CONVERSATION)
    assert history.messages == CONVERSATION
    assert CFSChatMessageHistory("chat").messages == CONVERSATION


async def test_coroutines_do_the_same(history: CFSChatMessageHistory) -> None:
    assert await history.aget_messages() == []
    await history.aadd_messages(CONVERSATION)
    assert await history.aget_messages() == CONVERSATION == history.messages
    await history.aclear()
    await history.aclear()
    assert await history.aget_messages() == []


def test_a_copy_through_langchain_is_the_same_session(
    history: CFSChatMessageHistory, cfs_server: ScriptedServer
) -> None:
    history.add_messages(CONVERSATION)
    copy = CFSChatMessageHistory("copy")
    copy.add_messages(history.messages)
    assert cfs_server.session("copy").read() == cfs_server.session("chat").read()


@pytest.mark.parametrize(
    "message",
    [
        Message(role="assistant", content="", thinking="Hm.", tool_calls=()),
        Message.model_validate(
            {
                "role": "assistant",
                "content": "x",
                "tool_calls": [{"id": "1", "name": "f", "arguments": {"_unreadable": 1}}],
            }
        ),
        Message.model_validate(
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "f", "arguments": {}}]}
        ),
        Message(role="tool", content="x", tool_call_id="1", name="f"),
        Message(role="user", content="  x\n\n", name="n"),
    ],
)
def test_each_message_of_a_session_survives_the_way_there_and_back(message: Message) -> None:
    assert to_session(from_session(message)) == message


def test_a_call_that_no_one_can_read_stays_one() -> None:
    broken = {"type": "invalid_tool_call", "name": "f", "args": '{"a', "id": "1", "error": None}
    message = AIMessage("", invalid_tool_calls=[broken])
    assert from_session(to_session(message)) == message


def test_thinking_in_blocks_is_understood() -> None:
    """Providers put it in different places; a session has one."""
    blocks: Blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "Yes"}, "."]
    assert to_session(AIMessage(blocks)) == Message(role="assistant", content="Yes.", thinking="Hm.")
    reasoning: Blocks = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Yes."}]
    assert to_session(AIMessage(reasoning)) == Message(role="assistant", content="Yes.", thinking="Hm.")
    assert to_session(AIMessageChunk(content="Yes.")) == Message(role="assistant", content="Yes.")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}]), "'image_url' cannot be stored"),
        (ChatMessage(content="hi", role="narrator"), "no messages of the type 'chat'"),
        (HumanMessage([{"type": "reasoning", "reasoning": "Hm."}]), "only a model's message has thinking"),
    ],
)
@pytest.mark.feature("langchain-core", "chat history", "error")
def test_what_cannot_be_kept_is_refused_and_nothing_is_stored(
    history: CFSChatMessageHistory, message: BaseMessage, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        history.add_messages([HumanMessage("before"), message])
    assert history.messages == []


def test_nothing_answers_what_is_added(history: CFSChatMessageHistory, cfs_server: ScriptedServer) -> None:
    history.add_user_message("hello")
    assert cfs_server.session("chat").read() == "User: hello\n"
    history.add_ai_message("hi")
    assert str(history) == "Human: hello\nAI: hi"
    assert cfs_server.asked == []


def test_what_others_write_is_in_the_history(history: CFSChatMessageHistory, cfs_server: ScriptedServer) -> None:
    """One conversation: a program with LangChain, and a person who writes to the file."""
    history.add_messages([HumanMessage("My name is Ann."), AIMessage("Hello, Ann.")])
    cfs_server.reply(lambda asked: f"I know {len(asked.messages)} messages.")
    cfs_server.session("chat").send("What is my name?")
    assert history.messages[-1] == AIMessage("I know 3 messages.")


def model(server: ScriptedServer) -> ChatOpenAI:
    """LangChain's own client, at the server's completions."""
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key=lambda: "none", model="any")


@pytest.fixture
def chain(cfs_server: ScriptedServer) -> RunnableWithMessageHistory:
    """A chain whose history is a session; its model is behind the completions of the same server."""
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
    open_history: Callable[[str], CFSChatMessageHistory] = CFSChatMessageHistory
    return RunnableWithMessageHistory(
        prompt | model(cfs_server), open_history, input_messages_key="question", history_messages_key="history"
    )


@pytest.mark.feature("langchain-core", "chat history", "chat", "resume")
def test_a_runnable_remembers(chain: RunnableWithMessageHistory, cfs_server: ScriptedServer) -> None:
    config: RunnableConfig = {"configurable": {"session_id": "ann"}}
    cfs_server.reply("Hello, Ann.", lambda asked: " | ".join(message.content for message in asked.messages))
    assert chain.invoke({"question": "I am Ann."}, config).content == "Hello, Ann."
    assert chain.invoke({"question": "Who?"}, config).content == "I am Ann. | Hello, Ann. | Who?"
    shown = cfs_server.session("ann").read()
    assert shown.startswith("User: I am Ann.\nAssistant: Hello, Ann.\nUser: Who?\nAssistant: I am Ann. |")


async def test_a_runnable_remembers_with_coroutines(
    chain: RunnableWithMessageHistory, cfs_server: ScriptedServer
) -> None:
    cfs_server.reply("Hello.", "Again.")
    config: RunnableConfig = {"configurable": {"session_id": "ann"}}
    await chain.ainvoke({"question": "Hi."}, config)
    pieces = [piece.content async for piece in chain.astream({"question": "Hi?"}, config)]
    assert "".join(map(str, pieces)) == "Again."
    assert cfs_server.session("ann").read() == "User: Hi.\nAssistant: Hello.\nUser: Hi?\nAssistant: Again.\n"


@pytest.mark.server
def test_bad_places_are_clear_errors() -> None:
    with pytest.raises(InvalidIdentifier, match="must not begin with"):
        CFSChatMessageHistory(".hidden")
    away = CFSChatMessageHistory("chat", url="http://127.0.0.1:9")
    with pytest.raises(Unreachable, match="no server answers"):
        away.add_user_message("hi")
    with pytest.raises(Unreachable, match="no server answers"):
        _ = away.messages
