"""`cfs import --from` and `cfs export --as`: recorded conversations of other programs on a real server (C10)."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import Message, NewMessage, SettingsPatch, ToolCall
from tests.client.terminal import cfs, ended, terminal
from tests.conversations.support import RECORDED, cfs_import, imported, recorded
from tests.server.support import Process, serving

PROGRAMS = ("claude-code", "codex", "opencode", "pi")
SIZES = {"claude-code": (9, 4), "codex": (14, 6), "opencode": (9, 4), "pi": (7,)}
"""Messages of each program's recorded conversation, and of its sub-agent."""


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with serving("--engine", "scripted") as process:
        yield process


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_imported_once(program: str, server: Process, tmp_path: Path) -> None:
    """The second time makes nothing; sub-agents are sub-sessions; the messages have their times and cost tokens."""
    folder = recorded(program, tmp_path)
    code, said = cfs_import(server.url, program, folder)
    assert (code, f"{len(SIZES[program])} session" in said.splitlines()[0]) == (0, True), said
    assert "the setting `model` was not changed" in said
    sessions = {name: one for name, one in imported(server.url).items() if name.startswith(program)}
    assert tuple(one.messages for _, one in sorted(sessions.items())) == SIZES[program]
    root, *below = sorted(sessions)
    assert all(name.startswith(f"{root}/") for name in below)
    assert sessions[root].tokens > 900
    assert 1_795_806_000 < sessions[root].times[0] <= sessions[root].times[-1] < 1_795_807_000
    code, said = cfs_import(server.url, program, folder)
    count = len(SIZES[program])
    assert said.splitlines()[0] == f"cfs: 0 sessions imported; {count} of {count} were left as they are"
    assert {name: one for name, one in imported(server.url).items() if name.startswith(program)} == sessions


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_usual_folder_is_the_default(program: str, server: Process, tmp_path: Path) -> None:
    homes = {
        "claude-code": ".claude/projects",
        "codex": ".codex",
        "opencode": ".local/share/opencode",
        "pi": ".pi/agent/sessions",
    }
    target = tmp_path / "home" / homes[program]
    shutil.copytree(recorded(program, tmp_path), target)
    unset = {"XDG_DATA_HOME": "", "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": "", "PI_CODING_AGENT_DIR": ""}
    run = cfs(server.url, "import", "--from", program, data=b"", HOME=str(tmp_path / "home"), **unset)
    assert run.returncode == 0, run.stderr
    run = cfs(server.url, "import", "--from", program, data=b"", HOME=str(tmp_path), **unset)
    assert (run.returncode, "does not exist" in run.stderr.decode()) == (1, True), run.stderr


def test_earlier_opencode_has_a_file_for_each_part(tmp_path: Path) -> None:
    """The same conversation as in the database, and none twice where both are there."""
    storage = tmp_path / "opencode/storage"
    info = {"id": "ses_1", "title": "Notes", "directory": "/home/cfs", "time": {"created": 1, "updated": 2}}
    files = {
        "session/global/ses_1": info,
        "message/ses_1/msg_1": {"id": "msg_1", "role": "user", "time": {"created": 1_700_000_000_000}},
        "part/msg_1/prt_1": {"type": "text", "text": "hi"},
        "message/ses_1/msg_2": {"id": "msg_2", "role": "assistant", "time": {"created": 1_700_000_001_000}},
        "part/msg_2/prt_2": {"type": "text", "text": "hello"},
    }
    for name, value in files.items():
        path = storage / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    (storage / "part/msg_2/prt_3.json").write_text("{half")
    recorded("opencode", tmp_path)
    with serving("--engine", "scripted") as server:
        code, said = cfs_import(server.url, "opencode", tmp_path / "opencode")
        assert (code, "ses_1.json, line 2: type: field required; the rest is imported" in said) == (1, True), said
        sessions = imported(server.url)
        assert len(sessions) == 3
        assert [message.content for message in sessions["opencode-ses_1"].history] == ["hi", "hello"]
        assert sessions["opencode-ses_1"].title == "Notes"


def test_damage_is_named_and_the_rest_is_imported(server: Process, tmp_path: Path) -> None:
    shutil.copytree(recorded("pi", tmp_path), tmp_path / "pi")
    (path,) = (tmp_path / "pi").glob("*.jsonl")
    text = path.read_text().replace("01a21e6e-2604", "damaged0-2604").splitlines()
    path.write_text("\n".join([*text[:4], "{half", *text[4:]]))
    (tmp_path / "pi/empty_1.jsonl").write_text("")
    code, said = cfs_import(server.url, "pi", tmp_path / "pi")
    first, second, _ = said.splitlines()
    assert (code, first) == (1, f"cfs: {path}, line 5: is not JSON; the rest is imported")
    assert second == "cfs: 1 session imported"
    assert imported(server.url)["pi-damaged0-2604-7389-99ee-4f1bf4bfe862"].messages == 7


def lines(*texts: str) -> str:
    """A file of pi in which a user and a model take turns."""
    entries: list[dict[str, object]] = [{"type": "session", "version": 3, "id": "grows", "cwd": "/x"}]
    for number, text in enumerate(texts):
        message = {"role": ("user", "assistant")[number % 2], "content": [{"type": "text", "text": text}]}
        parent = str(number) if number else None
        entries.append({"type": "message", "id": str(number + 1), "parentId": parent, "message": message})
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def test_a_conversation_that_has_gone_on_is_continued(tmp_path: Path) -> None:
    """A question at the end gets no answer here; a conversation that went on on both sides stays, and is reported."""
    path = tmp_path / "x.jsonl"
    with serving("--engine", "scripted") as server, Client(server.url) as client:

        def texts() -> list[str]:
            return [message.content for message in client.call(api.read("pi-grows")).history]

        path.write_text(lines("one", "first", "two"))
        assert cfs_import(server.url, "pi", path) == (0, "cfs: 1 session imported\n")
        assert texts() == ["one", "first", "two"]
        assert client.call(api.read("pi-grows")).state == "idle"
        path.write_text(lines("one", "first", "two", "second", "three"))
        assert cfs_import(server.url, "pi", path) == (0, "cfs: 0 sessions imported; 1 continued\n")
        assert texts() == ["one", "first", "two", "second", "three"]
        assert cfs_import(server.url, "pi", path)[0] == 0
        client.call(api.say("pi-grows", NewMessage(content="here"), 10))
        assert cfs_import(server.url, "pi", path)[0] == 0, "it has all of the file"
        path.write_text(lines("one", "first", "two", "second", "three", "there"))
        before = texts()
        code, said = cfs_import(server.url, "pi", path)
        assert (code, "'pi-grows' was not imported" in said, "gone on here" in said) == (1, True, True), said
        assert texts() == before


def test_all_kinds_of_messages_continue_a_conversation(tmp_path: Path) -> None:
    """A reply without text, empty and failed results, a thought alone: each is stored as it is in the file."""
    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {}}
    more = [
        {"role": "assistant", "content": [call]},
        {"role": "toolResult", "toolCallId": "c", "toolName": "bash", "content": []},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": [{"type": "text", "text": " \n"}]},
    ]
    path = tmp_path / "x.jsonl"
    with serving("--engine", "scripted") as server:
        path.write_text(lines("one"))
        assert cfs_import(server.url, "pi", path)[0] == 0
        entries = [
            {"type": "message", "id": str(number), "parentId": str(number - 1), "message": message}
            for number, message in enumerate(more, 2)
        ]
        path.write_text(lines("one") + "".join(json.dumps(entry) + "\n" for entry in entries))
        assert cfs_import(server.url, "pi", path) == (0, "cfs: 0 sessions imported; 1 continued\n")
        assert cfs_import(server.url, "pi", path)[1] == "cfs: 0 sessions imported; 1 of 1 were left as they are\n"
        assert imported(server.url)["pi-grows"].messages == 4


@pytest.mark.parametrize(
    "text", ["", " ", " x \n", "User: hi", "\\User: x", "[CALL:f()]", "\x00\ud83d", "Assistant: a\nUser: b"]
)
def test_a_question_at_the_end_is_stored_as_it_is(text: str, server: Process, tmp_path: Path) -> None:
    """So that it is not taken for another one the next time."""
    path = tmp_path / "x.jsonl"
    path.write_text(lines("one", "first", text).replace("grows", f"odd-{len(text)}-{hash(text)}"))
    assert cfs_import(server.url, "pi", path)[0] == 0
    code, said = cfs_import(server.url, "pi", path)
    assert (code, said) == (0, "cfs: 0 sessions imported; 1 of 1 were left as they are\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--from"),
        (["--from", "codex", "--rename", "{folder}"], "--rename"),
        (["--from", "codex", "{folder}/nowhere"], "does not exist"),
        (["--from", "codex", "{folder}"], "no sessions of codex"),
        (["--from", "pi", str(RECORDED / "codex")], "no conversations of pi"),
        (["--from", "opencode", "{folder}/junk.db"], "no database of opencode"),
        (["--from", "emacs", "{folder}"], "emacs"),
    ],
)
def test_mistakes_are_said_in_one_line(arguments: list[str], words: str, server: Process, tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    run = cfs(server.url, "import", *(word.format(folder=tmp_path) for word in arguments))
    assert (run.returncode in (1, 2), words in run.stderr.decode()) == (True, True), run.stderr
    assert "Traceback" not in run.stderr.decode()


def test_progress_is_shown_on_a_terminal(server: Process, tmp_path: Path) -> None:
    with terminal(server.url, "import", "--from", "pi", str(recorded("pi", tmp_path))) as screen:
        code, shown = screen.end()
        assert (code, "reading" in shown) == (0, True)


CALL = ToolCall(id="c1", name="read", arguments={"path": "notes.txt"})
HISTORY = (
    Message(role="system", content="Rules."),
    Message(role="user", content="What is in notes.txt?"),
    Message(role="assistant", content="I look.", tool_calls=(CALL,), thinking="A file."),
    Message(role="tool", content="milk", tool_call_id="c1", name="read"),
    Message(role="assistant", content="Milk."),
)
LOSSES = {
    "claude-code": "1 thoughts, 1 system messages as such, settings (system, temperature), counts of tokens",
    "codex": "1 thoughts, 1 titles, settings (temperature), counts of tokens",
    "opencode": "1 system messages as such, settings (system, temperature), counts of tokens",
    "pi": "1 system messages as such, 1 sub-sessions as such, settings (system, temperature), counts of tokens",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_exported_is_imported_again(program: str, tmp_path: Path) -> None:
    """Files and commands are the same each time, nothing is overwritten unasked, and what is lost is said."""
    target = tmp_path / "out"
    settings = SettingsPatch(title="Notes", system="Be brief.", temperature=0.5)
    with serving("--engine", "scripted") as server, Client(server.url) as client:
        client.call(api.create("main", settings, messages=HISTORY, tokens=5))
        client.call(api.create("main/coder", messages=HISTORY[1:2] + HISTORY[4:]))
        command = ("export", "--as", program, "--folder", "/home/cfs/project", str(target), "main")
        code, output, said = ended(cfs(server.url, *command))
        assert code == 0, said
        assert said == (
            f"cfs: 2 sessions in {target}\ncfs: not exported, as {program} has no place for it: {LOSSES[program]}\n"
        )
        files = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
        run = cfs(server.url, *command)
        assert (run.returncode, "--force" in run.stderr.decode()) == (1, True)
        assert ended(cfs(server.url, *command, "--force")) == (0, output, said)
        assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == files
    folder = target / "projects" if program == "claude-code" else target
    sources = sorted(folder.glob("*.json")) if program == "opencode" else [folder]
    with serving("--engine", "scripted") as server:
        for source in sources:
            assert cfs_import(server.url, program, source)[0] == 0
        sessions = imported(server.url)
    history = next(one.history for one in sessions.values() if len(one.history) == len(HISTORY))
    assert [message.content for message in history] == [message.content for message in HISTORY]
    assert (history[2].tool_calls, history[3].tool_call_id) == ((CALL,), "c1")
    assert len(sessions) == 2


def test_a_working_folder_is_for_other_programs(server: Process, tmp_path: Path) -> None:
    run = cfs(server.url, "export", "--folder", "/x", str(tmp_path / "x.tar"), "--all")
    assert (run.returncode, "--as" in run.stderr.decode()) == (2, True)
