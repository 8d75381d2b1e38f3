"""`cfs export` and `cfs import`: all sessions as files that can be read without CFS, and back (C10)."""

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import Message, NewMessage, Settings, SettingsPatch, ToolCall
from tests.client.harness import HttpHarness
from tests.client.terminal import cfs, ended, terminal
from tests.pacing import python_path
from tests.server.support import serving

ASKED = Message(role="user", content="What is in notes.txt?")
CALL = Message(
    role="assistant",
    content="I look.",
    tool_calls=(ToolCall(id="c1", name="read_file", arguments={"path": "notes.txt", "lines": [1, 2.5, None]}),),
    thinking="A file.",
)
RESULT = Message(role="tool", content="User: not a user\nmilk", tool_call_id="c1", name="read_file")
ANSWER = Message(role="assistant", content="Milk.")
HISTORY = (ASKED, CALL, RESULT, ANSWER)


def fill(url: str) -> None:
    """Make a tree, a session with an odd name, and one with settings of its own."""
    with Client(url) as client:
        client.call(api.create("main", SettingsPatch(system="Be brief.", keep="90d"), messages=HISTORY))
        client.call(api.create("main/coder/tester", messages=HISTORY[:2]))
        client.call(api.create("n\u00e4me x.txt", SettingsPatch(temperature=0), "User: hi\nAssistant: \u4f60\u597d\n"))


def contents(url: str) -> dict[str, tuple[object, ...]]:
    """What a server knows of each session besides times and versions."""
    with Client(url) as client:

        def below(prefix: str) -> dict[str, tuple[object, ...]]:
            found: dict[str, tuple[object, ...]] = {}
            for info in client.call(api.list_sessions(prefix)).sessions:
                read = client.call(api.read(info.id))
                found[read.id] = (read.history, read.settings, read.queue)
                found |= below(f"{read.id}/")
            return found

        return below("")


def test_another_server_has_the_same_sessions_after_an_import(http_harness: HttpHarness, tmp_path: Path) -> None:
    fill(http_harness.url)
    for name in ("a.tar", "a.tar.gz"):
        file = tmp_path / name
        assert ended(cfs(http_harness.url, "export", "--all", str(file))) == (0, "", f"cfs: 4 sessions in {file}\n")
        assert file.stat().st_mode & 0o777 == 0o600, "conversations are nobody else's business"
        with serving("--engine", "scripted") as other:
            assert ended(cfs(other.url, "import", str(file))) == (0, "", "cfs: 4 sessions imported\n")
            assert contents(other.url) == contents(http_harness.url)
            again = ended(cfs(other.url, "import", str(file)))
            assert again == (0, "", "cfs: 0 sessions imported; 4 of 4 were there already\n")
            assert contents(other.url) == contents(http_harness.url)


def test_an_export_can_be_read_without_cfs(http_harness: HttpHarness, tmp_path: Path) -> None:
    fill(http_harness.url)
    assert cfs(http_harness.url, "export", str(tmp_path / "x.tar"), "main").returncode == 0
    subprocess.run(["tar", "-xf", tmp_path / "x.tar", "-C", tmp_path], check=True)
    folder = tmp_path / "cfs-export"
    assert "transcript.txt" in (folder / "README.txt").read_text()
    assert (folder / "sessions/main/transcript.txt").read_text() == (
        "User: What is in notes.txt?\nAssistant: I look.\n[CALL:read_file(path='notes.txt', lines=[1, 2.5, None])]\n"
        "Tool: User: not a user\nmilk\nAssistant: Milk.\n"
    )
    session = json.loads((folder / "sessions/main/session.json").read_text())
    assert session["history"][1]["thinking"] == "A file."
    assert session["settings"]["system"] == "Be brief."
    (main,) = json.loads((folder / "index.json").read_text())["sessions"]
    assert main["sub_sessions"][0]["sub_sessions"][0]["id"] == "main/coder/tester"
    assert (folder / "sessions/main/coder/tester/session.json").is_file()


def test_what_waits_is_exported_and_goes_on_where_it_is_imported(http_harness: HttpHarness, tmp_path: Path) -> None:
    file = str(tmp_path / "x.tar")
    http_harness.hold()
    for text in ("one", "two"):
        http_harness.write("busy", text)
    assert cfs(http_harness.url, "export", file, "busy").returncode == 0
    with serving("--engine", "scripted") as other:
        assert cfs(other.url, "import", file).returncode == 0
        code, shown, _ = ended(cfs(other.url, "cat", "busy"))
        assert (code, shown) == (0, "User: one\nAssistant: one\nUser: two\nAssistant: two\n")
        assert ended(cfs(other.url, "import", file))[0] == 0, "a conversation that has gone on is the same one"


def test_another_conversation_of_the_same_name_is_never_touched(http_harness: HttpHarness, tmp_path: Path) -> None:
    fill(http_harness.url)
    file = str(tmp_path / "x.tar")
    assert cfs(http_harness.url, "export", "--all", file).returncode == 0
    with serving("--engine", "scripted") as other, Client(other.url) as client:
        client.call(api.say("main", NewMessage(content="mine"), 10))
        before = contents(other.url)
        code, _, errors = ended(cfs(other.url, "import", file))
        assert (code, errors.count("\n"), "'main'" in errors, "--rename" in errors) == (1, 1, True, True)
        assert contents(other.url) == before, "all or nothing"
        code, _, errors = ended(cfs(other.url, "import", file, "--rename"))
        assert (code, errors) == (0, "cfs: 'main' was imported as 'main-2'\ncfs: 4 sessions imported\n")
        assert cfs(other.url, "import", file, "--rename").returncode == 0
        after = contents(other.url)
        exported = contents(http_harness.url)
        assert after.keys() == {"main", "main-2", "main-2/coder", "main-2/coder/tester", "n\u00e4me x.txt"}
        assert after["main"] == before["main"]
        assert after["main-2/coder/tester"] == exported["main/coder/tester"]


def test_a_file_is_not_overwritten_unless_forced(http_harness: HttpHarness, tmp_path: Path) -> None:
    fill(http_harness.url)
    file = tmp_path / "x.tar"
    file.write_bytes(b"precious")
    code, _, errors = ended(cfs(http_harness.url, "export", str(file), "--all"))
    assert (code, "--force" in errors, file.read_bytes()) == (1, True, b"precious")
    code, _, errors = ended(cfs(http_harness.url, "export", str(file), "nobody", "--force"))
    assert (code, "nobody" in errors, file.read_bytes()) == (1, True, b"precious")
    assert cfs(http_harness.url, "export", str(file), "--all", "--force").returncode == 0
    assert tarfile.is_tarfile(file)
    assert list(tmp_path.iterdir()) == [file], "no half of a file is left"


def test_sessions_are_named_or_all_are_meant(http_harness: HttpHarness, tmp_path: Path) -> None:
    for arguments in ([], ["--all", "main"]):
        code, _, errors = ended(cfs(http_harness.url, "export", str(tmp_path / "x.tar"), *arguments))
        assert (code, "--all" in errors) == (2, True)


@pytest.mark.parametrize("kind", ["missing", "junk", "tar", "cut", "newer", "odd"])
def test_what_is_no_export_is_refused_in_one_line(http_harness: HttpHarness, tmp_path: Path, kind: str) -> None:
    file, inside = tmp_path / "x.tar", tmp_path / "session.json"
    if kind == "junk":
        file.write_bytes(b"junk" * 1000)
    elif kind == "cut":
        fill(http_harness.url)
        assert cfs(http_harness.url, "export", str(file), "--all").returncode == 0
        file.write_bytes(file.read_bytes()[:5000])
        http_harness.renew()
    elif kind != "missing":
        inside.write_text({"newer": '{"format": 2}', "odd": '{"format": 1, "id": 5}'}.get(kind, ""))
        with tarfile.open(file, "w") as archive:
            archive.add(inside, "other" if kind == "tar" else "cfs-export/sessions/a/session.json")
    code, _, errors = ended(cfs(http_harness.url, "import", str(file)))
    assert (code, errors.count("\n"), str(file) in errors) == (1, 1, True), errors
    assert contents(http_harness.url) == {}


def write_export(file: Path, sessions: Iterable[dict[str, object]]) -> None:
    """Write an export as `cfs export` does."""
    with tarfile.open(file, "w") as archive:

        def add(name: str, value: object) -> None:
            member, data = tarfile.TarInfo(f"cfs-export/{name}"), json.dumps(value).encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

        for session in sessions:
            add(f"sessions/{session['id']}/session.json", {"format": 1, "settings": Settings().model_dump()} | session)
        add("index.json", {"format": 1})


def test_sessions_are_imported_in_batches_with_their_tokens(http_harness: HttpHarness, tmp_path: Path) -> None:
    """Many sessions share a request and a commit of the journal.

    The server's clock nearly stands still: else a slow machine would commit more often, each 50 ms.
    """
    file = tmp_path / "x.tar"
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    write_export(file, ({"id": f"s{n}", "history": history, "tokens": n} for n in range(2_000)))
    slow = {"PYTHONPATH": python_path(), "PACE_CLOCK": "0.01"}
    with serving("--engine", "scripted", "--store", str(tmp_path / "sessions.db"), **slow) as other:
        assert ended(cfs(other.url, "import", str(file))) == (0, "", "cfs: 2000 sessions imported\n")
        with Client(other.url) as client:
            assert client.call(api.read("s1234")).tokens == 1_234
            counted = client.call(api.Call(api.Request("GET", "/metrics"), lambda answer: answer.body.decode()))
        figures = dict(re.findall(r"^cfs_store_(commits|records)_total (\S+)$", counted, re.MULTILINE))
        assert (float(figures["records"]) >= 2_000, float(figures["commits"]) < 100) == (True, True), figures
        again = ended(cfs(other.url, "import", str(file)))
        assert again == (0, "", "cfs: 0 sessions imported; 2000 of 2000 were there already\n")


def test_a_session_that_cannot_be_imported_is_reported_and_the_others_are(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    write_export(file, ({"id": name, "history": history * n} for name, n in (("a", 1), ("long", 9), ("b", 1))))
    with serving("--engine", "scripted", "--max-messages", "4") as server:
        code, output, errors = ended(cfs(server.url, "import", str(file)))
        assert (code, output) == (1, "")
        reported, summary = errors.splitlines()
        assert reported.startswith("cfs: 'long' was not imported: ")
        assert summary == "cfs: 2 sessions imported; 1 not imported"
        assert contents(server.url).keys() == {"a", "b"}


def test_progress_is_shown_on_a_terminal_only(http_harness: HttpHarness, tmp_path: Path) -> None:
    fill(http_harness.url)
    file = tmp_path / "x.tar"
    with terminal(http_harness.url, "export", "--all", str(file)) as screen:
        code, shown = screen.end()
        assert (code, "exporting" in shown) == (0, True)
    with terminal(http_harness.url, "import", str(file)) as screen:
        code, shown = screen.end()
        assert (code, "checking" in shown, "0 sessions imported" in shown) == (0, True, True)
