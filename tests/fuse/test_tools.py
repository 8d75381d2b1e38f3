"""Common programs on a mount: they work, or they are refused and nothing is lost (F1, F2)."""

import shutil
from dataclasses import dataclass, field

import pytest

from tests.fuse.support import GUARD_SECONDS, Mount, Stage, append, names, until

OLD = [("user", "old"), ("assistant", "old")]


@dataclass(frozen=True)
class Case:
    """A script in which $M/f is a session that says "old", and what it does."""

    script: str
    asked: list[str] = field(default_factory=list)
    output: str | None = None
    fails: bool = False
    needs: str = "bash"


CASES = {
    "echo >": Case("echo new > $M/f", ["new"]),
    "echo >>": Case("echo new >> $M/f", ["new"]),
    "echo without a newline": Case("echo -n new >> $M/f", ["new"]),
    "several lines": Case("echo $'a\\nb' >> $M/f", ["a\nb"]),
    "printf": Case("printf '%s\\n' new >> $M/f", ["new"]),
    "printf of nothing": Case("printf '' > $M/f"),
    ": >": Case(": > $M/f"),
    "here document": Case("cat > $M/f <<END\na\nb\nEND", ["a\nb"]),
    "cat": Case("cat $M/f", output="User: old\nAssistant: old\n"),
    "cat of one megabyte": Case("head -c 1000000 /dev/zero | tr '\\0' x | cat >> $M/f", ["x" * 1_000_000]),
    "cat in a shell that goes on": Case("exec 3>>$M/f; echo a >&3; echo b >&3; exec 3>&-", ["a", "b"]),
    "tee": Case("echo new | tee -a $M/f", ["new"], "new\n"),
    "tee over it": Case("echo new | tee $M/f > /dev/null", ["new"]),
    "dd": Case("echo new | dd of=$M/f status=none", ["new"]),
    "dd to somewhere": Case("echo new | dd of=$M/f bs=1 seek=3 conv=notrunc status=none", ["new"]),
    "dd in small pieces": Case("printf 'a 你 b' | dd of=$M/f bs=1 status=none", ["a 你 b"]),
    "dd out": Case("dd if=$M/f bs=5 skip=1 count=1 status=none", output=" old\n"),
    "cp out": Case("cp $M/f $T/out; cat $T/out", output="User: old\nAssistant: old\n"),
    "cp in": Case("echo question > $T/in; cp $T/in $M/f", ["question"]),
    "cp onto itself, with a line more": Case("cp $M/f $T/c; echo more >> $T/c; cp $T/c $M/f", ["more"]),
    "cp of an edit": Case("sed s/old/new/ $M/f > $T/c; cp $T/c $M/f", fails=True),
    "cp to a new session": Case("cp $M/f $M/g; cat $M/g; rm $M/g", output="User: old\nAssistant: old\n"),
    "cp -p": Case("cp -p $M/f $M/g; cmp $M/f $M/g; rm $M/g", output=""),
    "mv there and back": Case("mv $M/f $M/g; cat $M/g; mv $M/g $M/f", output="User: old\nAssistant: old\n"),
    "mv in": Case(
        "echo question > $T/in; mv $T/in $M/g; cat $M/g; rm $M/g", output="User: question\nAssistant: question\n"
    ),
    "mv -n": Case("touch $M/g; mv -n $M/g $M/f; rm $M/g; cat $M/f", output="User: old\nAssistant: old\n"),
    "rm": Case("rm $M/f; test -e $M/f || echo gone; touch $M/f", output="gone\n"),
    "touch": Case("touch $M/f; touch -d 2001-01-01 $M/f"),
    "truncate": Case("truncate -s 0 $M/f; wc -c < $M/f", output="25\n"),
    "chmod and chown": Case("chmod 600 $M/f && chown 1:1 $M/f"),
    "wc -c": Case("wc -c < $M/f", output="25\n"),
    "wc -l": Case("wc -l < $M/f", output="2\n"),
    "stat": Case("stat -c '%s %F' $M/f", output="25 regular file\n"),
    "head and tail": Case("head -n 1 $M/f; tail -n 1 $M/f; tail -c 4 $M/f", output="User: old\nAssistant: old\nold\n"),
    "tac": Case("tac $M/f", output="Assistant: old\nUser: old\n"),
    "grep": Case("grep -c old $M/f", output="2\n"),
    "grep -r": Case("grep -rl 'Assistant: old' $M --include=f | wc -l", output="1\n"),
    "find": Case("find $M -name f -type f | wc -l; find $M -type d | wc -l", output="1\n1\n"),
    "ls": Case("ls -la $M | awk '$9 == \"f\" {print $1, $5}'", output="-rw-r--r-- 25\n"),
    "diff": Case("cp $M/f $T/x; diff $T/x $M/f && echo same", output="same\n"),
    "cmp": Case("printf 'User: old\\nAssistant: old\\n' | cmp - $M/f"),
    "ln": Case("ln -s x $M/l || ln $M/f $M/l", fails=True),
    "mkdir": Case("mkdir $M/d", fails=True),
    "sed": Case("sed -n 1p $M/f", output="User: old\n"),
    "sed -i": Case("sed -i s/old/new/ $M/f", fails=True),
    "sed -i that adds": Case("sed -i '$a more' $M/f", ["more"]),
    "sed -i that changes nothing": Case("sed -i s/xyz/abc/ $M/f"),
    "sort in place": Case("sort -o $M/f $M/f", fails=True),
    "perl": Case("perl -ne 'print uc if /User/' $M/f", output="USER: OLD\n"),
    "two shells": Case(
        "(for i in 1 2 3; do echo a$i >> $M/f; done) & (echo b >> $M/f); wait; cat $M/f | grep -c User", output="5\n"
    ),
    "flock": Case("flock $M/f echo locked", output="locked\n"),
    "rsync in": Case(
        "echo question > $T/g; rsync $T/g $M/g; cat $M/g; rm $M/g",
        output="User: question\nAssistant: question\n",
        needs="rsync",
    ),
    "rsync out": Case("rsync -a $M/f $T/f; cat $T/f", output="User: old\nAssistant: old\n", needs="rsync"),
    "rsync with a line more": Case("cp $M/f $T/f; echo more >> $T/f; rsync $T/f $M/f", ["more"], needs="rsync"),
    "rsync of an edit": Case("sed s/old/newer/ $M/f > $T/f; rsync $T/f $M/f", fails=True, needs="rsync"),
    "rsync --inplace": Case("cp $M/f $T/f; echo more >> $T/f; rsync --inplace -W $T/f $M/f", ["more"], needs="rsync"),
    "tar": Case("tar -C $M -cf - f | tar -xOf -", output="User: old\nAssistant: old\n", needs="tar"),
    "getfattr": Case(
        "getfattr -d --absolute-names $M/f | grep -c user.cfs.temperature", output="1\n", needs="getfattr"
    ),
    "setfattr": Case(
        "setfattr -n user.cfs.seed -v 7 $M/f; getfattr -n user.cfs.seed --only-values $M/f",
        output="7",
        needs="setfattr",
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_tool(mount: Mount, stage: Stage, tmp_path: object, title: str) -> None:
    """The script does what it says; what it leaves is the old history and the messages that it sent."""
    case = CASES[title]
    if shutil.which(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    stage.client.delete("/v1/sessions/f")
    stage.make("f", "User: old\nAssistant: old\n")
    until(lambda: (mount / "f").exists() and (mount / "f").stat().st_size == 25)
    done = mount.shell(f"T={tmp_path}; {case.script}")
    assert (done.returncode != 0) == case.fails, done.stderr
    if case.output is not None:
        assert done.stdout == case.output, done.stderr
    said = stage.messages("f")
    assert said[:2] == ([] if title == "rm" else OLD)
    if title != "two shells":
        assert [content for role, content in said[2:] if role == "user"] == case.asked
    assert not [found for found in names(mount.path) if found.startswith((".", "sed"))]


def test_tail_follows(mount: Mount, stage: Stage, name: str) -> None:
    """`tail -f` shows what is added, by whomever."""
    stage.say(name, "one")
    until((mount / name).exists)
    process = mount.start("tail", "-n", "+1", "-f", "-s", "0.05", str(mount / name))
    assert process.stdout is not None
    assert process.stdout.readline() == "User: one\n"
    assert process.stdout.readline() == "Assistant: one\n"
    stage.say(name, "two")
    assert process.stdout.readline() == "User: two\n"
    append(mount / name, "three")
    assert [process.stdout.readline() for _ in range(3)] == ["Assistant: two\n", "User: three\n", "Assistant: three\n"]
    process.terminate()
    process.wait(GUARD_SECONDS)
