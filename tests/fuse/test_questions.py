"""Questions of agents as files of the mount: listed, read and answered by the shell (A5, F5)."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cfs import api
from cfs.transports.http import Client
from cfs.wire import AgentFinish, Question, QuestionKind
from tests.client.test_cli_questions import held
from tests.documentation import block
from tests.fuse.support import Mount, Stage, mounting, names, until


def asked(stage: Stage, session: str, text: str = "make test", kind: QuestionKind = "command") -> Question:
    """Ask in a session whose turn is held, and wait until the mount shows it."""
    with Client(stage.url) as client:
        claim = held(client, session)
        question = client.call(api.ask(session, claim.claim, text, kind=kind, directory="/srv/demo"))
    if stage.mount is not None:
        path = stage.mount / ".questions" / session.replace("/", "%2F") / question.id
        until(path.exists)
    return question


def answer_to(stage: Stage, session: str, question: Question) -> str | None:
    with Client(stage.url) as client:
        return client.call(api.question(session, question.id)).answer


def test_a_question_is_listed_read_and_answered(mount: Mount, stage: Stage, name: str) -> None:
    question = asked(stage, name, "make\u202e\ntest")
    assert name in names(mount / ".questions")
    assert ".questions" not in names(mount.path), "it is hidden like the other control directories"
    assert names(mount / ".questions" / name) == [question.id]
    path = f'"$M/.questions/{name}/{question.id}"'
    shown = mount.shell(f"cat {path}").stdout
    assert shown == (
        f"{name} asks: may it run this command in /srv/demo?\n  | make<U+202E>\n  | test\n"
        "Answer with one word: allow, always, deny\n"
    )
    assert (mount / ".questions" / name / question.id).stat().st_size == len(shown.encode())
    done = mount.shell(f"echo allow > {path} && ls $M/.questions")
    assert (done.returncode, done.stderr) == (0, "")
    assert name not in done.stdout.split()
    assert answer_to(stage, name, question) == "allow"
    assert names(mount / ".questions" / name) == []


def test_sub_sessions_have_one_name(mount: Mount, stage: Stage, name: str) -> None:
    stage.make(name)
    question = asked(stage, f"{name}/coder", 'write_file {"path": "/etc/x"}', "write")
    assert f"{name}%2Fcoder" in names(mount / ".questions")
    path = f"$M/.questions/{name}%2Fcoder/{question.id}"
    assert f"{name}/coder asks: may it change this file in /srv/demo?" in mount.shell(f"cat {path}").stdout
    assert mount.shell(f"printf deny >> {path}").returncode == 0
    assert answer_to(stage, f"{name}/coder", question) == "deny"


def test_a_percent_sign_is_escaped(mount: Mount, stage: Stage) -> None:
    with Client(stage.url) as client:
        question = client.call(api.ask("100%2F", held(client, "100%2F").claim, "x"))
    until(lambda: "100%252F" in names(mount / ".questions"))
    assert mount.shell(f"echo deny > $M/.questions/100%252F/{question.id}").returncode == 0
    assert not (mount / ".questions" / "100%2f").exists()


@pytest.mark.parametrize("text", ["perhaps", "al", "allow it"], ids=["other", "part", "more"])
def test_a_wrong_answer_changes_nothing(mount: Mount, stage: Stage, name: str, text: str) -> None:
    """The shell hears of it from the write itself."""
    question = asked(stage, name)
    done = mount.shell(f"echo '{text}' > $M/.questions/{name}/{question.id}")
    assert done.returncode != 0
    assert "Invalid argument" in done.stderr
    assert answer_to(stage, name, question) is None


def test_the_end_of_the_file_ends_an_answer(mount: Mount, stage: Stage, name: str) -> None:
    """What is too short is refused when the file is closed."""
    question = asked(stage, name)
    descriptor = os.open(mount / ".questions" / name / question.id, os.O_WRONLY)
    os.write(descriptor, b"al")
    with pytest.raises(OSError, match="Invalid argument"):
        os.close(descriptor)
    descriptor = os.open(mount / ".questions" / name / question.id, os.O_WRONLY)
    os.write(descriptor, b"al")
    os.write(descriptor, b"ways")
    os.write(descriptor, b"\n")
    os.close(descriptor)
    assert answer_to(stage, name, question) == "always"


def test_a_question_has_one_answer(mount: Mount, stage: Stage, name: str) -> None:
    """A file that was opened before the answer is stale; afterwards it cannot be opened, and an unknown one neither."""
    question = asked(stage, name)
    path = mount / ".questions" / name / question.id
    early = os.open(path, os.O_WRONLY)
    with Client(stage.url) as client:
        client.call(api.answer(name, question.id, "deny"))
    with pytest.raises(OSError, match="Stale") as late:
        os.write(early, b"allow\n")
    assert late.value.errno == errno.ESTALE
    os.close(early)
    until(lambda: not path.exists())
    assert "Stale file handle" in mount.shell(f"echo allow > $M/.questions/{name}/{question.id}").stderr
    assert answer_to(stage, name, question) == "deny"
    unknown = mount.shell(f"echo allow > $M/.questions/{name}/{'0' * 32}; cat $M/.questions/none-of-{name}/x")
    assert unknown.stderr.count("No such file or directory") == 2


def test_answers_at_the_same_moment_have_one_effect(mount: Mount, stage: Stage, name: str) -> None:
    question = asked(stage, name)
    script = f"echo {{}} > $M/.questions/{name}/{question.id}"
    with ThreadPoolExecutor(6) as pool:
        codes = [(word, pool.submit(mount.shell, script.format(word))) for word in ("allow", "deny", "always") * 2]
    (first,) = [word for word, done in codes if done.result().returncode == 0]
    assert answer_to(stage, name, question) == first


def test_nothing_else_can_be_done_there(mount: Mount, stage: Stage, name: str) -> None:
    question = asked(stage, name)
    path = mount / ".questions" / name / question.id
    for act in (
        path.unlink,
        lambda: path.rename(mount / f"{name}-2"),
        (mount / ".questions" / "new").mkdir,
        (mount / ".questions").rmdir,
    ):
        with pytest.raises(PermissionError):
            act()
    with pytest.raises(OSError, match="No such file"):
        (mount / ".questions" / name / ".swp").touch()
    assert names(mount / ".questions" / name) == [question.id]
    (mount / ".question").write_text("a scratch file still")
    assert (mount / ".question").read_text() == "a scratch file still"
    (mount / ".question").unlink()


def test_a_mount_that_comes_later_shows_what_is_open(stage: Stage, mount: Mount, name: str, tmp_path: Path) -> None:
    """It has seen no event of the question, so it asks the server."""
    question = asked(stage, name)
    with mounting(stage.url, tmp_path / "cfs") as later:
        assert name in names(later / ".questions")
        assert names(later / ".questions" / name) == [question.id]
        assert later.shell(f"echo deny > $M/.questions/{name}/{question.id}").returncode == 0
    assert answer_to(stage, name, question) == "deny"


def test_the_end_of_the_turn_takes_its_questions_along(mount: Mount, stage: Stage, name: str) -> None:
    with Client(stage.url) as client:
        claim = held(client, name)
        question = client.call(api.ask(name, claim.claim, "make"))
        until((mount / ".questions" / name / question.id).exists)
        client.call(api.finish(name, claim.turn, AgentFinish(claim=claim.claim, reply="done")))
    until(lambda: name not in names(mount / ".questions"))
    assert not (mount / ".questions" / name / question.id).exists()


def test_the_commands_of_the_page(mount: Mount, stage: Stage, name: str) -> None:
    question = asked(stage, name)
    commands = block("docs/fuse.md", "questions").replace("~/cfs", '"$M"').replace("/main", f"/{name}")
    done = mount.shell(f"set -e; {commands}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{question.id}\n{name} asks: may it run this command in /srv/demo?\n")
    assert answer_to(stage, name, question) == "allow"
