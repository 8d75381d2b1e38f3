"""No failure looks like success: what an answer says of files is held against them, and the exit codes say the rest."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs_agents.base.events import FileChanges, Warned
from cfs_agents.main.testing import Line, calls, says
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait, write
from tests.agents.file_agent.support import agent, events_of, texts
from tests.client.terminal import Running, cfs, ended
from tests.server.support import serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import MODEL, Refusal, Speech, served_aside

CLAIM = "I have written out.txt."
FACTS = "since the task began they were not: out.txt. What was: nothing."


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, OpenAIStub]]:
    """A server whose model says what a test puts into its acts, and else repeats the last message."""
    stub = OpenAIStub(key=None)
    with served_aside(stub) as url, serving("--upstream", url, "--upstream-model", MODEL) as server:
        yield server.url, stub


def put(path: Path, text: str = "x") -> None:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# -- the file agent -------------------------------------------------------------------------------------------------


async def test_a_claim_that_is_not_so_gets_one_prompt_and_is_then_unverified(tmp_path: Path) -> None:
    """With the facts, and a warning for the person who looks."""
    made, model = agent(tmp_path, says(CLAIM), says(CLAIM))
    async with made:
        events = await events_of(made, "Write hello to out.txt")
        model.check_finished()
        outcome = made.outcome
        assert (outcome.reason, outcome.ok, outcome.over, made.unfinished) == ("unverified", False, True, False)
        assert "out.txt" in outcome.detail
    assert FACTS in model.asked[1].messages[-1].content
    assert any(isinstance(event, Warned) and "out.txt" in event.text for event in events)


@pytest.mark.parametrize(
    "second",
    [
        [write("out.txt"), says(CLAIM)],
        [says("I could not write out.txt: I have no tool for it.")],
        [calls("execute_command", command="mkdir sub; echo hi > sub/out.txt"), says("Written: `out.txt`.")],
    ],
)
async def test_what_is_mended_or_taken_back_is_an_answer(tmp_path: Path, second: list[Line]) -> None:
    """By a tool, by a command, or in words."""
    made, model = agent(tmp_path, says(CLAIM), *second)
    async with made:
        assert (await made.run("Write hello to out.txt")).ok
    model.check_finished()


async def test_silence_takes_nothing_back(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, says(CLAIM), says("Done."))
    async with made:
        assert (await made.run("Write hello to out.txt")).reason == "unverified"


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_it_is_said_in_the_language_of_the_agent(tmp_path: Path, language: str) -> None:
    made, model = agent(tmp_path, says("已写入 out.txt。"), says("没有写入 out.txt。"), language=language)
    async with made:
        assert (await made.run("你好")).ok
    assert ("你的回答说" if language == "zh" else "Your answer says") in model.asked[1].messages[-1].content


async def test_a_file_of_before_does_not_bear_a_claim_out(tmp_path: Path) -> None:
    """What counts is what became of it since the task began; also the same text, written again, is written."""
    put(tmp_path / "workspace/out.txt")
    made, model = agent(tmp_path, says(CLAIM), write("out.txt"), says(CLAIM), says(CLAIM), says(CLAIM))
    async with made:
        first = await made.run("Write x to out.txt")
        assert (first.ok, first.files) == (True, FileChanges(changed=("/workspace/out.txt",)))
        assert (await made.run("Again")).reason == "unverified", "another task begins anew"
    model.check_finished()


async def test_the_outcome_lists_what_became_of_the_files(tmp_path: Path) -> None:
    """Of workspace and storage, by any agent; not what the runtime keeps there."""
    for name in ("old.txt", "gone.txt", "same.txt"):
        put(tmp_path / "workspace" / name)
    made, _ = agent(
        tmp_path,
        write("notes/a.md"),
        write("/storage/documents/b.md"),
        calls("execute_command", command="echo more >> old.txt; rm gone.txt; touch t && rm t; seq 4000"),
        says("All of it is done."),
        offload_token_threshold=50,
    )
    async with made:
        events = await events_of(made, "Tidy up.")
        files = made.outcome.files
        assert files == FileChanges(
            created=("/storage/documents/b.md", "/workspace/notes/a.md"),
            changed=("/workspace/old.txt",),
            deleted=("/workspace/gone.txt",),
        )
        assert files in events


async def test_what_was_there_is_remembered_by_another_process(tmp_path: Path) -> None:
    """The first one is left in the middle of its task; a claim about a file that it wrote is true in the second."""
    put(tmp_path / "workspace/before.txt")
    made, _ = agent(tmp_path, write("out.txt"), says("never said"), max_rounds=1)
    async with made:
        assert (await made.run("Write out.txt and before.txt")).reason == "rounds"
    again, model = agent(
        tmp_path, says("I wrote out.txt and before.txt."), says("I wrote out.txt. before.txt was not.")
    )
    async with again:
        outcome = await again.resume()
    assert outcome.ok
    assert outcome.files.created == ("/workspace/out.txt",)
    assert "they were not: before.txt. What was: created /workspace/out.txt." in texts(model.asked[-1].messages)


async def test_another_process_does_not_ask_a_second_time(tmp_path: Path) -> None:
    """The one prompt is in the journal."""
    made, _ = agent(tmp_path, says(CLAIM))
    async with made:
        async for event in made.run_stream("Write hello to out.txt"):
            if isinstance(event, Warned):
                break
    again, model = agent(tmp_path, says("Done."))
    async with again:
        assert (await again.resume()).reason == "unverified"
    model.check_finished()


async def test_an_agent_without_an_answer_lists_its_files_too(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, write("a.txt"), says("Later."), max_rounds=1)
    async with made:
        outcome = await made.run("Write.")
        assert (outcome.reason, outcome.files.created) == ("rounds", ("/workspace/a.txt",))


# -- the last call --------------------------------------------------------------------------------------------------

FAILS = calls("read_file", path="missing.txt")
STATUS = calls("execute_command", command="exit 3")
WORKS = calls("list_directory", path="/workspace")


@pytest.mark.parametrize(
    ("script", "failed"),
    [
        ([], ""),
        ([WORKS], ""),
        ([FAILS], "read_file: Error: "),
        ([STATUS], "execute_command: exit status 3"),
        ([FAILS, WORKS], ""),
        ([STATUS, WORKS, FAILS], "read_file: Error: "),
        ([calls("execute_command", command="(exit 3); true")], ""),
        ([calls("no_such_tool")], "no_such_tool: Error: there is no tool"),
    ],
)
async def test_an_answer_after_a_failed_last_call_is_no_success(
    tmp_path: Path, script: list[Line], failed: str
) -> None:
    """An error, or a command with another status than 0; one that works afterwards makes up for it."""
    made, _ = agent(tmp_path, *script, says("That is all."), says("Hello."))
    async with made:
        outcome = await made.run("Look around.")
        assert (outcome.reason, outcome.ok) == ("answered", not failed)
        assert outcome.failed_call.startswith(failed)
        assert bool(outcome.failed_call) == bool(failed)
        assert not made.unfinished
        assert (await made.run("Hello?")).ok, "the next task begins anew"


async def test_the_last_call_is_remembered_by_another_process(tmp_path: Path) -> None:
    made, _ = agent(tmp_path, STATUS, says("Later."), max_rounds=1)
    async with made:
        await made.run("Try.")
    again, _ = agent(tmp_path, says("That is all."))
    async with again:
        assert (await again.resume()).failed_call == "execute_command: exit status 3"


# -- a tree ---------------------------------------------------------------------------------------------------------


async def test_the_root_of_a_tree_is_asked_once_and_is_then_unverified(tmp_path: Path) -> None:
    scripted = ScriptedModels(main=[says(CLAIM), says(CLAIM)])
    async with tree(tmp_path, scripted) as fibre:
        report = await fibre.run("Write hello to out.txt")
    scripted.check_finished()
    assert (report.status, report.reasons) == ("unverified", ("claimed, but nothing changed: out.txt",))
    assert FACTS in scripted.models["main"].asked[1].messages[-1].content


async def test_what_its_children_wrote_bears_a_root_out(tmp_path: Path) -> None:
    """By any agent of the tree, in whichever folder; the facts are in the report."""
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("The agents wrote out.txt.")],
        a=[write("notes/out.txt"), finish("wrote it", "notes/out.txt")],
    )
    async with tree(tmp_path, scripted) as fibre:
        report = await fibre.run("Let an agent write out.txt")
    assert report.ok
    assert [(fact.path, fact.kind) for fact in report.facts] == [("notes/out.txt", "created")]


async def test_a_root_may_write_the_same_again(tmp_path: Path) -> None:
    """The ledger of a tree knows contents; that a file was written again with the same one is known, too."""
    scripted = ScriptedModels(
        main=[write("out.txt"), says(CLAIM), write("out.txt"), says(CLAIM), says(CLAIM), says(CLAIM)]
    )
    async with tree(tmp_path, scripted) as fibre:
        assert (await fibre.run("Write x to out.txt")).ok
        assert (await fibre.run("Write x to out.txt again")).ok
        assert (await fibre.run("And again")).status == "unverified"


# -- the commands ---------------------------------------------------------------------------------------------------


def called(name: str, **arguments: str) -> Speech:
    """A reply that is a call."""
    return Speech((), calls=((name, (json.dumps(arguments),)),))


def said(text: str) -> Speech:
    """A reply in words."""
    return Speech((text,))


def test_the_exit_codes_of_a_task(upstream: tuple[str, OpenAIStub], tmp_path: Path) -> None:
    """0, 1 with a line that says why, and 4 for what is not so; what was written is shown."""
    url, stub = upstream
    root = ("--root", str(tmp_path / "root"))
    stub.acts.extend([called("write_file", path="a.txt", content="x"), said("It is there.")])
    code, output, errors = ended(cfs(url, "agent", "run", "Write x to a.txt", *root))
    assert (code, errors) == (0, "")
    assert "[created: /workspace/a.txt]\n" in output
    stub.acts.extend([called("read_file", path="missing.txt"), said("Done.")])
    code, _, errors = ended(cfs(url, "agent", "run", "Read missing.txt", *root))
    assert code == 1
    assert errors.startswith("cfs: the last call before the answer failed: read_file: Error: ")
    assert errors.count("\n") == 1
    stub.acts.extend([said(CLAIM), said(CLAIM)])
    code, output, errors = ended(cfs(url, "agent", "run", "Write hello to out.txt", *root))
    assert code == 4
    assert errors == "cfs: the answer says that out.txt was written, and it was not\n"
    assert output.count("[warning: the answer says that out.txt was written") == 1
    assert ended(cfs(url, "agent", "run", *root))[2].startswith("cfs: no task was interrupted")


def test_a_chat_from_a_pipe_ends_with_the_first_that_is_not_so(
    upstream: tuple[str, OpenAIStub], tmp_path: Path
) -> None:
    url, stub = upstream
    stub.acts.extend([said(CLAIM), said(CLAIM)])
    code, output, _ = ended(cfs(url, "agent", "chat", "--root", str(tmp_path), data=b"Write out.txt\nhello\n"))
    assert (code, "hello" in output) == (4, False)


def test_the_lines_of_a_tree_say_it_too(upstream: tuple[str, OpenAIStub], tmp_path: Path) -> None:
    """With what changed below them; the reply in the session is the report."""
    url, stub = upstream
    session = "claiming"
    with Running(url, "agent", "serve", "--session", session, "--root", str(tmp_path)) as running:
        while cfs(url, "agent", "tree", session).returncode != 0:  # it is not attached yet
            assert running.process.poll() is None
        stub.acts.extend([called("write_file", path="a.txt", content="x"), said("It is there.")])
        assert ended(cfs(url, "send", session, "Write x to a.txt", "--no-wait"))[0] == 0
        running.until("claiming: [created: a.txt]")
        stub.acts.extend([said(CLAIM), said(CLAIM)])
        code, reply, _ = ended(cfs(url, "send", session, "Write hello to out.txt"))
        assert code == 4
        assert "claimed, but nothing changed: out.txt" in reply
        running.until("= [claiming unverified]")


def test_a_tree_that_is_resumed_ends_with_the_code(upstream: tuple[str, OpenAIStub], tmp_path: Path) -> None:
    """The runtime is killed while its root waits for the second answer; what it has asked is on disk."""
    url, stub = upstream
    session = "resumed"
    stub.acts.extend([said(CLAIM), Refusal(503, headers={"retry-after": "60"})])
    with Running(url, "agent", "serve", "--session", session, "--root", str(tmp_path)) as running:
        while cfs(url, "agent", "tree", session).returncode != 0:  # it is not attached yet
            assert running.process.poll() is None
        assert ended(cfs(url, "send", session, "Write hello to out.txt", "--no-wait"))[0] == 0
        running.until("Your answer says")
        running.process.kill()
    stub.acts.clear()
    stub.acts.append(said("Done."))
    code, _, errors = ended(cfs(url, "agent", "resume", session, "--root", str(tmp_path)))
    assert (code, errors) == (4, "cfs: claimed, but nothing changed: out.txt\n")
