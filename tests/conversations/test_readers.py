"""Files of other programs become conversations: recorded ones, earlier forms, damaged ones (C10)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.wire import Message, ToolCall
from cfs.conversations import claude_code, codex, opencode, pi
from cfs.conversations.conversation import IMAGE, Damage, ImportedConversation
from tests.conversations.support import RECORDED

PROJECT = RECORDED / "claude-code/-home-cfs-project"


def lines(*values: dict[str, Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def brief(conversation: ImportedConversation) -> list[tuple[str, str]]:
    """The messages by role and content, or the names of calls without one."""
    return [
        (message.role, message.content or " ".join(call.name for call in message.tool_calls))
        for message in conversation.messages
    ]


def test_claude_code_is_read() -> None:
    """The lines of a reply are one message, parallel results both stay, and tokens count once a reply."""
    (path,) = PROJECT.glob("*.jsonl")
    (main,) = claude_code.read(path.read_text(), path.stem)
    assert [role for role, _ in brief(main)] == [
        "user",
        "assistant",
        *(["tool"] * 2),
        *["assistant", "tool"],
        "assistant",
        "user",
        "assistant",
    ]
    call = main.messages[1]
    assert (call.thinking, call.content) == ("I need a file. ", "I write it. ")
    assert [one.id for one in call.tool_calls] == ["call_1", "call_2"]
    assert [message.content for message in main.messages[2:4]] == ["milk", "Error: Exit code 1"]
    assert main.messages[2].name == "Bash"
    assert (main.tokens, main.models, main.folder) == (1806 + 1813 + 1842 + 1852, ("scripted",), "/home/cfs/project")
    assert list(main.times) == sorted(main.times)
    assert main.times[0] == pytest.approx(1_795_806_874.902)
    assert main.lost == {"attachments": 2}


def test_a_sub_agent_of_claude_code_has_a_file_of_its_own() -> None:
    (path,) = PROJECT.glob("*/subagents/*.jsonl")
    (child,) = claude_code.read(path.read_text(), path.stem, parent="main", title="look")
    assert (child.parent, child.title, child.messages[0].content) == ("main", "look", "LOOK AT THE NOTES")
    assert child.messages[-1].content == "The notes say milk."


def entry(uuid: str, parent: str | None, content: Any, kind: str = "user", **more: Any) -> dict[str, Any]:
    """A line of Claude Code."""
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "message": {"role": kind, "content": content}} | more


def test_only_the_newest_branch_of_claude_code_is_read() -> None:
    """A prompt that was edited, a sub-agent in the same file, a summary as title, a picture, and a hidden thought."""
    picture = [{"type": "image", "source": {}}, {"type": "text", "text": "See?"}]
    text = lines(
        {"type": "summary", "summary": "Notes", "leafUuid": "x"},
        entry("1", None, "one"),
        entry("2", "1", [{"type": "text", "text": "old"}], "assistant"),
        entry("s1", None, "order", isSidechain=True),
        entry("s2", "s1", [{"type": "text", "text": "done"}], "assistant", isSidechain=True),
        entry("3", "1", [{"type": "redacted_thinking"}, {"type": "text", "text": "new"}], "assistant"),
        entry("4", "3", picture),
    )
    main, child = claude_code.read(text, "file")
    assert brief(main) == [("user", "one"), ("assistant", "new"), ("user", f"{IMAGE}\n\nSee?")]
    assert (main.title, child.parent, brief(child)) == ("Notes", "file", [("user", "order"), ("assistant", "done")])
    assert main.lost == {"messages of other branches": 1, "encrypted thoughts": 1, "pictures": 1}


def test_a_sub_agent_of_claude_code_may_be_beside_its_session() -> None:
    (child,) = claude_code.read(lines(entry("1", None, "order", isSidechain=True, sessionId="main")), "agent-1")
    assert (child.id, child.parent, brief(child)) == ("agent-1", "main", [("user", "order")])


def test_half_characters_become_question_marks() -> None:
    """In texts, and in arguments, which are JSON in JSON."""
    arguments = json.dumps({"cmd": "a\ud83d"})
    text = lines(user("b\ud83d"), item("function_call", name="x", arguments=arguments, call_id="c"))
    conversation = codex.read(text, "name")
    assert brief(conversation) == [("user", "b?"), ("assistant", "x")]
    assert conversation.messages[1].tool_calls[0].arguments == {"cmd": "a?"}


def test_undone_messages_of_opencode_and_long_ids_of_calls() -> None:
    """pi joins two ids of OpenAI to one that is longer than the server takes."""
    said = [({"id": f"msg_{number}", "role": "user"}, [{"type": "text", "text": str(number)}]) for number in (1, 2)]
    conversation = opencode.read({"id": "ses_1", "revert": {"messageID": "msg_2"}}, said)
    assert (brief(conversation), conversation.lost) == ([("user", "1")], {"messages of undone turns": 1})
    long = "call" * 100
    call = {"role": "assistant", "content": [{"type": "toolCall", "id": long, "name": "bash"}]}
    text = lines(
        {"type": "message", "message": call},
        {"type": "message", "message": {"role": "toolResult", "toolCallId": long, "content": "milk"}},
    )
    made, result = pi.read(text, "name").messages
    assert made.tool_calls[0].id == result.tool_call_id
    assert len(made.tool_calls[0].id) <= 256


def test_codex_is_read() -> None:
    """What Codex says in the user's name is of the system; a call in a namespace has its whole name."""
    child, main = sorted(
        (codex.read(path.read_text(), "name") for path in (RECORDED / "codex").rglob("*.jsonl")),
        key=lambda each: each.parent is None,
    )
    assert [role for role, _ in brief(main)][:4] == ["system", "system", "user", "assistant"]
    call = main.messages[3]
    assert (call.thinking, call.content, len(call.tool_calls)) == ("I need a file. ", "I write it. ", 2)
    assert call.tool_calls[0] == ToolCall(
        id="call_1", name="exec_command", arguments={"cmd": "echo milk > notes.txt && cat notes.txt"}
    )
    assert main.messages[6].tool_calls[0].name == "multi_agent_v1__spawn_agent"
    assert [text for role, text in brief(main) if role == "user"] == ["Write a note.", "And a second question."]
    assert (child.parent, child.messages[2].content, child.messages[-1].content) == (
        main.id,
        "LOOK AT THE NOTES",
        "The notes say milk.",
    )
    assert (main.tokens, main.models, main.system) == (15_813, ("any",), "You are a coding agent. (shortened)")


def item(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind} | payload}


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "event_msg", "payload": {"type": kind} | payload}


def user(text: str) -> dict[str, Any]:
    return item("message", role="user", content=[{"type": "input_text", "text": text}])


def test_undone_turns_of_codex_are_left_out() -> None:
    text = lines(
        event("task_started"),
        user("one"),
        event("task_started"),
        user("two"),
        event("thread_rolled_back", num_turns=1),
        event("thread_name_updated", thread_name="Notes"),
        item("custom_tool_call", name="apply_patch", input="*** Begin", call_id="c"),
        item("custom_tool_call_output", call_id="c", output=[{"type": "input_text", "text": "Done"}]),
        item("reasoning", summary=[], encrypted_content="x"),
        {"type": "compacted", "payload": {"message": "What was"}},
    )
    conversation = codex.read(text, "name")
    assert brief(conversation) == [
        ("user", "one"),
        ("assistant", "apply_patch"),
        ("tool", "Done"),
        ("system", "Summary of the conversation before: What was"),
    ]
    assert conversation.messages[1].tool_calls[0].arguments == {"input": "*** Begin"}
    assert conversation.messages[2].name == "apply_patch"
    assert (conversation.title, conversation.id) == ("Notes", "name")
    assert conversation.lost == {"messages of undone turns": 1, "encrypted thoughts": 1}


def test_the_first_form_of_codex_is_read() -> None:
    """Its lines had no envelope."""
    text = lines(
        {"id": "old", "timestamp": "2025-05-01T10:00:00Z", "instructions": "Be brief."},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
    )
    conversation = codex.read(text, "name")
    assert (conversation.id, conversation.system) == ("old", "Be brief.")
    assert brief(conversation) == [("user", "hi"), ("assistant", "hello")]


def test_pi_is_read() -> None:
    (path,) = (RECORDED / "pi").glob("*.jsonl")
    conversation = pi.read(path.read_text(), "name")
    assert [role for role, _ in brief(conversation)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert conversation.messages[1].thinking == "I need a file. "
    assert conversation.messages[3].content == "Error: (no output)\n\nCommand exited with code 1"
    assert (conversation.tokens, conversation.models) == (325 + 335 + 345, ("any",))
    assert conversation.id == "01a21e6e-2604-7389-99ee-4f1bf4bfe862"


def test_only_the_newest_branch_of_pi_is_read() -> None:
    def message(name: str, parent: str | None, **content: Any) -> dict[str, Any]:
        return {"type": "message", "id": name, "parentId": parent, "message": content}

    text = lines(
        {"type": "session", "version": 3, "id": "s", "cwd": "/x"},
        message("1", None, role="user", content="one"),
        message("2", "1", role="assistant", content=[{"type": "text", "text": "old"}]),
        message("3", "1", role="bashExecution", command="ls", output="a"),
        {"type": "compaction", "id": "4", "parentId": "3", "summary": "What was"},
        message("5", "4", role="assistant", content=[], errorMessage="no model"),
        {"type": "session_info", "id": "6", "parentId": "5", "name": "Notes"},
    )
    conversation = pi.read(text, "name")
    assert brief(conversation) == [
        ("user", "one"),
        ("user", "$ ls\na"),
        ("system", "Summary of the conversation before: What was"),
        ("assistant", "[Error: no model]"),
    ]
    assert (conversation.title, conversation.lost) == ("Notes", {"messages of other branches": 1})


def test_a_message_of_opencode_with_several_steps_is_divided() -> None:
    def tool(number: int, **state: Any) -> dict[str, Any]:
        return {"type": "tool", "tool": "bash", "callID": f"c{number}", "state": {"input": {}} | state}

    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm."},
        tool(1, status="completed", output="milk"),
        {"type": "step-finish"},
        {"type": "step-start"},
        tool(2, status="error", error="no file"),
        {"type": "text", "text": "Done."},
    ]
    asked = [{"type": "text", "text": "Go."}, {"type": "file", "mime": "image/png"}, {"text": "no type"}]
    conversation = opencode.read(
        {"id": "ses_1", "title": "T", "parentID": "ses_0"},
        [({"role": "user"}, asked), ({"role": "assistant", "tokens": {"input": 3, "output": 4}}, parts)],
    )
    assert brief(conversation) == [
        ("user", f"Go.\n\n{IMAGE}"),
        ("assistant", "bash"),
        ("tool", "milk"),
        ("assistant", "bash"),
        ("tool", "Error: no file"),
        ("assistant", "Done."),
    ]
    assert (conversation.tokens, conversation.parent, conversation.damage) == (
        7,
        "ses_0",
        (Damage(1, "type: field required"),),
    )


@pytest.mark.parametrize("program", ["claude-code", "codex", "pi"])
def test_damaged_lines_are_named_and_the_rest_is_read(program: str) -> None:
    path = next(path for path in sorted((RECORDED / program).rglob("*.jsonl")) if "subagents" not in path.parts)
    text = path.read_text().splitlines()
    text[3:3] = ["{half", '"no object"', '{"type": 5}', "\x00\x00"]
    damaged = "\n".join(text) + '\n{"type": "mess'

    def read(text: str) -> ImportedConversation:
        match program:
            case "claude-code":
                return claude_code.read(text, "name")[0]
            case "codex":
                return codex.read(text, "name")
        return pi.read(text, "name")

    whole, part = read(path.read_text()), read(damaged)
    assert part.messages == whole.messages
    numbers = {damage.line for damage in part.damage}
    assert numbers >= {4, 5, 7, len(text) + 1}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
calls = st.builds(
    ToolCall,
    id=st.uuids().map(str),
    name=st.sampled_from(["bash", "read"]),
    arguments=st.dictionaries(texts, texts, max_size=2),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Conversations as programs have them: each reply has text, and each call its result right behind it."""
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 4))):
        messages.append(Message(role="user", content=f"{number}{draw(texts)}"))
        made = tuple(draw(st.lists(calls, max_size=2)))
        content = draw(texts) if made else f"a{draw(texts)}"
        messages.append(Message(role="assistant", content=content, tool_calls=made))
        messages += [Message(role="tool", content=draw(texts), tool_call_id=call.id, name=call.name) for call in made]
        if made:
            messages.append(Message(role="assistant", content=f"b{draw(texts)}"))
    return tuple(messages)


@pytest.mark.parametrize("program", ["claude-code", "codex", "opencode", "pi"])
@given(messages=histories(), title=texts.filter(str.strip))
def test_what_is_written_is_read_again(program: str, messages: tuple[Message, ...], title: str) -> None:
    """Messages, calls, results, times and titles; times are whole milliseconds in these formats."""
    times = tuple(1_700_000_000.0 + number for number in range(len(messages)))
    conversation = ImportedConversation("ses_1", messages, times, title=title)
    match program:
        case "claude-code":
            (again,) = claude_code.read(claude_code.write(conversation, "/x"), "ses_1")
        case "codex":
            again = codex.read(codex.write(conversation, "/x"), "name")
        case "opencode":
            value = json.loads(opencode.write(conversation, "/x"))
            pairs = [(message["info"], message["parts"]) for message in value["messages"]]
            again = opencode.read(value["info"], pairs)
        case _:
            again = pi.read(pi.write(conversation, "/x"), "name")
    assert (again.messages, again.id, again.folder) == (messages, "ses_1", "/x")
    assert again.title == (None if program == "codex" else title)
    assert again.damage == ()
    if program != "opencode":  # a result has the time of its call there
        assert again.times == times
