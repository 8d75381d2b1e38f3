"""A task from its beginning to its end (A1, A2, A3, A6, A7)."""

import asyncio
import re
from pathlib import Path

import pytest

from cfs.errors import Conflict, ContextTooLong, EngineError, NotFound, Unavailable
from cfs.wire import Usage
from cfs_agents.base.events import CallFinished, CallStarted, Finished, RoundStarted, Text, TurnUsage
from cfs_agents.base.messages import catalogue
from cfs_agents.context.items import text_of
from cfs_agents.context.tokens import estimate
from cfs_agents.main.testing import calls, garbles, raises, says, together
from cfs_agents.tree.directory import default
from tests.agents.file_agent.support import agent, events_of, history, operations, texts, until_there


async def test_a_task_is_worked_on_until_the_model_answers(tmp_path: Path) -> None:
    """Calls are run, the model sees their results, and its answer ends the task; all of it is told in order."""
    made, model = agent(
        tmp_path,
        calls("write_file", path="notes.txt", content="hello"),
        calls("read_file", path="notes.txt"),
        says("It says hello."),
    )
    async with made:
        events = await events_of(made, "Write hello, read it back.")
        kinds = [type(event).__name__ for event in events]
        a_call = ["RoundStarted", "TurnUsage", "CallStarted", "CallFinished"]
        assert kinds == [*a_call, *a_call, "RoundStarted", "Text", "TurnUsage", "FileChanges", "Finished"]
        assert events[-1] == Finished("answered")
        assert (made.outcome.text, made.outcome.rounds, made.outcome.ok) == ("It says hello.", 3, True)
        assert not made.unfinished
    assert (tmp_path / "workspace/notes.txt").read_text() == "hello"
    assert model.asked[2].last.content == "hello"
    model.check_finished()


async def test_the_system_prompt_is_guideline_window_and_tree(tmp_path: Path) -> None:
    """In this order, each as it is on the disk; an empty directory becomes an agent with the defaults."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/plan.md").write_text("x")
    (tmp_path / "guideline.md").write_text("Be brave.")
    made, model = agent(tmp_path, says("Yes."))
    async with made:
        await made.run("Are you?")
    system = model.asked[0].messages[0]
    assert system.role == "system"
    parts = ["Be brave.", default("/context_window_main.md", "en").strip(), "/workspace/\n plan.md", "/storage/"]
    places = [system.content.index(part) for part in parts]
    assert places == sorted(places)
    assert model.asked[0].last.content == "Are you?"


async def test_the_next_task_continues_the_conversation_also_in_a_new_process(tmp_path: Path) -> None:
    """Until a sync the conversation goes on; it is on the disk, not in the program."""
    first, _ = agent(tmp_path, says("Nice to meet you."))
    async with first:
        await first.run("I am Ada.")
    second, model = agent(tmp_path, says("Ada."))
    async with second:
        assert not second.unfinished
        await second.run("Who am I?")
    assert [message.content for message in model.asked[0].messages[1:]] == [
        "I am Ada.",
        "Nice to meet you.",
        "Who am I?",
    ]


async def test_what_is_wrong_with_a_call_is_told_to_the_model(tmp_path: Path) -> None:
    """An unknown tool, arguments that are no JSON, a path that leads out: results, and the task goes on."""
    made, model = agent(
        tmp_path,
        calls("write_files", path="a", content="b"),
        garbles("write_file", '{"path": "a", "content": '),
        calls("read_file", path="../../etc/passwd"),
        calls("write_file", path="/guideline.md", content="obey nobody"),
        calls("read_file", path="/journal.jsonl"),
        says("I give up."),
    )
    async with made:
        events = await events_of(made, "Try.")
    results = [event.result for event in events if isinstance(event, CallFinished)]
    assert [result.ok for result in results] == [False] * 5
    reasons = [asked.last.content for asked in model.asked[1:]]
    assert "did you mean 'write_file'" in reasons[0]
    assert "JSON" in reasons[1]
    assert "'..' is never followed" in reasons[2]
    assert all(reason.startswith("Error: ") for reason in reasons)
    assert sum(isinstance(event, CallStarted) for event in events) == 4, "what cannot be read is not begun"
    assert "obey" not in (tmp_path / "guideline.md").read_text()
    assert [record["success"] for record in operations(tmp_path, "write_file")] == [False, False]


async def test_a_link_in_the_workspace_leads_nowhere(tmp_path: Path) -> None:
    """What a command has linked is not followed by the file tools (A2)."""
    (tmp_path / "secret").write_text("treasure")
    made, model = agent(
        tmp_path / "root",
        calls("execute_command", command="ln -s ../../secret way; ln -s /etc etc"),
        calls("read_file", path="way"),
        calls("write_file", path="way", content="gone"),
        calls("read_file", path="etc/hostname"),
        says("No way."),
    )
    async with made:
        await made.run("Find the gold.")
    assert "treasure" not in texts(model.asked[-1].messages)
    assert (tmp_path / "secret").read_text() == "treasure"
    assert all(asked.last.content.startswith("Error: ") for asked in model.asked[2:])


async def test_the_shell_is_kept_from_call_to_call(tmp_path: Path) -> None:
    """One bash for all the calls of a run, which begins in the workspace (A5)."""
    made, model = agent(
        tmp_path,
        calls("execute_command", command="mkdir sub && cd sub && X=4"),
        calls("execute_command", command="echo $X > four; pwd"),
        says("Done."),
    )
    async with made:
        await made.run("Count.")
    assert (tmp_path / "workspace/sub/four").read_text() == "4\n"
    assert model.asked[2].last.content.strip().endswith("/workspace/sub")


async def test_the_limit_of_rounds_asks_for_one_last_sync(tmp_path: Path) -> None:
    """The last turn knows no other tool; without an answer the task has failed, and it can be resumed."""
    made, model = agent(
        tmp_path,
        calls("list_directory"),
        calls("list_directory"),
        calls("sync_context", new_context_content="# Current Task\nList.\n"),
        max_rounds=2,
    )
    async with made:
        events = await events_of(made, "List for ever.")
        assert events[-1] == Finished("rounds", "no answer after 2 steps")
        assert [tool["function"]["name"] for tool in model.asked[2].tools] == ["sync_context"]
        assert "sync_context" in model.asked[2].last.content
        assert made.unfinished
    assert (tmp_path / "context_window_main.md").read_text() == "# Current Task\nList.\n"
    again, model = agent(tmp_path, says("All listed."))
    async with again:
        assert again.unfinished
        assert (await again.resume()).ok
    assert "# Current Task\nList." in model.asked[0].messages[0].content


async def test_every_ten_steps_without_a_sync_it_is_asked_for(tmp_path: Path) -> None:
    """In a step in which the model can do nothing else; then the task goes on, with the new window (A4)."""
    window = "# Current Task\nCount to 25.\n"
    steps = [calls("execute_command", command=f"echo {number}") for number in range(25)]
    sync = calls("sync_context", new_context_content=window)
    made, model = agent(tmp_path, *steps[:10], sync, *steps[10:20], sync, *steps[20:], says("25."))
    async with made:
        assert (await made.run("Count to 25.")).text == "25."
        assert made.outcome.rounds == 28
    asked_for = [number for number, asked in enumerate(model.asked) if len(asked.tools) == 1]
    assert asked_for == [10, 21]
    assert model.asked[10].last.content == catalogue("en").sync_turn
    assert [message.role for message in model.asked[11].messages] == ["system", "user"]
    assert window.strip() in model.asked[11].messages[0].content
    assert len(history(tmp_path)) == 2
    model.check_finished()


async def test_a_sync_of_its_own_begins_the_ten_steps_anew(tmp_path: Path) -> None:
    """An agent that keeps the window up to date is not asked to."""
    steps = [calls("execute_command", command=f"echo {number}") for number in range(27)]
    sync = calls("sync_context", new_context_content="# Current Task\nCount.\n")
    made, model = agent(tmp_path, *steps[:9], sync, *steps[9:18], sync, *steps[18:], says("Done."))
    async with made:
        assert (await made.run("Count.")).ok
    assert all(len(asked.tools) > 1 for asked in model.asked)


async def test_words_in_the_place_of_a_sync_are_no_answer(tmp_path: Path) -> None:
    """Whatever the model says there, it is asked to go on; so is one whose new window is refused."""
    steps = [calls("execute_command", command=f"echo {number}") for number in range(20)]
    refused = calls("sync_context", new_context_content="no heading")
    made, model = agent(tmp_path, *steps[:10], says("I had rather not."), *steps[10:], refused, says("20."))
    async with made:
        assert (await made.run("Count.")).text == "20."
    assert model.asked[11].last.content == "[Go on with the task.]"
    assert len(model.asked[11].tools) > 1
    assert "has no heading" in model.asked[-1].last.content
    model.check_finished()


async def test_a_hundred_steps_are_the_most(tmp_path: Path) -> None:
    """Unless told otherwise; the same step again and again ends a task long before."""
    window = calls("sync_context", new_context_content="# Current Task\nCount.\n")
    steps = [calls("execute_command", command=f"echo {number}") for number in range(100)]
    script = [
        line
        for number, step in enumerate(steps)
        for line in ([window, step] if number and number % 10 == 0 else [step])
    ]
    made, model = agent(tmp_path, *script)
    async with made:
        outcome = await made.run("Count for ever.")
    assert (outcome.reason, outcome.detail) == ("rounds", "no answer after 100 steps")
    assert len(model.asked) == 101, "and the last sync"
    made, model = agent(tmp_path, *[calls("list_directory")] * 100)
    async with made:
        outcome = await made.run("List for ever.")
    assert (outcome.reason, outcome.rounds) == ("failed", 4)
    assert outcome.detail == "it repeated itself: list_directory, 4 times without anything new"


async def test_a_model_that_does_not_sync_at_the_end_loses_nothing(tmp_path: Path) -> None:
    """Words in place of the last sync are no answer; the conversation stays, and the task can be resumed."""
    made, model = agent(
        tmp_path, calls("list_directory"), says("I had rather not."), says("It is empty."), max_rounds=1
    )
    async with made:
        assert (await made.run("List.")).reason == "rounds"
        assert (await made.resume()).text == "It is empty."
    assert "List." in texts(model.asked[2].messages)
    assert model.asked[2].last.content == "[Go on with the task.]"


async def test_a_sync_in_the_last_round_needs_no_other(tmp_path: Path) -> None:
    """What was synchronised just now is not asked for again."""
    made, model = agent(tmp_path, calls("sync_context", new_context_content="# Current Task\nX\n"), max_rounds=1)
    async with made:
        assert (await made.run("X")).reason == "rounds"
    assert len(model.asked) == 1


async def test_the_cost_of_a_task_is_counted_told_and_logged(tmp_path: Path) -> None:
    """The tokens of each round, and of all of them (A7)."""
    one, two = (
        Usage(prompt_tokens=10, completion_tokens=2),
        Usage(prompt_tokens=20, cached_tokens=12, completion_tokens=3),
    )
    made, _ = agent(tmp_path, together(calls("list_directory"), says("", usage=one)), says("Empty.", usage=two))
    async with made:
        events = await events_of(made, "List.")
        assert [event.usage for event in events if isinstance(event, TurnUsage)] == [one, two]
        total = made.outcome.usage
    assert (total.prompt_tokens, total.cached_tokens, total.completion_tokens) == (30, 12, 5)
    assert [record["params"]["prompt_tokens"] for record in operations(tmp_path, "model")] == [10, 20]


async def test_an_error_of_the_model_ends_the_task_and_nothing_else(tmp_path: Path) -> None:
    """After the model's own tries: a failure with its reason, state kept, and the same task can be resumed."""
    made, model = agent(
        tmp_path,
        calls("write_file", path="a.txt", content="a"),
        raises(Unavailable("the engine restarts"), after="I thi"),
        says("Written."),
    )
    async with made:
        events = await events_of(made, "Write a.")
        assert events[-1] == Finished("failed", "the engine restarts")
        assert isinstance(events[-3], Text)
        assert (made.outcome.ok, made.unfinished) == (False, True)
        assert (await made.resume()).text == "Written."
        with pytest.raises(NotFound):
            await made.resume()
    assert len(operations(tmp_path, "write_file")) == 1
    assert "I thi" not in texts(model.asked[2].messages)
    ends = operations(tmp_path, "task_ended")
    assert [(end["success"], end.get("error")) for end in ends] == [
        (False, "failed: the engine restarts"),
        (True, None),
    ]


async def test_a_reply_of_nothing_is_no_answer(tmp_path: Path) -> None:
    """It is asked for again, twice; then the task fails, and can be resumed. Nothing of it is kept but its cost."""
    cost = Usage(prompt_tokens=10, completion_tokens=1)
    made, model = agent(
        tmp_path,
        says(" ", usage=cost),
        says("\n", usage=cost),
        says("Here.", usage=cost),
        *[says("")] * 3,
        says("There."),
    )
    async with made:
        assert (await made.run("Say something.")).text == "Here."
        assert made.outcome.rounds == 1
        assert [asked.last.content for asked in model.asked[1:3]] == [
            "[Your reply was empty. Call a tool, or answer.]"
        ] * 2
        assert [record["params"]["prompt_tokens"] for record in operations(tmp_path, "model")] == [30]
        outcome = await made.run("Again.")
        assert (outcome.reason, outcome.detail) == (
            "failed",
            "the model's reply was empty 3 times in a row",
        )
        assert (await made.resume()).text == "There."
        assert "empty" not in texts(model.asked[-1].messages)
    model.check_finished()


async def test_a_conversation_that_is_too_long_loses_its_oldest_messages(tmp_path: Path) -> None:
    """What the model refuses is shortened and asked again; the task itself stays (A7)."""
    steps = [calls("execute_command", command=f"echo {word * 80}") for word in ("alpha ", "beta ", "gamma ", "delta ")]
    too_long = raises(ContextTooLong("2,100 tokens, and 2,048 are the most"))
    (tmp_path / "guideline.md").write_text("Be brief.")
    made, model = agent(tmp_path, *steps, too_long, too_long, says("Done."))
    async with made:
        assert (await made.run("Echo the four.")).ok
    last = texts(model.asked[-1].messages)
    assert "Echo the four." in last
    assert "delta" in last
    assert "alpha alpha" not in last
    assert len(last) < len(texts(model.asked[4].messages)) * 0.7


async def test_a_conversation_that_cannot_be_shorter_fails(tmp_path: Path) -> None:
    """When nothing is left to leave out, the model's reason is the task's."""
    made, _ = agent(tmp_path, raises(ContextTooLong("too long")))
    async with made:
        assert str(await made.run("Hm.")) == "too long"


async def test_an_interrupt_stops_a_command_and_the_task_can_go_on(tmp_path: Path) -> None:
    """The task ends as interrupted; the model is told that the command may have happened, what came after did not."""
    made, model = agent(
        tmp_path,
        together(calls("execute_command", command="touch begun; sleep 60"), calls("write_file", path="b", content="b")),
        says("I looked: it was begun."),
    )
    async with made:

        async def interrupt() -> None:
            await until_there(tmp_path / "workspace/begun")
            made.interrupt()

        interrupting = asyncio.create_task(interrupt())
        events = await events_of(made, "Sleep, then write b.")
        await interrupting
        assert events[-1] == Finished("interrupted", "it was interrupted")
        assert made.unfinished
        assert (await made.resume()).over
    told = [message.content for message in model.asked[1].messages if message.role == "tool"]
    assert "may or may not have happened" in told[0]
    assert "was not run" in told[1]
    assert not (tmp_path / "workspace/b").exists()


async def test_a_new_task_after_an_interrupt_closes_what_was_open(tmp_path: Path) -> None:
    """Another task can follow at once; the conversation is one that any model takes."""
    made, model = agent(tmp_path, calls("execute_command", command="touch begun; sleep 60"), says("Hello."))
    async with made:
        async for event in made.run_stream("Sleep."):
            if isinstance(event, CallStarted):
                made.interrupt()
        assert made.outcome.reason == "interrupted"
        assert (await made.run("Hello?")).text == "Hello."
    roles = [message.role for message in model.asked[1].messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]


async def test_a_cancelled_task_goes_on_later(tmp_path: Path) -> None:
    """A cancellation gets out, as for any coroutine, and leaves a state that can be resumed."""
    made, _ = agent(tmp_path, calls("execute_command", command="touch begun; sleep 60"), says("Hm."))
    async with made:
        running = asyncio.create_task(made.run("Sleep."))
        await until_there(tmp_path / "workspace/begun")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert made.unfinished
        assert (await made.resume()).text == "Hm."


async def test_only_one_at_a_time_has_the_directory(tmp_path: Path) -> None:
    """A second agent is refused, and the first is not harmed."""
    first, _ = agent(tmp_path, says("Here."))
    async with first:
        second, _ = agent(tmp_path)
        with pytest.raises(Conflict, match="another agent is at work"):
            await second.__aenter__()
        assert (await first.run("Are you there?")).ok


async def test_an_agent_that_was_moved_goes_on(tmp_path: Path) -> None:
    """Nothing in the directory knows where it is: also off-loaded results are found (A1)."""
    made, _ = agent(
        tmp_path / "here",
        calls("execute_command", command="seq 2000"),
        calls("list_directory"),
        raises(EngineError("the machine is going down")),
        offload_token_threshold=500,
    )
    async with made:
        assert not (await made.run("Count.")).ok
    (tmp_path / "here").rename(tmp_path / "there")
    made, model = agent(
        tmp_path / "there",
        calls(
            "read_file",
            path="/storage/offloaded/conversation/tool_result/execute_command/call_1.txt",
            start_line=7,
            end_line=7,
        ),
        says("Counted."),
        offload_token_threshold=500,
    )
    async with made:
        assert made.unfinished
        assert (await made.resume()).ok
    placeholder = model.asked[0].messages[3].content
    assert "Path: /storage/offloaded/conversation/tool_result/execute_command/call_1.txt" in placeholder
    assert "seven" not in placeholder
    assert model.asked[1].last.content.startswith("7\n")
    assert str(tmp_path) not in texts(model.asked[1].messages)


async def test_a_long_conversation_stays_under_its_threshold(tmp_path: Path) -> None:
    """Two hundred rounds with large results: the task is never forgotten, and what was off-loaded can be read."""
    steps = [calls("execute_command", command=f"seq {number} {number + 300}") for number in range(200)]
    made, model = agent(
        tmp_path, *steps, says("Done."), max_rounds=201, context_tokens=6_000, offload_token_threshold=400
    )
    async with made:
        assert (await made.run("Count two hundred times.")).ok
        assert made.outcome.rounds == 201
    for asked in model.asked:
        assert sum(estimate(text_of(message)) for message in asked.messages) <= 6_000
        assert any(message.content == "Count two hundred times." for message in asked.messages)
    assert len(operations(tmp_path, "execute_command")) == 200
    paths = re.compile(r"/storage/offloaded/\S+?\.txt")
    every = sorted({path for asked in model.asked for path in paths.findall(texts(asked.messages))})
    assert len(every) > 100
    named = every[::25]
    reading = [calls("read_file", path=path) for path in named]
    again, reader = agent(tmp_path, *reading, says("Read."), max_rounds=len(named) + 1)
    async with again:
        assert (await again.run("Read all.")).ok
    for path, asked in zip(named, reader.asked[1:], strict=True):
        assert asked.last.content == (tmp_path / path[1:]).read_text()


async def test_rounds_are_numbered_from_one_in_each_task(tmp_path: Path) -> None:
    """Also in the second task of a conversation."""
    made, _ = agent(tmp_path, says("One."), calls("list_directory"), says("Two."))
    async with made:
        await made.run("One?")
        events = await events_of(made, "Two?")
    assert [event.number for event in events if isinstance(event, RoundStarted)] == [1, 2]


async def test_a_long_chat_lets_old_tasks_go(tmp_path: Path) -> None:
    """Only the running task is sure to stay, or many small ones would fill the context for ever; so after a restart."""
    tasks = [f"Task {number}: {'word ' * 60}" for number in range(40)]
    for part in (tasks[:30], tasks[30:]):
        made, model = agent(tmp_path, *[says("Done.") for _ in part], context_tokens=1_500)
        async with made:
            for task in part:
                assert (await made.run(task)).ok
        for asked, task in zip(model.asked, part, strict=True):
            assert asked.last.content == task
            assert sum(estimate(text_of(message)) for message in asked.messages) <= 1_500
