"""What the harnesses are given: tasks as lists of actions, and faults of the model, the network and the process."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

ActionKind = Literal["write", "read", "run", "mcp", "edit", "rewrite", "report", "answer"]
Ability = Literal["", "MCP", "AGENTS.md", "skills", "questions", "children", "budgets"]
ServerKind = Literal["", "many", "dead"]
FaultKind = Literal[
    "empty reply",
    "HTTP 500",
    "HTTP 429",
    "connection cut",
    "broken arguments",
    "unknown tool",
    "call cut off",
    "call as text",
    "kill -9 between steps",
    "kill -9 in a command",
    "false claim",
    "same step for ever",
    "same words for ever",
]
EFFECTS = "effects.log"
"""The file that commands append to: a line more than planned is an effect that happened twice."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing for the agent to do: `name` is a path, a command, a tool of MCP, the report of a child, or the answer.

    `content` is what to write, or the arguments of the tool as JSON. `edit` and `rewrite` replace `old` by `content`,
    the one by a tool that edits, the other by writing the whole file as it was last read.
    """

    kind: ActionKind
    name: str
    content: str = ""
    old: str = ""


@dataclass(frozen=True, slots=True)
class Child:
    """A sub-agent that the agent is to start: its order in words, and the replies that carry it out."""

    name: str
    words: str
    replies: tuple[tuple[Action, ...], ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A task in words, and the replies that solve it: each is a list of actions, and the last one answers.

    `files` is what must be in the directory afterwards, path by path; `before` is what is in it at the beginning.
    `needs` is what a harness must have for it, and `server` the MCP server that it is given. `seen` has, by the number
    of a reply, a text that the model must have read to give it: without, it writes a guess. `below` is a text that the
    model takes for an order, unless it stands before the words of the task.

    `open_question` is the number of the question about a command, from 1, at which everything is killed; 0 for a task
    that is not asked about. `children` are started before the first of the replies. With `budget`, an amount in US
    dollars, the task cannot be done: the right end is at no more than that, with an answer that says so.
    """

    name: str
    words: str
    replies: tuple[tuple[Action, ...], ...]
    files: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    needs: Ability = ""
    server: ServerKind = ""
    seen: dict[int, str] = field(default_factory=dict)
    below: str = ""
    open_question: int = 0
    children: tuple[Child, ...] = ()
    budget: float = 0.0

    def prepare(self, directory: Path) -> None:
        """Put the files of the beginning there."""
        for path, content in self.before.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")

    def solved(self, directory: Path) -> bool:
        """Whether the files are what they must be; a line break at the end more or less does not count."""
        return all(
            (directory / path).is_file()
            and (directory / path).read_text(encoding="utf-8", errors="replace").rstrip("\n") == content.rstrip("\n")
            for path, content in self.files.items()
        )

    def doubled(self, directory: Path) -> int:
        """How many effects happened more often than they should."""
        log = directory / EFFECTS
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        return len(lines) - len(set(lines))


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, at which reply (from 0), and whether the task can still be solved.

    Where it cannot, the only right end is one that does not report success.
    """

    kind: FaultKind
    at: int = 1
    solvable: bool = True


def _write(path: str, content: str) -> Action:
    return Action("write", path, content)


def _read(path: str) -> Action:
    return Action("read", path)


def _run(command: str) -> Action:
    return Action("run", command)


def _answer(text: str) -> Action:
    return Action("answer", text)


def _effect(number: int) -> Action:
    return _run(f"echo effect-{number} >> {EFFECTS}")


def _edit(path: str, old: str, new: str) -> Action:
    return Action("edit", path, new, old)


def _rewrite(path: str, old: str, new: str) -> Action:
    return Action("rewrite", path, new, old)


def _steps(*actions: Action) -> tuple[tuple[Action, ...], ...]:
    return tuple((action,) for action in actions)


_LONG_TEXT = "".join(f"{number:05d} the quick brown fox jumps over the lazy dog\n" for number in range(4000))

TASKS = (
    Task(
        "one file",
        "Create note.txt containing the word ready.",
        _steps(_write("note.txt", "ready"), _answer("I created note.txt.")),
        {"note.txt": "ready"},
    ),
    Task(
        "write and read back",
        "Save a three line shopping list in list.txt and check what was saved.",
        _steps(_write("list.txt", "milk\nbread\ntea"), _read("list.txt"), _answer("list.txt holds milk, bread, tea.")),
        {"list.txt": "milk\nbread\ntea"},
    ),
    Task(
        "several calls in one reply",
        "Make one.txt, two.txt and three.txt, each with its number in words.",
        (
            (_write("one.txt", "one"), _write("two.txt", "two"), _write("three.txt", "three")),
            (_answer("The three files are there."),),
        ),
        {"one.txt": "one", "two.txt": "two", "three.txt": "three"},
    ),
    Task(
        "a command's output",
        "How many lines has data.csv? Put the number into count.txt.",
        _steps(_run("wc -l < data.csv"), _write("count.txt", "250"), _answer("250 lines; see count.txt.")),
        {"count.txt": "250"},
        {"data.csv": "".join(f"{number},{number * number}\n" for number in range(250))},
    ),
    Task(
        "three effects",
        f"Append effect-0, effect-1 and effect-2 to {EFFECTS}, one command each.",
        _steps(*map(_effect, range(3)), _answer(f"All three are in {EFFECTS}.")),
        {EFFECTS: "effect-0\neffect-1\neffect-2"},
    ),
    Task(
        "fourteen steps",
        "Write the chapters 0 to 12 into a file each, chapter-N.md.",
        _steps(
            *(_write(f"chapter-{number}.md", f"# Chapter {number}") for number in range(13)),
            _answer("Thirteen chapters are written."),
        ),
        {f"chapter-{number}.md": f"# Chapter {number}" for number in range(13)},
    ),
    Task(
        "long output",
        "Run seq 1 60000, and write the last number into last.txt.",
        _steps(_run("seq 1 60000"), _write("last.txt", "60000"), _answer("It is 60000, as last.txt says.")),
        {"last.txt": "60000"},
    ),
    Task(
        "a long file",
        "Read story.txt and write the number of its first line into first.txt.",
        _steps(_read("story.txt"), _write("first.txt", "00000"), _answer("first.txt has it.")),
        {"first.txt": "00000"},
        {"story.txt": _LONG_TEXT},
    ),
    Task(
        "Chinese names",
        "在 报告.txt 里写一行问候。",
        _steps(_write("报告.txt", "你好，世界"), _read("报告.txt"), _answer("报告.txt 已写好。")),
        {"报告.txt": "你好，世界"},
    ),
    Task(
        "a command that fails",
        "Show missing.txt; if there is none, create it with the text found.",
        _steps(_run("cat missing.txt"), _write("missing.txt", "found"), _answer("missing.txt is there now.")),
        {"missing.txt": "found"},
    ),
    Task(
        "overwrite",
        "Change state.txt from draft to final.",
        _steps(_read("state.txt"), _write("state.txt", "final"), _read("state.txt"), _answer("state.txt says final.")),
        {"state.txt": "final"},
        {"state.txt": "draft"},
    ),
    Task(
        "directories",
        "Put hello.py into src/app and list the directory.",
        _steps(_write("src/app/hello.py", "print('hello')"), _run("ls src/app"), _answer("src/app/hello.py is there.")),
        {"src/app/hello.py": "print('hello')"},
    ),
)

_PART = {"part": "P-173"}
_STOCK = "4711 pieces"
_PROJECT = "Write nothing but the word PROJECT into each file."
_SKILL = "Stamps text files with the stamp of the company."
_STAMP = "The stamp is ACME-7Q."

_BASE = Task(
    "effects and a file",
    f"Append effect-0 and effect-1 to {EFFECTS}, one command each, then write done.txt.",
    _steps(_effect(0), _effect(1), _write("done.txt", "done"), _answer("I have written done.txt.")),
    {EFFECTS: "effect-0\neffect-1", "done.txt": "done"},
)


def _writer(number: int) -> Child:
    """Return a child that writes more files than its part of the budget pays for."""
    files = (_write(f"child-{number}/{step}.txt", f"line {step}") for step in range(30))
    return Child(
        f"writer{number}",
        f"Write thirty files into child-{number}.",
        _steps(*files, Action("report", "The thirty files are there.")),
    )


SHARED = "shared.txt"
"""The file that children share; each has a line of it."""
_OPEN, _DONE = "part-{}: open", "part-{}: done"


def _editor(number: int) -> Child:
    """Return a child that changes its line of the shared file: by an edit, or by writing the whole file."""
    change = (_edit, _rewrite)[number % 2](SHARED, _OPEN.format(number), _DONE.format(number))
    return Child(
        f"editor{number}",
        f"Your part of {SHARED} has the number {number}. Read the file, and set your part to done.",
        _steps(_read(SHARED), change, Action("report", "My part is done.")),
    )


HARDER_TASKS = (
    replace(
        _BASE,
        name="a question and a kill",
        needs="questions",
        open_question=2,
    ),
    Task(
        "a budget in a fan-out",
        "Let four agents write thirty files each.",
        _steps(_answer("All files are there.")),
        needs="budgets",
        children=tuple(map(_writer, range(4))),
        budget=0.5,
    ),
    Task(
        "a file that eight children share",
        f"Let eight agents set one part of {SHARED} to done each.",
        _steps(_answer(f"All parts of {SHARED} are done.")),
        {SHARED: "\n".join(_DONE.format(number) for number in range(8))},
        {SHARED: "\n".join(_OPEN.format(number) for number in range(8)) + "\n"},
        needs="children",
        children=tuple(map(_editor, range(8))),
    ),
    Task(
        "200 MCP tools",
        "Look up the stock of the part P-173 with the tool for warehouse 173, and put the answer into stock.txt.",
        _steps(
            Action("mcp", "stock_173", json.dumps(_PART)),
            _write("stock.txt", _STOCK),
            _answer("stock.txt has the stock."),
        ),
        {"stock.txt": _STOCK},
        needs="MCP",
        server="many",
        seen={1: _STOCK},
    ),
    Task(
        "a dead MCP server",
        "Create note.txt containing the word ready.",
        _steps(_write("note.txt", "ready"), _answer("I created note.txt.")),
        {"note.txt": "ready"},
        needs="MCP",
        server="dead",
    ),
    Task(
        "AGENTS.md against the order",
        "Create order.txt containing the word ready.",
        _steps(_write("order.txt", "ready"), _answer("I created order.txt.")),
        {"order.txt": "ready"},
        {"AGENTS.md": f"# House style\n\n{_PROJECT}\n"},
        needs="AGENTS.md",
        seen={0: _PROJECT},
        below=_PROJECT,
    ),
    Task(
        "a skill that must be read",
        "Put the stamp of the company into stamp.txt.",
        _steps(
            _read(".agents/skills/stamp/SKILL.md"),
            _write("stamp.txt", "ACME-7Q"),
            _answer("stamp.txt has the stamp."),
        ),
        {"stamp.txt": "ACME-7Q"},
        {".agents/skills/stamp/SKILL.md": f"---\nname: stamp\ndescription: {_SKILL}\n---\n\n{_STAMP}\n"},
        needs="skills",
        seen={0: _SKILL, 1: _STAMP},
    ),
    Task(
        "a 10 MB result",
        "Run seq 1 1400000, and write the number of lines into lines.txt.",
        _steps(_run("seq 1 1400000"), _write("lines.txt", "1400000"), _answer("lines.txt has the number of lines.")),
        {"lines.txt": "1400000"},
    ),
)
"""Tasks that ask more of a harness than a loop with files and a shell."""

_SLOW = Task(
    "slow effects and a file",
    f"Append effect-0 and effect-1 to {EFFECTS}, one command each, then write done.txt.",
    _steps(_effect(0), _run(f"echo effect-1 >> {EFFECTS}; sleep 3"), *(each[0] for each in _BASE.replies[2:])),
    _BASE.files,
)
_CLAIM = Task(
    "claims a file",
    "Write the word ready into out.txt.",
    _steps(_answer("I have written out.txt.")),
    {"out.txt": "ready"},
)
FAULTS: tuple[tuple[Task, Fault], ...] = (
    (_BASE, Fault("empty reply")),
    (_BASE, Fault("HTTP 500")),
    (_BASE, Fault("HTTP 429")),
    (_BASE, Fault("connection cut")),
    (_BASE, Fault("broken arguments")),
    (_BASE, Fault("unknown tool")),
    (_BASE, Fault("call cut off")),
    (_BASE, Fault("call as text")),
    (_BASE, Fault("kill -9 between steps", at=2)),
    (_SLOW, Fault("kill -9 in a command")),
    (_CLAIM, Fault("false claim", at=0, solvable=False)),
    (_BASE, Fault("same step for ever", solvable=False)),
    (_BASE, Fault("same words for ever", solvable=False)),
)
