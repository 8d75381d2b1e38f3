"""Sessions and workspaces on a real mount of davfs2: programs that everybody has (W1, W2)."""

import contextlib
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from tests.fuse.support import GUARD_SECONDS, Mount, Stage, append, names, until
from tests.fuse.test_editors import OPENED, VIM, edit
from tests.webdav.davmount import mounting, reads, reason_to_skip

ONE = "User: one\nAssistant: one\n"


def shell(mount: Mount, script: str) -> str:
    """Run a script that must succeed."""
    done = mount.shell(f"set -e; {script}")
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def asked(stage: Stage, name: str, *messages: str) -> None:
    """Wait until just these messages have come: davfs2 sends them when the program has gone on already."""
    until(lambda: name in stage.sessions())
    until(lambda: len(stage.asked(name)) >= len(messages))
    assert stage.asked(name) == list(messages)


def refused(mount: Mount, before: list[str]) -> str:
    """Wait for a file that the server did not take; return what is in it."""
    until(lambda: len(names(mount / "lost+found")) > len(before))
    (new,) = set(names(mount / "lost+found")) - set(before)
    return (mount / "lost+found" / new).read_bytes().decode(errors="replace")


def test_echo_makes_a_session_and_adds_to_it(mount: Mount, stage: Stage, name: str) -> None:
    shell(mount, f"echo one > $M/{name}")
    reads(mount / name, ONE)
    shell(mount, f"echo two >> $M/{name}")
    reads(mount / name, ONE + "User: two\nAssistant: two\n")
    assert shell(mount, f"tail -n 1 $M/{name}; wc -c < $M/{name}") == "Assistant: two\n50\n"


def test_a_redirection_keeps_the_history(mount: Mount, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    until(lambda: (mount / name).exists())  # before that, davfs2 asks for a new file, and is refused
    shell(mount, f"echo two > $M/{name}")
    asked(stage, name, "one", "two")


def test_two_sessions_know_nothing_of_each_other(mount: Mount, stage: Stage, name: str) -> None:
    shell(mount, f"echo one > $M/{name}-a; echo two > $M/{name}-b")
    reads(mount / f"{name}-a", ONE)
    reads(mount / f"{name}-b", "User: two\nAssistant: two\n")
    shell(mount, f"rm $M/{name}-a; test ! -e $M/{name}-a")
    assert f"{name}-a" not in stage.sessions()
    assert f"{name}-b" in stage.sessions()


def test_a_listing_shows_what_is_there(mount: Mount, stage: Stage, name: str) -> None:
    """Also what came by another face, with its true size."""
    stage.say(name, "one")
    until(lambda: name in names(mount.path))
    assert shell(mount, f"stat -c '%s %F' $M/{name}") == "25 regular file\n"
    assert "User: one" in shell(mount, f"grep -h one $M/{name}")


def test_there_is_room(mount: Mount) -> None:
    """No quota is told, so `df` shows no full disk, for which programs would give up."""
    assert int(shell(mount, "df --output=avail $M | tail -n 1")) > 1 << 20


@pytest.mark.parametrize("held", [False, True])
def test_three_quick_appends_are_three_messages(mount: Mount, stage: Stage, name: str, *, held: bool) -> None:
    """Within one second, in which davfs2 only knows its own copy; whether replies come in between or not."""
    with stage.held() if held else contextlib.nullcontext():
        shell(mount, f"for i in 1 2 3; do echo m$i >> $M/{name}; done")
        until(lambda: name in stage.sessions())
    asked(stage, name, "m1", "m2", "m3")
    reads(mount / name, "".join(f"User: m{i}\nAssistant: m{i}\n" for i in (1, 2, 3)))


def test_an_append_across_an_arriving_reply_keeps_both(mount: Mount, stage: Stage, name: str) -> None:
    """The reply, and what somebody else says, come while the file is open."""
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    with stage.held():
        append(mount / name, "two\n")
        until(lambda: stage.state(name) == "generating")
        with (mount / name).open("a") as file:
            file.write("four\n")
            file.flush()
            stage.release()
            stage.say(name, "three")
    asked(stage, name, "one", "two", "three", "four")
    assert [content for role, content in stage.messages(name) if role == "assistant"] == ["one", "two", "three", "four"]


def test_reading_waits_for_the_reply(mount: Mount, stage: Stage, name: str) -> None:
    stage.make(name)
    until(lambda: (mount / name).exists())
    found: list[str] = []
    with stage.held():
        stage.say(name, "one", wait=False)
        reader = threading.Thread(target=lambda: found.append((mount / name).read_text()))
        reader.start()
        stage.until_awaited(name)
        assert reader.is_alive()
    reader.join(GUARD_SECONDS)
    assert found == [ONE]


def test_a_copy_is_a_conversation_of_its_own(mount: Mount, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    shell(mount, f"cp $M/{name} $M/{name}-copy; mv $M/{name} $M/{name}-new")
    reads(mount / f"{name}-copy", ONE)
    reads(mount / f"{name}-new", ONE)
    assert name not in stage.sessions()


def test_a_copied_file_that_ends_with_an_unanswered_message_is_answered(
    mount: Mount, stage: Stage, name: str, tmp_path: Path
) -> None:
    """It is a message, and gets its turn (S14)."""
    said = "User: hi\nAssistant: hello\nUser: and now?\n"
    (tmp_path / "file").write_text(said)
    shell(mount, f"cp {tmp_path}/file $M/{name}")
    until(lambda: name in stage.sessions() and stage.text(name) == f"{said}Assistant: and now?\n")


def test_any_name(mount: Mount, stage: Stage) -> None:
    shell(mount, "echo one > $M/对话; echo one > '$M/with blanks & #% signs'".replace("'$M/", "$M/'"))
    reads(mount / "对话", ONE)
    reads(mount / "with blanks & #% signs", ONE)


def test_what_is_not_done_is_refused(mount: Mount, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    assert mount.shell("mkdir $M/folder").returncode == 1
    stage.say(f"{name}-2", "two")
    until(lambda: (mount / f"{name}-2").exists())
    assert mount.shell(f"mv $M/{name} $M/{name}-2").returncode == 1
    assert stage.asked(f"{name}-2") == ["two"]


@pytest.mark.parametrize("options", [[], ["+set nowritebackup"], ["+set backup"]])
def test_vim_adds_a_line(mount: Mount, stage: Stage, name: str, options: list[str]) -> None:
    name = f"vim-{options[0][5:] if options else 'plain'}"
    keys = [(OPENED, b"Goquestion two\x1b"), (b"question two", b":wq\r")]
    assert edit(mount, stage, name, *VIM, *options, keys=keys) == 0
    asked(stage, name, "question one", "question two")


def test_nano_adds_a_line(mount: Mount, stage: Stage, name: str) -> None:
    keys = [(OPENED, b"\x1b/question two"), (b"question two", b"\x0f"), (b"File Name", b"\r"), (b"Wrote", b"\x18")]
    assert edit(mount, stage, name, "nano", "--ignorercfiles", keys=keys) == 0
    asked(stage, name, "question one", "question two")


def test_an_edit_of_a_past_that_went_on_is_in_lost_and_found(mount: Mount, stage: Stage, name: str) -> None:
    """Nothing of the session changes, and what the user wrote is not gone."""
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    before = names(mount / "lost+found")
    with (mount / name).open("w") as file:
        file.write("User: two\nAssistant: one\n")
        stage.say(name, "meanwhile")
    assert refused(mount, before) == "User: two\nAssistant: one\n"
    assert stage.asked(name) == ["one", "meanwhile"]


def test_an_edit_of_the_present_version_is_one(mount: Mount, stage: Stage, name: str) -> None:
    """davfs2 names the version that it has read (S14)."""
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    assert (mount / name).read_text() == ONE
    (mount / name).write_text("User: two\nAssistant: one\n")
    until(lambda: stage.messages(name)[0] == ("user", "two"))
    reads(mount / name, "User: two\nAssistant: one\n")


def test_what_is_no_text_is_in_lost_and_found(mount: Mount, stage: Stage, name: str) -> None:
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    before = names(mount / "lost+found")
    (mount / name).write_bytes(b"\xff\xfe\n")
    refused(mount, before)
    assert stage.asked(name) == ["one"]


@pytest.mark.skipif(reason_to_skip() is not None, reason=reason_to_skip() or "")
def test_a_workspace(stage: Stage, tmp_path: Path) -> None:
    """Real files and folders: made, copied, edited in place, moved, removed; the other faces show the same."""
    with httpx.Client(base_url=stage.url, trust_env=False, timeout=60) as client:
        assert client.request("MKCOL", "/dav/workspaces/main").status_code == 201
        with mounting(f"{stage.url}/dav/workspaces/main", tmp_path / "m") as here:
            shell(here, "mkdir -p $M/a/b; echo text > $M/a/b/note; cp -r $M/a $M/c; sed -i s/text/TEXT/ $M/c/b/note")
            until(lambda: client.get("/v1/files/workspaces/main/c/b/note").text == "TEXT\n")
            shell(here, "mv $M/c/b/note $M/c/moved; rm -r $M/a; head -c 3000000 /dev/urandom > $M/big")
            assert sorted(path.name for path in (here / "c").iterdir()) == ["b", "moved"]
            copy = subprocess.run(["cat", str(here / "big")], capture_output=True, check=True).stdout
            until(lambda: client.get("/v1/files/workspaces/main/big").content == copy)
            assert client.put("/v1/files/workspaces/main/from-rest", content=b"hello").status_code == 201
            reads(here / "from-rest", "hello")
            assert client.get("/v1/files/workspaces/main/a/b/note").status_code == 404
            shell(here, "echo old > $M/conflict")
            reads(here / "conflict", "old\n")
            with (here / "conflict").open("a") as file:
                file.write("mine\n")
                assert client.put("/v1/files/workspaces/main/conflict", content=b"theirs\n").status_code in (200, 204)
            assert refused(here, []) == "old\nmine\n"
            reads(here / "conflict", "theirs\n")


@pytest.mark.parametrize(
    "script",
    [
        "(cat $M/f; echo two) > $M/f.tmp; mv $M/f.tmp $M/f",
        "t=$(mktemp $M/f.XXXXXX); (cat $M/f; echo two) > $t; mv -f $t $M/f",
        "cd $M; python3 -c \"import os; t=open('f').read(); open('f.n','w').write(t+'two'); os.replace('f.n','f')\"",
        "sed -i '$a two' $M/f",
        "perl -i -pe '$_ .= qq(two\\n) if eof' $M/f",
    ],
    ids=["mv", "mktemp", "python", "sed", "perl"],
)
def test_programs_save_by_a_temporary_file(mount: Mount, stage: Stage, name: str, script: str) -> None:
    """What was added is the message; the temporary file is gone everywhere; later messages replace nothing."""
    stage.say(name, "one")
    until(lambda: (mount / name).exists())
    reads(mount / name, ONE)
    before = stage.sessions()
    shell(mount, script.replace("/f", f"/{name}").replace("'f", f"'{name}"))
    until(lambda: stage.sessions() == before)
    shell(mount, f"echo three >> $M/{name}")  # davfs2 adds it to its own copy, which lacks the reply
    asked(stage, name, "one", "two", "three")
    reads(mount / name, f"{ONE}User: two\nAssistant: two\nUser: three\nAssistant: three\n")
