"""What a child's session context has of its parent's, attribute by attribute (B4)."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from cfs.wire import Message
from cfs_agents.context import ContextItem, Conversation
from cfs_agents.tree.session_context import (
    COPIED,
    AgentSpec,
    MessageManager,
    SessionMemoryManager,
    SubSessionContext,
    system_context_of_root,
)
from cfs_filesystem import OPERATIONS, AccessDeniedError, DiskFileSystem, Grant

NEW = {"session_id", "message_manager", "session_memory_manager", "agent_config"}
SAME = {"user_id", "workspace_root", "memory_root", "workflow_manager"}
SHARED = {"agent_workspace"}
NARROWED = {"files"}
MIXED = {"system_context"}


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[SubSessionContext]:
    disk = DiskFileSystem(tmp_path, prefix="/workspace/")
    messages = MessageManager([Message(role="user", content="mine")])
    yield SubSessionContext(
        session_id="main",
        agent_config=AgentSpec("main", task_goal="build it"),
        message_manager=messages,
        session_memory_manager=SessionMemoryManager(messages),
        user_id="ada",
        workspace_root=tmp_path,
        memory_root=tmp_path / "memory",
        workflow_manager={"flow": 1},
        agent_workspace=tmp_path,
        files=disk.create_handle([Grant(prefix="/workspace", ops=OPERATIONS)]),
        system_context=system_context_of_root("ada", "/workspace", "all") | {"private": "to the parent"},
    )
    disk.close()


def test_every_attribute_has_its_rule() -> None:
    assert {field.name for field in fields(SubSessionContext)} == NEW | SAME | SHARED | NARROWED | MIXED


@pytest.mark.parametrize("name", sorted(NEW))
def test_what_is_the_childs_own(parent: SubSessionContext, name: str) -> None:
    child = parent.child(AgentSpec("coder"))
    assert getattr(child, name) is not getattr(parent, name)
    assert child.session_id == "main/coder"
    assert len(child.message_manager) == 0


@pytest.mark.parametrize("name", sorted(SAME | SHARED))
def test_what_is_the_same_for_both(parent: SubSessionContext, name: str) -> None:
    assert getattr(parent.child(AgentSpec("coder")), name) is getattr(parent, name)


def test_the_system_context_is_copied_in_part_and_added_to(parent: SubSessionContext) -> None:
    child = parent.child(AgentSpec("coder", task_goal="write the parser"), ["main", "tester"]).system_context
    assert {key: child[key] for key in COPIED} == {key: parent.system_context[key] for key in COPIED}
    assert child.keys() - set(COPIED) == {"available_agents", "parent_task", "parent_session_id"}
    assert [child["available_agents"], child["parent_task"], child["parent_session_id"]] == [
        ["main", "tester"],
        "write the parser",
        "main",
    ]


def test_a_childs_rights_end_with_its_parents(parent: SubSessionContext) -> None:
    child = parent.child(AgentSpec("coder"))
    child.files.write("/workspace/a.txt", "x")
    parent.files.grants = [Grant(prefix="/workspace", ops=OPERATIONS - {"write"})]
    with pytest.raises(AccessDeniedError):
        child.files.write("/workspace/a.txt", "y")
    with pytest.raises(AccessDeniedError):
        child.files.narrow([Grant(prefix="/workspace", ops=OPERATIONS)])


def test_what_is_remembered_comes_back_with_what_came_after_it() -> None:
    """Messages of the session stand by their places; others, such as a shortened one, as they are."""
    manager = MessageManager([Message(role="user", content="go"), Message(role="assistant", content="well")])
    memory = SessionMemoryManager(manager)
    items = [ContextItem.of(message) for message in manager.messages]
    context = Conversation(
        (ContextItem.of(Message(role="system", content="s")), items[0].with_content("g.."), items[1])
    )
    dumped = memory.dump(context)
    assert [each.get("at") for each in dumped] == [None, 1]
    manager.add(Message(role="user", content="more"))
    loaded = memory.load(dumped, 2)
    assert [item.message.content for item in loaded] == ["g..", "well", "more"]
