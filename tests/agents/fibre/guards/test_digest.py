"""In a long context finished children are one line each; the newest stay whole."""

from cfs.wire import Message, ToolCall
from cfs_agents.context import ContextItem, Conversation
from cfs_agents.guards.digest import digested, one_line
from cfs_agents.guards.report import ChangedFile, Report


def report(name: str) -> str:
    facts = tuple(ChangedFile(f"{name}{number}.txt", "created", name) for number in range(6))
    return Report(name, "success", f"Wrote {name}.\nAnd some more words about it.", facts=facts).text()


def conversation(count: int) -> Conversation:
    items = [Message(role="user", content="work")]
    for number in range(count):
        call = ToolCall(id=str(number), name="sys_wait_agent", arguments={"agent_id": f"a{number}"})
        items.append(Message(role="assistant", content="", tool_calls=(call,)))
        items.append(Message(role="tool", content=report(f"a{number}"), tool_call_id=str(number), name=call.name))
    return Conversation(tuple(map(ContextItem.of, items)))


def is_report(item: ContextItem) -> bool:
    return item.message.role == "tool"


def test_all_but_the_newest_reports_are_one_line() -> None:
    after = digested(conversation(5), is_report, keep=2)
    reports = [item.message.content for item in after if is_report(item)]
    assert reports[0] == "[a0 success] Wrote a0."
    assert [len(text.splitlines()) for text in reports] == [1, 1, 1, 5, 5]
    assert after.check_integrity() == []


def test_what_was_shortened_stays_as_it_is() -> None:
    once = digested(conversation(5), is_report)
    assert digested(once, is_report) is once


def test_few_reports_are_left_alone() -> None:
    context = conversation(2)
    assert digested(context, is_report) is context


def test_what_is_no_report_is_left_alone() -> None:
    assert one_line("a is still at work. A message has come for you.") is None
    assert one_line("[a success]") is None
