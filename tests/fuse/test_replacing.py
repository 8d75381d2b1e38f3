"""Programs save a session by a temporary file that they rename over it: nothing answers the temporary file (F1, F2).

No name tells such a file from a new session, so the names here are on no list of the mount.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fuse.support import Mount, Stage, append, mounting, names, until
from tests.fuse.test_editors import Screen

OLD = "User: old\nAssistant: old\n"


@pytest.fixture(scope="module")
def patient(stage: Stage, tmp_path_factory: pytest.TempPathFactory, mount: Mount) -> Iterator[Mount]:
    """A mount that waits for a rename as long as it can, so that a slow machine makes no difference."""
    with mounting(stage.url, tmp_path_factory.mktemp("patient") / "cfs", "--rename-wait", "10") as here:
        yield here


@pytest.fixture(scope="module")
def hasty(stage: Stage, tmp_path_factory: pytest.TempPathFactory, mount: Mount) -> Iterator[Mount]:
    """A mount that waits for no rename: the turn of a temporary file begins before it is renamed."""
    with mounting(stage.url, tmp_path_factory.mktemp("hasty") / "cfs", "--rename-wait", "0") as here:
        yield here


@dataclass(frozen=True)
class Case:
    """A script in which $M/f is a session that says "old", and what it does to it."""

    script: str
    asked: list[str] = field(default_factory=list)
    fails: bool = False
    needs: str = "bash"


PYTHON = "import os,sys,tempfile; os.chdir(os.environ['M']); text = open('f').read();"
CASES = {
    "cmd > f.tmp && mv": Case("(cat $M/f; echo more) > $M/f.tmp && mv $M/f.tmp $M/f", ["more"]),
    "f.tmp with a prefix": Case("(cat $M/f; echo 'User: more') > $M/f.tmp && mv $M/f.tmp $M/f", ["more"]),
    "foreign text": Case("echo 'a question' > $M/f.new && mv $M/f.new $M/f", ["a question"]),
    "the same text": Case("cat $M/f > $M/f.new && mv $M/f.new $M/f"),
    "an edit": Case("sed s/old/new/ $M/f > $M/f.new && mv $M/f.new $M/f", fails=True),
    "test -s": Case("(cat $M/f; echo more) > $M/f.tmp; test -s $M/f.tmp && mv $M/f.tmp $M/f", ["more"]),
    "mktemp": Case("t=$(mktemp $M/f.XXXXXX) && (cat $M/f; echo more) > $t && chmod 644 $t && mv -f $t $M/f", ["more"]),
    "JetBrains": Case(
        "cp -p $M/f $T/c; echo more >> $T/c; cat $T/c > $M/f___jb_tmp___ && mv $M/f___jb_tmp___ $M/f", ["more"]
    ),
    "two redirections": Case("cat $M/f > $M/f.1; echo more >> $M/f.1; mv $M/f.1 $M/f", ["more"]),
    "sed -i": Case("sed -i '$a more' $M/f", ["more"], needs="sed"),
    "sed -i of an edit": Case("sed -i s/old/new/ $M/f", fails=True, needs="sed"),
    "perl -i": Case("perl -i -pe '$_ .= \"more\\n\" if eof' $M/f", ["more"], needs="perl"),
    "perl -i of an edit": Case("perl -i -pe 's/old/new/' $M/f", fails=True, needs="perl"),
    "perl with a module": Case(
        'perl -MFile::Temp -e \'open F,"<$ARGV[0]"; @l=<F>; $t=File::Temp->new(DIR=>$ENV{M},TEMPLATE=>"fXXXXXX",'
        'UNLINK=>0); print $t @l,"more\\n"; close $t; rename "$t",$ARGV[0] or die\' $M/f',
        ["more"],
        needs="perl",
    ),
    "python os.replace": Case(
        f"python3 -c \"{PYTHON} open('f.tmp','w').write(text+'more\\n'); os.replace('f.tmp','f')\"",
        ["more"],
        needs="python3",
    ),
    "python tempfile": Case(
        f"python3 -c \"{PYTHON} h,t=tempfile.mkstemp(dir='.'); os.write(h,(text+'more\\n').encode()); os.fsync(h);"
        " os.close(h); os.replace(t,'f')\"",
        ["more"],
        needs="python3",
    ),
    "rsync": Case("cp $M/f $T/f; echo more >> $T/f; rsync $T/f $M/f", ["more"], needs="rsync"),
    "rsync --inplace": Case("cp $M/f $T/f; echo more >> $T/f; rsync --inplace -W $T/f $M/f", ["more"], needs="rsync"),
    "rsync --temp-dir": Case("cp $M/f $T/f; echo more >> $T/f; rsync --temp-dir=$M $T/f $M/f", ["more"], needs="rsync"),
    "patch": Case(
        "cp $M/f $T/f; (cat $T/f; echo more) > $T/g; diff -u $T/f $T/g > $T/p; patch --no-backup-if-mismatch $M/f $T/p",
        ["more"],
        needs="patch",
    ),
    "git-like": Case(
        "(set -C; (cat $M/f; echo more) > $M/f.lock) && mv $M/f.lock $M/f && ! test -e $M/f.lock", ["more"]
    ),
    "emacs-like": Case("mv $M/f $M/f~ || (cat $M/f; echo more) > $M/f#tmp && mv $M/f#tmp $M/f", ["more"]),
    "by way of another name": Case("(cat $M/f; echo more) > $M/f.1; mv $M/f.1 $M/f.2; mv $M/f.2 $M/f", ["more"]),
}


@pytest.mark.parametrize("title", CASES)
@pytest.mark.parametrize("waits", ["patient", "hasty"])
def test_program(request: pytest.FixtureRequest, stage: Stage, tmp_path: Path, title: str, waits: str) -> None:
    """What was added is the message; an edit is refused; the temporary file is no session, and has no reply."""
    here: Mount = request.getfixturevalue(waits)
    case = CASES[title]
    if shutil.which(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    stage.client.delete("/v1/sessions/f")
    stage.make("f", OLD)
    until(lambda: (here / "f").exists() and (here / "f").stat().st_size == len(OLD))
    before, requests = stage.sessions(), len(stage.engine.requests)
    try:
        done = here.shell(f"T={tmp_path}; {case.script}")
        assert (done.returncode != 0) == case.fails, done.stderr
        said = stage.messages("f")
        assert said[:2] == [("user", "old"), ("assistant", "old")]
        assert [content for role, content in said[2:] if role == "user"] == case.asked
        assert stage.sessions() == before
        if waits == "patient":
            answered = [asked.account for asked in stage.engine.requests[requests:]]
            assert answered == ["f"] * len(case.asked), "only the session itself is answered"
        left = [name for name in names(here.path) if name not in before]
        assert bool(left) <= case.fails, "a refused file may stay, as on a disk"
    finally:
        for name in set(names(here.path)) - before:
            (here / name).unlink()


def test_a_turn_that_has_begun_is_taken_back(hasty: Mount, stage: Stage, name: str) -> None:
    """The model is in the middle of a reply to the temporary file: the reply ends with it."""
    stage.make(name, OLD)
    until((hasty / name).exists)
    with stage.held():
        (hasty / f"{name}.tmp").write_text(f"{OLD}User: more\n")
        until(lambda: stage.engine.requests and stage.engine.requests[-1].account == f"{name}.tmp")
        (hasty / f"{name}.tmp").rename(hasty / name)
        assert f"{name}.tmp" not in stage.sessions()
    assert stage.asked(name) == ["old", "more"]


def test_a_new_name_is_answered(mount: Mount, stage: Stage, name: str) -> None:
    """`echo hi > new` without a reader: the reply comes by itself, once."""
    (mount / name).write_text("hi there\n")
    assert (mount / name).stat().st_size == len("User: hi there\n")
    until(lambda: stage.state(name) == "idle")
    assert stage.messages(name) == [("user", "hi there"), ("assistant", "hi there")]


def test_a_reader_does_not_wait_for_a_rename(patient: Mount, stage: Stage, name: str) -> None:
    """`cat` lets the turn begin at once: its end does not need the ten seconds of this mount."""
    (patient / name).write_text("hi\n")
    assert stage.server.store.get(name).queue[0].delayed
    assert (patient / name).read_text() == "User: hi\nAssistant: hi\n"
    (patient / f"{name}-2").write_text("hi\n")
    assert (patient / ".live" / f"{name}-2").read_text() == "hi"


def test_a_new_name_that_is_renamed_is_answered(patient: Mount, stage: Stage, name: str) -> None:
    """The first save of a new file: there is no session to replace, so it gets the name and its reply."""
    (patient / f"{name}.tmp").write_text("hi\n")
    (patient / f"{name}.tmp").rename(patient / name)
    assert (patient / name).read_text() == "User: hi\nAssistant: hi\n"
    assert f"{name}.tmp" not in stage.sessions()


def test_a_refused_temporary_file_keeps_its_text(patient: Mount, stage: Stage, name: str) -> None:
    """EPERM as on an edit in place; the text stays in a file of the mount, which can be tried again or removed."""
    stage.make(name, OLD)
    until((patient / name).exists)
    edited = OLD.replace("User: old", "User: new")
    (patient / f"{name}.tmp").write_text(edited)
    with pytest.raises(PermissionError):
        (patient / f"{name}.tmp").rename(patient / name)
    assert f"{name}.tmp" not in stage.sessions()
    assert (patient / f"{name}.tmp").read_text() == edited
    (patient / f"{name}.tmp").write_text(f"{OLD}more\n")
    (patient / f"{name}.tmp").rename(patient / name)
    assert stage.asked(name) == ["old", "more"]


def test_a_session_that_others_use_is_no_temporary_file(mount: Mount, stage: Stage, name: str) -> None:
    """A message that came over HTTP is not thrown away: the rename is refused as for any other session."""
    stage.make(name, OLD)
    until((mount / name).exists)
    (mount / f"{name}.tmp").write_text("hi\n")
    stage.say(f"{name}.tmp", "from elsewhere")
    until(lambda: (mount / f"{name}.tmp").stat().st_size == len(stage.text(f"{name}.tmp").encode()))
    with pytest.raises(PermissionError):
        (mount / f"{name}.tmp").rename(mount / name)
    assert stage.asked(f"{name}.tmp") == ["hi", "from elsewhere"]
    assert stage.asked(name) == ["old"]


def test_a_conversation_that_was_read_is_no_temporary_file(patient: Mount, stage: Stage, name: str) -> None:
    """Whoever has read its reply has a conversation, which `mv` does not throw away."""
    stage.make(name, OLD)
    (patient / f"{name}-new").write_text("hi\n")
    assert (patient / f"{name}-new").read_text() == "User: hi\nAssistant: hi\n"
    with pytest.raises(PermissionError):
        (patient / f"{name}-new").rename(patient / name)
    assert stage.asked(f"{name}-new") == ["hi"]


def test_the_message_of_a_dead_mount_is_answered(stage: Stage, tmp_path: Path, mount: Mount, name: str) -> None:
    """The mount dies between the close and the rename: the server has the message, and answers it."""
    with mounting(stage.url, tmp_path / "cfs", "--rename-wait", "1") as here:
        (here / name).write_text("hi\n")
        here.process.kill()
        here.process.wait()
    until(lambda: stage.state(name) == "idle")
    assert stage.messages(name) == [("user", "hi"), ("assistant", "hi")]


def test_a_second_message_does_not_overtake(patient: Mount, stage: Stage, name: str) -> None:
    """It waits behind the first one, in the order of the queue (S4)."""
    append(patient / name, "one\n")
    append(patient / name, "two\n")
    assert stage.asked(name) == ["one", "two"]


def test_all_of_a_file_that_is_synchronised_counts(patient: Mount, stage: Stage, name: str) -> None:
    """`fsync` in the middle commits a message; the file is still what was written before and after it."""
    stage.make(name, OLD)
    until((patient / name).exists)
    descriptor = os.open(patient / f"{name}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, OLD.encode())
    os.fsync(descriptor)
    os.write(descriptor, b"more\n")
    os.close(descriptor)
    (patient / f"{name}.tmp").rename(patient / name)
    assert stage.asked(name) == ["old", "more"]
    assert f"{name}.tmp" not in stage.sessions()


def test_vim_saves_by_a_rename(patient: Mount, stage: Stage, name: str) -> None:
    """With `backupcopy=no` vim wants to rename the old file away; whatever it does, the added line is the message."""
    if shutil.which("vim") is None:
        pytest.skip("vim is not installed")
    stage.say(name, "question one")
    until((patient / name).exists)
    screen = Screen("vim", "-u", "NONE", "-N", "+set backupcopy=no", str(patient / name))
    try:
        screen.wait_for(b"Assistant: question one")
        screen.type(b"Goquestion two\x1b")
        screen.wait_for(b"question two")
        screen.type(b":wq\r")
        assert screen.ended() == 0
    finally:
        screen.close()
    assert stage.asked(name) == ["question one", "question two"]
    assert [found for found in names(patient.path) if name in found and found != name] == []
