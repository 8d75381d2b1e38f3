"""What tasks for agents are made of: names, contents, single steps, and what an agent says of them.

A task maker is a function of a `Cast` and a `Desk`; `@work(weight)` enters it. It returns a `Job`: the wording, and the
steps as a generator that yields a call or the answer, and is sent the result of each call.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from string import ascii_lowercase, digits
from typing import TypeAlias

from demo_model import tool_phrases, words
from demo_model.chat_format import ToolCall
from demo_model.scenes import Cast

Steps: TypeAlias = Generator[ToolCall | str, str, str]
"""Yields calls, is sent their results, returns the answer."""

_USUAL_FILES = [
    "notes.txt",
    "hello.txt",
    "a.txt",
    "b.txt",
    "test.txt",
    "todo.txt",
    "c.txt",
    "data.txt",
    "result.txt",
    "readme.md",
    "out.txt",
    "x.txt",
]
_USUAL_CONTENTS = [
    "hello",
    "hello",
    "hello world",
    "hi",
    "Hello, world!",
    "42",
    "test",
    "1",
    "2",
    "A",
    "B",
    "one",
    "two",
]
_USUAL_CONTENTS_ZH = ["你好", "你好，世界", "测试", "一", "二", "苹果"]

_LONGEST_PATH = 28
"""Characters: longer ones take a small model's time of learning from what matters."""


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
    if pick < 0.25:
        return cast.rng.choice(_USUAL_FILES)
    if pick < 0.6:
        return letters(cast) + cast.rng.choice((".txt", ".txt", ".md", ".py", ".log", ".json", ""))
    if pick < 0.68:
        return f"{letters(cast)}/{letters(cast)}.txt"
    if pick < 0.85:
        return words.word(cast.rng) + cast.rng.choice((".txt", ".txt", ".md", ".py", ".csv"))
    path = words.file(cast.rng).removeprefix("/workspace/").replace("/storage/", "").lstrip("/").removeprefix("./")
    return path if len(path) < _LONGEST_PATH else letters(cast) + ".txt"


def content_of(cast: Cast) -> str:
    """What a file is to hold: one line."""
    pick = cast.rng.random()
    if pick < 0.15:
        return cast.pick(_USUAL_CONTENTS, _USUAL_CONTENTS_ZH)
    if pick < 0.4:
        return " ".join(letters(cast) for _ in range(cast.rng.choice((1, 1, 1, 2, 3))))
    if pick < 0.5:
        return words.number(cast.rng)
    if pick < 0.58 and not cast.held_out:
        return _line_of(cast)
    text = words.phrase(cast.rng, cast.language, cast.rng.choice((1, 2, 2, 3, 4))).replace('"', "")
    return text.rstrip(".!?。！？") or "x"


def _line_of(cast: Cast) -> str:
    """A line as files of programs, settings and lists have it, or a whole sentence with its mark."""
    rng = cast.rng
    one, other = words.word(rng), rng.choice((words.word(rng), words.number(rng)))
    if cast.language == "zh" and rng.random() < 0.5:
        one, other = words.han(rng), words.han(rng)
    shapes = (
        "{0}={1}", "{0} = {1}", "print('{0}')", "{0}: {1}", "{0}, {1}", "{0} {1}.", "{0} {1}!", "{0}({1})", "- {0}",
        "# {0} {1}", "{0} {1}?", "{0}/{1}", "{0}_{1}", "{0} v{1}",
    )  # fmt: skip
    return rng.choice(shapes).format(one, other)


def asked_to_write(cast: Cast, path: str, content: str) -> str:
    """How a user asks for a file."""
    if content[-1] in ".!?":  # where nothing marks its end, that mark would be the request's
        return (
            cast.pick(tool_phrases.WRITE_QUOTED, tool_phrases.WRITE_QUOTED_ZH).replace("#", path).replace("*", content)
        )
    if cast.rng.random() < 0.5:
        asked = cast.pick(tool_phrases.WRITE, tool_phrases.WRITE_ZH)
    else:
        asked = cast.pick(tool_phrases.WRITE_QUOTED, tool_phrases.WRITE_QUOTED_ZH)
    if cast.rng.random() < 0.35:
        asked = cast.say("Write * to #", "把*写入#")
    return asked.replace("#", path).replace("*", content)


def joined(first: str, rest: str) -> str:
    """Two parts of a sentence."""
    return first.rstrip(".。?？") + rest


def existing(cast: Cast, desk: Desk, content: str | None = None) -> str:
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


def is_error(result: str) -> bool:
    """Whether a result tells of an error."""
    return result.startswith("Error")


def job_of(task: str, steps: Callable[[Job], Steps]) -> Job:
    """A job whose steps note down what they learn."""
    job = Job(task, iter(()))  # type: ignore[arg-type]
    job.steps = steps(job)
    return job
