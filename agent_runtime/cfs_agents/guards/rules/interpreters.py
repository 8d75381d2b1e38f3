"""Programs that run code in a language of their own: scripts, options with code, and their input. No I/O (A11)."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from cfs_agents.guards.rules.inner import Inner, suspect_suffixes
from cfs_agents.guards.rules.words import Word, names


class _Language(NamedTuple):
    """How an interpreter is called.

    - `code`: letters of options whose value is code; `long_code`: such options with other names.
    - `valued`: letters of options with another value. `endings`: of the names of its scripts.
    - `module`: the letter of an option that names a module to run.
    - `ends`: options after which it ends without reading its input.
    """

    code: str = ""
    valued: str = ""
    endings: tuple[str, ...] = ()
    long_code: tuple[str, ...] = ()
    module: str = ""
    ends: tuple[str, ...] = ()


_PYTHON = _Language("c", "WX", (".py", ".pyw", ".pyc", ".pyz"), module="m", ends=("-V", "-VV", "-h"))
_NODE = _Language(
    "ep",
    "rC",
    (".js", ".mjs", ".cjs", ".ts"),
    ("--eval", "--print", "--import", "--loader", "--experimental-loader"),
    ends=("-v", "-h"),
)
_LUA = _Language("e", "l", (".lua",))
_OTHER = _Language("ecEgL", "", (), ("--eval", "--execute", "--command", "-Command", "-eval", "-exec", "--exec"))
_LANGUAGES = {
    "python": _PYTHON,
    "pypy": _PYTHON,
    "perl": _Language("eE", "I", (".pl", ".t"), ends=("-v", "-h")),
    "ruby": _Language("e", "ICEF", (".rb",)),
    "lua": _LUA,
    "luajit": _LUA,
    "node": _NODE,
    "nodejs": _NODE,
    "php": _Language("rBREd", "czStF", (".php",)),
    "Rscript": _Language("e", "", (".R", ".r")),
    **dict.fromkeys(
        names(
            "R babashka bb bun clojure deno elixir erl expect fennel ghci gnuplot groovy guile irb iex janet jjs"
            " jrunscript jshell julia kotlin m4 nu ocaml octave osascript pry pwsh powershell racket runghc sbcl scala"
            " swipl tclsh utop wish xonsh elvish maxima gs ipython bpython ts-node tsx bpftrace sage"
        ),
        _OTHER,
    ),
}
_VERSION = re.compile(r"[\d.]+$")
_ENDS = names("--version --help")
_CODE_MODULES = names(
    "asyncio bdb cProfile code doctest idlelib pdb profile runpy sqlite3 timeit trace IPython ptpython"
    " coverage viztracer py_spy ipdb bpython debugpy ensurepip"
)
"""Modules of Python that run code, or a file, that their arguments name."""

_READS_COMMANDS = names(
    "ed red ex vi vim nvim view rvim rview gvim vimdiff emacs joe jed pico gdb lldb lftp ftp sftp ncftp mail"
    " mailx mutt dc at batch crontab parallel smbclient telnet debugfs sqlmap msfconsole redis-cli mongosh"
    " mongo nc ncat socat tmux screen nsupdate ghci"
)
"""Programs that take commands from their input or their arguments, in languages that rules do not read."""

_SQL = names("sqlite3 psql mysql mariadb duckdb")
_SQL_READS = re.compile(
    r"\s*(?:select|insert|update|delete|create|explain|pragma|with|show|describe)\b[^\\!|]*", re.IGNORECASE
)
_SQL_RUNS = re.compile(
    r"\b(?:edit|load_extension|writefile|readfile|system|program)\b|^\s*[.\\]", re.IGNORECASE | re.MULTILINE
)
_STRING = re.compile(
    r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|`([^`]*)`|(?:\bqx|\bq|\bqq|%x)\s*[{(/\[|]([^})/\]|]*)", re.DOTALL
)
_MOST_STRINGS = 30
_SQL_OPTION = re.compile(r"-[ce].|-[fLo]|--(?:f|comm|exec|init|out|log|tee|pager|def|login)")
"""Options of psql and mysql with code attached, or whose value is a file."""
_SQLITE_FLAGS = names("-json -csv -header -noheader -readonly -line -column -box -table -markdown")
_INPUT = ("/dev/", "/proc/")


def language_of(name: str) -> str | None:
    """Return the name of the language whose interpreter a program is, without its version."""
    if name in _LANGUAGES:
        return name
    base = _VERSION.sub("", name)
    return base if base in _LANGUAGES else None


def reads_commands(name: str) -> bool:
    """Return whether a program takes commands of its own language, from its input or its arguments."""
    return name in _READS_COMMANDS or name in _SQL


def note_interpreter(name: str, words: tuple[Word, ...], result: Inner) -> None:
    """Note the code, the script or the input that an interpreter runs."""
    language = _LANGUAGES[name]
    index, operand, ends = 1, False, False
    while index < len(words):
        word = words[index]
        text = word.text
        following = words[index + 1] if index + 1 < len(words) else None
        index += 1
        if not word.literal:
            if not operand:
                result.spell([text], f"`{name}` runs what {text[:60]} stands for")
                result.runs_file = word
                return
        elif text == "-" or text.startswith(_INPUT):
            break
        elif text in _ENDS or text in language.ends:
            ends = True
        elif text.startswith("--") or text in language.long_code:
            option, mark, value = text.partition("=")
            if option in language.long_code:
                _code(name, option, value if mark else following, result)
                return
        elif text.startswith("-"):
            step = _letters(name, language, text, words[index:], result)
            if step is None:
                return
            index += step
        elif text in ("eval", "repl") and name in ("deno", "bun"):
            _code(name, text, following, result)
            return
        elif not (text in ("run", "test") and name in ("deno", "bun")) and not operand:
            operand = True
            result.runs_file = word
            if text.endswith(language.endings or ("",)):
                return
    else:
        if operand or ends:
            return
    result.doubts.append(f"`{name}` runs what it reads from its input")
    result.reads_script = True


def _letters(name: str, language: _Language, text: str, rest: Sequence[Word], result: Inner) -> int | None:
    """Read a cluster of options. Return how many more words it takes; None if all that follows belongs to code."""
    for position, letter in enumerate(text[1:], 2):
        value = text[position:]
        following = rest[0] if rest else None
        if letter in language.code:
            _code(name, f"-{letter}", value or following, result)
            return None
        if letter == language.module:
            module = value or (following.text if following is not None else "")
            if following is not None and not value and not following.literal:
                result.spell([module], f"`{name} -m` runs a module that is not known")
            elif module.partition(".")[0] in _CODE_MODULES:
                result.spell([module], f"the module {module} runs code")
                suspect_suffixes(rest, result)
                _strings(" ".join(word.text for word in rest), result)
            else:
                result.runs_files = True
            return None
        if name == "perl" and letter in "mM" and re.fullmatch(r"-?[\w:]*(?:=[\w,:]*)?", value) is None:
            _code(name, f"-{letter}", value, result)
        if letter == "i" and name in ("python", "pypy", "lua", "node"):
            result.doubts.append(f"`{name} -i` runs what it reads from its input")
            result.reads_script = True
        if letter in language.valued:
            return 0 if value else 1
        if name == "perl" and letter in "mMiFxDV":
            return 0
    return 0


def _code(name: str, option: str, value: Word | str | None, result: Inner) -> None:
    """Note code: rules do not read it, but those that restrict look at its texts."""
    result.spell([option], f"`{name} {option}` runs code that rules do not read")
    text = value.text if isinstance(value, Word) else value or ""
    result.hidden_scripts.append(text)
    _strings(text, result)


def _strings(code: str, result: Inner) -> None:
    """Let denials look at the texts in quotation marks of a program."""
    for match in islice(_STRING.finditer(code), _MOST_STRINGS):
        result.hidden_scripts.append(next(filter(None, match.groups()), ""))


def note_command_reader(name: str, words: tuple[Word, ...], result: Inner) -> None:
    """Doubt what a program that takes commands does, unless it is plain SQL."""
    if name in _SQL and _is_plain_sql(name, words):
        return
    result.doubts.append(f"`{name}` takes commands that rules do not read")
    result.reads_script = True
    suspect_suffixes(words[1:], result)
    for word in words[1:]:
        result.hidden_scripts += _commands_in(word.text)


def _commands_in(text: str) -> Iterator[str]:
    """Yield what follows a word that runs a command in editors, debuggers and SQL programs."""
    for line in text.splitlines():
        for match in re.finditer(r"[!|]|\bshell\b|\bsystem\b|\bexec\b", line):
            yield line[match.end() :]


def _is_plain_sql(name: str, words: Sequence[Word]) -> bool:
    """Return whether SQL stands in the arguments, and calls nothing."""
    if not all(word.literal for word in words):
        return False
    texts = [word.text for word in words[1:]]
    if name in ("sqlite3", "duckdb"):
        operands = [text for text in texts if text not in _SQLITE_FLAGS]
        if any(text.startswith("-") for text in operands):
            return False
        statements = operands[1:]
    else:
        if any(_SQL_OPTION.match(text) for text in texts):
            return False
        statements = [text for option, text in pairwise(texts) if option in ("-c", "-e", "-tAc")]
    return bool(statements) and all(_SQL_READS.fullmatch(text) and not _SQL_RUNS.search(text) for text in statements)
