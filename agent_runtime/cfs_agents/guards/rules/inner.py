"""What a command runs, as it is collected. No I/O (A11)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cfs_agents.guards.rules.words import SimpleCommand, Word

_MOST_SUFFIXES = 100
_SCRIPT_MARKS = frozenset(" ;|&\n$`'\"\\")


@dataclass(slots=True)
class Inner:
    """What a command runs: other commands, texts that are scripts, and what only a denial looks at.

    - `doubts` say why its effects are not known.
    - `runs_file` is a file that it runs, such as the script of an interpreter; `runs_files`: it runs files that it does
      not name, such as those of `make`.
    - `shell`: that file may be a script of a shell.
    - `writes` are names of files that it may write; `unpacks`: it writes files that it does not name.
    """

    command: SimpleCommand
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    hidden: list[tuple[Word, ...]] = field(default_factory=list)
    hidden_scripts: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    reads_script: bool = False
    evaluates: bool = False
    runs_file: Word | None = None
    runs_files: bool = False
    shell: bool = False
    writes: list[str] = field(default_factory=list)
    unpacks: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it runs nothing but the command itself."""
        return not (self.doubts or self.commands or self.scripts or self.hidden or self.hidden_scripts)

    def spell(self, words: Iterable[str], unread: str = "") -> None:
        """Let only patterns with these words allow the command; `unread` says why what it runs cannot be read."""
        command = self.command
        spelled = command.spelled.union(words)
        self.command = SimpleCommand(command.words, spelled, command.free and not spelled, unread or command.unread)


def suspect_suffixes(words: Sequence[Word], result: Inner) -> None:
    """Let denials look for a command that begins at any word, and in words that are scripts."""
    if len(words) > _MOST_SUFFIXES:
        result.doubts.append(
            f"more than {_MOST_SUFFIXES} arguments of a program that runs others are not read by rules"
        )
    for start in range(min(len(words), _MOST_SUFFIXES)):
        result.hidden.append(tuple(words[start:]))
        text = words[start].text
        if not _SCRIPT_MARKS.isdisjoint(text):
            result.hidden_scripts.append(text)
        if "=" in text:
            result.hidden_scripts.append(text.partition("=")[2])


def scripts_in(text: str) -> Iterator[str]:
    """Yield what may be a script in the value of an option: all of it, or what stands behind `name=` or `!`."""
    yield text
    while "=" in text or text.startswith("!"):
        text = text[1:] if text.startswith("!") else text.partition("=")[2]
        yield text
