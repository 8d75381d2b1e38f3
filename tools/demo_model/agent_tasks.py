"""Tasks for agents with files: what is asked, and what an agent does, step by step, after it has seen each result.

A task maker is a function of a `Cast` and a `Desk`; `@work(weight)` enters it. It returns a `Job`: the wording, and the
steps as a generator that yields a call or the answer, and is sent the result of each call.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import chain
from string import ascii_lowercase, digits
from typing import TypeAlias

from demo_model import agent_phrases as say
from demo_model import tool_phrases, words
from demo_model.chat_format import ToolCall
from demo_model.scenes import Cast

Steps: TypeAlias = Generator[ToolCall | str, str, str]
"""Yields calls, is sent their results, returns the answer."""

_USUAL_FILES = "notes.txt hello.txt a.txt b.txt test.txt todo.txt c.txt data.txt result.txt readme.md out.txt x.txt".split()
_USUAL_CONTENTS = ["hello", "hello", "hello world", "hi", "Hello, world!", "42", "test", "1", "2", "A", "B", "one", "two"]
_USUAL_CONTENTS_ZH = ["你好", "你好，世界", "测试", "一", "二", "苹果"]


@dataclass(frozen=True)
class Note:
    """What an agent has learned of a file: for the window that it writes."""

    path: str
    content: str
    written: bool


@dataclass
class Desk:
    """The files that a task finds below /workspace, by their names."""

    files: dict[str, str] = field(default_factory=dict)


@dataclass
class Job:
    """A task: its wording, what the agent does, and the facts that it has learned, as they come."""

    task: str
    steps: Steps
    facts: list[Note] = field(default_factory=list)


Maker: TypeAlias = Callable[[Cast, Desk], Job]
MAKERS: dict[str, tuple[float, Maker]] = {}


def work(weight: float) -> Callable[[Maker], Maker]:
    """Enter a maker under its own name."""

    def enter(maker: Maker) -> Maker:
        MAKERS[maker.__name__] = (weight, maker)
        return maker

    return enter


# -- names and contents ------------------------------------------------------------------------------------------------


def letters(cast: Cast) -> str:
    """A string that no vocabulary has."""
    signs = ascii_lowercase if cast.rng.random() < 0.7 else ascii_lowercase + digits
    text = "".join(cast.rng.choice(signs) for _ in range(cast.rng.randint(2, 9)))
    return text.upper() if cast.rng.random() < 0.1 else text


def path_of(cast: Cast) -> str:
    """The path of a file, as people write it to an agent."""
    pick = cast.rng.random()
    if pick < 0.22:
        return cast.rng.choice(_USUAL_FILES)
    if pick < 0.5:
        return letters(cast) + cast.rng.choice((".txt", ".txt", ".md", ".py", ".log", ".json", ""))
    if pick < 0.6:
        return f"{letters(cast)}/{letters(cast)}.txt"
    return words.file(cast.rng).removeprefix("/workspace/").lstrip("/").removeprefix("./").replace("/storage/", "")


def content_of(cast: Cast) -> str:
    """What a file is to hold: one line."""
    pick = cast.rng.random()
    if pick < 0.15:
        return cast.pick(_USUAL_CONTENTS, _USUAL_CONTENTS_ZH)
    if pick < 0.4:
        return " ".join(letters(cast) for _ in range(cast.rng.choice((1, 1, 1, 2, 3))))
    if pick < 0.5:
        return words.number(cast.rng)
    text = words.phrase(cast.rng, cast.language, cast.rng.choice((1, 2, 3, 5))).replace('"', "")
    return text.rstrip(".!?。！？") or "x"


def _asked_to_write(cast: Cast, path: str, content: str) -> str:
    if cast.rng.random() < 0.5:
        asked = cast.pick(tool_phrases.WRITE, tool_phrases.WRITE_ZH)
    else:
        asked = cast.pick(tool_phrases.WRITE_QUOTED, tool_phrases.WRITE_QUOTED_ZH)
    if cast.rng.random() < 0.15:
        asked = cast.say("Write * to #", "把*写入#")
    return asked.replace("#", path).replace("*", content)


def _joined(first: str, rest: str) -> str:
    return first.rstrip(".。?？") + rest


def _existing(cast: Cast, desk: Desk, content: str | None = None) -> str:
    """A file that is there."""
    path = path_of(cast)
    desk.files[path] = content if content is not None else content_of(cast)
    return path


# -- what an agent says ------------------------------------------------------------------------------------------------


def wrote(cast: Cast, path: str) -> str:
    """The answer after a file was written."""
    return cast.say(f"I wrote the file {path}.", f"我已写好文件{path}。")


def says(cast: Cast, path: str, text: str) -> str:
    """The answer after a file was read."""
    lines = text.rstrip("\n").split("\n")
    if text == "[the file is empty]":
        return cast.say(f"{path} is empty.", f"{path}是空的。")
    if len(lines) > 1:
        return cast.say(f"{path} begins with: {lines[0]}", f"{path}的开头是：{lines[0]}")
    return cast.say(f"{path} says: {lines[0]}", f"{path}的内容是：{lines[0]}")


def failed(cast: Cast, english: str, chinese: str, result: str) -> str:
    """The answer after an error, with its reason."""
    reason = result.removeprefix("Error: ").split("\n", maxsplit=1)[0]
    return cast.say(f"{english}: {reason}.", f"{chinese}：{reason}。")


def write_step(job: Job, path: str, content: str) -> Steps:
    """Write a file."""
    result = yield ToolCall("write_file", {"path": path, "content": content})
    if not result.startswith("Error"):
        job.facts.append(Note(path, content, written=True))
    return result


def read_step(job: Job, path: str) -> Steps:
    """Read a file."""
    result = yield ToolCall("read_file", {"path": path})
    if not result.startswith("Error"):
        job.facts.append(Note(path, result, written=False))
    return result


def list_step(cast: Cast, path: str) -> Steps:
    """List a directory, and say what is there."""
    result = yield ToolCall("list_directory", {"path": path})
    shown = cast.say("The workspace", "工作区") if path == "." else path
    if result.startswith("Error"):
        return failed(cast, f"I could not list {path}", f"我没能列出{path}", result)
    names = [line.rpartition(" (")[0] or line for line in result.split("\n")[1:]]
    if not names:
        return cast.say(f"{shown} is empty.", f"{shown}是空的。")
    return cast.say(f"{shown} contains: {', '.join(names)}", f"{shown}里有：{'、'.join(names)}")


def could_not_write(cast: Cast, path: str, result: str) -> str:
    """The answer after a file could not be written."""
    return failed(cast, f"I could not write {path}", f"我没能写入{path}", result)


def could_not_read(cast: Cast, path: str, result: str) -> str:
    """The answer after a file could not be read."""
    return failed(cast, f"I could not read {path}", f"我没能读取{path}", result)


def _is_error(result: str) -> bool:
    return result.startswith("Error")


# -- the tasks ---------------------------------------------------------------------------------------------------------


def _job(task: str, steps: Callable[[Job], Steps]) -> Job:
    job = Job(task, iter(()))  # type: ignore[arg-type]
    job.steps = steps(job)
    return job


@work(2.0)
def write(cast: Cast, desk: Desk) -> Job:
    """Write one file, new or there already."""
    path = _existing(cast, desk) if cast.rng.random() < 0.15 else path_of(cast)
    content = content_of(cast)

    def steps(job: Job) -> Steps:
        result = yield from write_step(job, path, content)
        return could_not_write(cast, path, result) if _is_error(result) else wrote(cast, path)

    return _job(_asked_to_write(cast, path, content), steps)


@work(4.0)
def write_and_read(cast: Cast, desk: Desk) -> Job:
    """Write a file and read it back."""
    path = _existing(cast, desk) if cast.rng.random() < 0.1 else path_of(cast)
    content = content_of(cast)
    asked = _joined(_asked_to_write(cast, path, content), cast.pick(say.AND_READ, say.AND_READ_ZH))

    def steps(job: Job) -> Steps:
        result = yield from write_step(job, path, content)
        if _is_error(result):
            return could_not_write(cast, path, result)
        return says(cast, path, (yield from read_step(job, path)))

    return _job(asked, steps)


@work(1.0)
def write_and_list(cast: Cast, desk: Desk) -> Job:
    """Write a file and list the workspace."""
    path, content = path_of(cast), content_of(cast)
    if cast.rng.random() < 0.5:
        _existing(cast, desk)
    asked = _joined(_asked_to_write(cast, path, content), cast.pick(say.AND_LIST, say.AND_LIST_ZH))

    def steps(job: Job) -> Steps:
        result = yield from write_step(job, path, content)
        if _is_error(result):
            return could_not_write(cast, path, result)
        return (yield from list_step(cast, "."))

    return _job(asked, steps)


@work(2.5)
def write_two(cast: Cast, desk: Desk) -> Job:  # noqa: ARG001 - the signature is the makers'
    """Write two files; now and then read both."""
    paths = [path_of(cast), path_of(cast)]
    while paths[1] == paths[0]:
        paths[1] = path_of(cast)
    contents = [content_of(cast), content_of(cast)]
    asked = cast.pick(say.TWO, say.TWO_ZH).replace("#", paths[0]).replace("@", paths[1])
    asked = asked.replace("*", contents[0]).replace("~", contents[1])
    read = cast.rng.random() < 0.4
    if read:
        asked = _joined(asked, cast.pick(say.AND_READ_BOTH, say.AND_READ_BOTH_ZH))

    def steps(job: Job) -> Steps:
        for path, content in zip(paths, contents, strict=True):
            result = yield from write_step(job, path, content)
            if _is_error(result):
                return could_not_write(cast, path, result)
        if not read:
            return cast.say(f"I wrote the files {paths[0]} and {paths[1]}.", f"我已写好文件{paths[0]}和{paths[1]}。")
        told = []
        for path in paths:
            told.append(says(cast, path, (yield from read_step(job, path))))
        return "\n".join(told)

    return _job(asked, steps)


@work(2.0)
def read(cast: Cast, desk: Desk) -> Job:
    """Read a file that is there."""
    content = "\n".join(content_of(cast) for _ in range(cast.rng.choice((1, 1, 1, 2, 3))))
    path = _existing(cast, desk, content + cast.rng.choice(("", "\n")) if cast.rng.random() < 0.96 else "")
    asked = cast.pick(tool_phrases.READ, tool_phrases.READ_ZH).replace("#", path)

    def steps(job: Job) -> Steps:
        return says(cast, path, (yield from read_step(job, path)))

    return _job(asked, steps)


@work(1.5)
def read_missing(cast: Cast, desk: Desk) -> Job:
    """Read a file that is not there, with others near it or not."""
    path = path_of(cast)
    if cast.rng.random() < 0.6:
        _existing(cast, desk)
    if cast.rng.random() < 0.25:
        desk.files[path + cast.rng.choice(("x", "2", "_"))] = "x"
    desk.files.pop(path, None)
    asked = cast.pick(tool_phrases.READ, tool_phrases.READ_ZH).replace("#", path)

    def steps(job: Job) -> Steps:
        result = yield from read_step(job, path)
        return could_not_read(cast, path, result) if _is_error(result) else says(cast, path, result)

    return _job(asked, steps)


@work(1.5)
def look(cast: Cast, desk: Desk) -> Job:
    """List the workspace, or a folder."""
    if cast.rng.random() < 0.3:
        folder = letters(cast)
        if cast.rng.random() < 0.8:
            desk.files[f"{folder}/{letters(cast)}.txt"] = content_of(cast)
        asked = cast.pick(tool_phrases.LIST, tool_phrases.LIST_ZH).replace("#", folder)
    else:
        folder, asked = ".", cast.pick(say.LIST_ALL, say.LIST_ALL_ZH)
        for _ in range(cast.rng.choice((0, 1, 1, 2, 3))):
            _existing(cast, desk)
    return _job(asked, lambda _: list_step(cast, folder))


@work(1.2)
def copy(cast: Cast, desk: Desk) -> Job:
    """Write what one file holds to another."""
    content = content_of(cast)
    source, target = _existing(cast, desk, content), path_of(cast)
    asked = cast.pick(say.COPY, say.COPY_ZH).replace("#", source).replace("@", target)

    def steps(job: Job) -> Steps:
        result = yield from read_step(job, source)
        if _is_error(result):
            return could_not_read(cast, source, result)
        done = yield from write_step(job, target, content)
        return could_not_write(cast, target, done) if _is_error(done) else wrote(cast, target)

    return _job(asked, steps)


@work(1.2)
def edit(cast: Cast, desk: Desk) -> Job:
    """Replace a text in a file; now and then it is not there."""
    old, new = content_of(cast), content_of(cast)
    while new == old:
        new = content_of(cast)
    held = old if cast.rng.random() < 0.85 else content_of(cast)
    path = _existing(cast, desk, cast.rng.choice(("*", f"{letters(cast)} *")).replace("*", held))
    asked = cast.pick(say.EDIT, say.EDIT_ZH).replace("#", path).replace("*", old).replace("~", new)

    def steps(_: Job) -> Steps:
        result = yield ToolCall("edit_file", {"path": path, "old": old, "new": new})
        if _is_error(result):
            return failed(cast, f"I could not change {path}", f"我没能修改{path}", result)
        return cast.say(f"I changed {path}.", f"我已修改{path}。")

    return _job(asked, steps)


@work(1.2)
def search(cast: Cast, desk: Desk) -> Job:
    """Find a word in the files."""
    wanted = cast.rng.choice((letters(cast), words.word(cast.rng), words.number(cast.rng)))
    if cast.rng.random() < 0.85:
        line = cast.rng.choice((wanted, f"{wanted} {words.word(cast.rng)}", f"{words.word(cast.rng)} {wanted}"))
        _existing(cast, desk, line)
    for _ in range(cast.rng.choice((0, 1, 1))):
        _existing(cast, desk)
    asked = cast.pick(say.SEARCH, say.SEARCH_ZH).replace("*", wanted)

    def steps(_: Job) -> Steps:
        result = yield ToolCall("search_files", {"pattern": wanted})
        *found, _note = result.split("\n")
        places = [line.split(":")[0] for line in found]
        if _is_error(result):
            return failed(cast, "I could not search", "我没能搜索", result)
        if not places:
            return cast.say(f"I did not find {wanted}.", f"我没有找到{wanted}。")
        told = ", ".join(dict.fromkeys(places))
        return cast.say(f"{wanted} is in {told}.", f"{wanted}在{told}里。")

    return _job(asked, steps)


@work(0.8)
def run(cast: Cast, desk: Desk) -> Job:
    """Run a command."""
    path, there = path_of(cast).replace("\\", ""), cast.rng.random() < 0.7
    if there:
        desk.files[path] = content_of(cast)
    shell_safe = all(char.isascii() and (char.isalnum() or char in "._-/") for char in path)
    kinds = [f"echo {letters(cast)}", f"echo {words.word(cast.rng)} {letters(cast)}", "true", "ls"]
    command = cast.rng.choice([*kinds, f"cat {path}", f"wc -c {path}"] if shell_safe else kinds)
    quoted = cast.rng.random() < 0.5
    asked = (
        cast.pick(tool_phrases.RUN_QUOTED, tool_phrases.RUN_QUOTED_ZH)
        if quoted
        else cast.pick(tool_phrases.RUN, tool_phrases.RUN_ZH)
    )

    def steps(_: Job) -> Steps:
        result = yield ToolCall("execute_command", {"command": command})
        *printed, note = result.rstrip("\n").split("\n")
        output = printed if note.startswith("[exit status") else [*printed, note]
        if note.startswith("[exit status") and not note.startswith("[exit status 0"):
            reason = output[0] if output else note.strip("[]").partition(",")[0]
            return cast.say(f"The command failed: {reason}.", f"命令失败了：{reason}。")
        if not output or not output[0]:
            return cast.say("The command finished without output.", "命令已执行，没有输出。")
        return cast.say(f"The command printed: {output[0]}", f"命令输出：{output[0]}")

    return _job(asked.replace("*", command), steps)


# -- the window --------------------------------------------------------------------------------------------------------


def window_of(cast: Cast, task: str, facts: list[Note], left: str = "") -> str:
    """A context window in the form of the default: the task, what is known, and what comes next."""
    heads = cast.say(
        "# Current Task|# Working Memory|# Active Observations|# Next Steps",
        "# 当前任务|# 工作记忆|# 当前观察|# 下一步",
    ).split("|")
    known = [
        cast.say(f"- I wrote {one.path}.", f"- 已写好{one.path}。")
        if one.written
        else f"- {says(cast, one.path, one.content)}"
        for one in facts
    ]
    nothing = cast.say("None.", "无。")
    known = known or [nothing]
    return "\n".join(chain((heads[0], task, "", heads[1]), known, ("", heads[2], nothing, "", heads[3], left or nothing)))


def sync_step(window: str) -> Steps:
    """Write a new window; what comes after it sees the new one only."""
    return (yield ToolCall("sync_context", {"new_context_content": window}))


def synced(cast: Cast) -> str:
    """The answer after a sync that was all that was asked for."""
    return cast.say("The context is synced.", "上下文已同步。")


@work(1.0)
def sync(cast: Cast, desk: Desk) -> Job:  # noqa: ARG001 - the signature is the makers'
    """Sync the context, when asked to; nothing is known yet."""
    asked = cast.pick(say.SYNC, say.SYNC_ZH)

    def steps(job: Job) -> Steps:
        yield from sync_step(window_of(cast, asked, job.facts))
        return synced(cast)

    return _job(asked, steps)


@work(1.5)
def work_and_sync(cast: Cast, desk: Desk) -> Job:
    """Write or read a file, then sync the context."""
    reads = cast.rng.random() < 0.4
    content = content_of(cast)
    path = _existing(cast, desk, content) if reads else path_of(cast)
    asked = (
        cast.pick(tool_phrases.READ, tool_phrases.READ_ZH).replace("#", path)
        if reads
        else _asked_to_write(cast, path, content)
    )
    asked = _joined(asked, cast.pick(say.THEN_SYNC, say.THEN_SYNC_ZH))

    def steps(job: Job) -> Steps:
        result = yield from (read_step(job, path) if reads else write_step(job, path, content))
        if _is_error(result):
            return (could_not_read if reads else could_not_write)(cast, path, result)
        yield from sync_step(window_of(cast, asked, job.facts))
        return synced(cast)

    return _job(asked, steps)
