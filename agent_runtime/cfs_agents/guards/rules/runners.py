"""Programs that run other commands, such as `timeout`, `xargs`, `sh -c` and `find -exec`. No I/O (A11)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cfs_agents.guards.rules.code_options import has_code_options, note_code
from cfs_agents.guards.rules.git import note_git
from cfs_agents.guards.rules.inner import Inner, suspect_suffixes
from cfs_agents.guards.rules.interpreters import language_of, note_command_reader, note_interpreter, reads_commands
from cfs_agents.guards.rules.variables import is_dangerous, may_be_option, note_names
from cfs_agents.guards.rules.words import SimpleCommand, Word, names, plain_words
from cfs_agents.guards.rules.written_files import note_writes

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash", "fish", "csh", "tcsh"})
_RESERVED = frozenset(
    {"{", "}", "(", "!", "if", "then", "elif", "else", "fi", "while", "until", "for", "do", "done", "case", "[["}
    | {"select", "function", "coproc", "time", "esac", "in", "(("}
)
_FREE = frozenset(
    {":", "true", "false", "exit", "return", "break", "continue", "cd", "pushd", "popd", "wait", "test", "[", "set"}
    | {"sleep", "pwd", "shift", "export", "declare", "local", "readonly", "typeset", "unset"}
)
"""Commands that do nothing by themselves. A rule can still ask about them or deny them."""

_CHANGES_COMMANDS = frozenset(
    {"alias", "unalias", "hash", "enable", "bind", "complete", "compgen", "shopt", "fc", "compopt"}
)
"""Builtins that change what later commands mean."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a program names the command: options with a value, those without, and arguments before the command."""

    valued: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    arguments: int = 0
    free: bool = False
    optional: frozenset[str] = frozenset()
    """Short options whose value, if there is one, stands in the same word."""


def _form(valued: str = "", flags: str = "", arguments: int = 0, *, free: bool = False, optional: str = "") -> _Form:
    return _Form(frozenset(valued.split()), frozenset(flags.split()), arguments, free, frozenset(optional.split()))


_FORMS = {
    "nice": _form("-n --adjustment", free=True),
    "nohup": _form(free=True),
    "time": _form("-f -o --format --output", "-p -v -a --portability --verbose --append", free=True),
    "timeout": _form("-s --signal -k --kill-after", "-v --verbose --foreground --preserve-status", 1, free=True),
    "stdbuf": _form("-i -o -e --input --output --error", free=True),
    "ionice": _form("-c -n --class --classdata", "-t --ignore", free=True),
    "setsid": _form("", "-f -w -c --fork --wait --ctty", free=True),
    "command": _form("", "-p", free=True),
    "builtin": _form(free=True),
    "exec": _form("-a", "-c -l", free=True),
    "env": _form("-u --unset -C --chdir", "-i -0 -v --ignore-environment --null --debug -", free=True),
    "xargs": _form(
        "-I -n -P -L -d -E -s -a --max-args --max-procs --delimiter --arg-file --max-chars",
        "-0 -r -t -p -x --null --no-run-if-empty --verbose --interactive --exit --open-tty -o"
        " --max-lines --replace --eof",
        optional="-i -l -e",
    ),
    "sudo": _form(
        "-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --chdir",
        "-A -b -E -e -H -i -K -k -l -n -P -S -s -V -v --non-interactive --preserve-env --login --shell --stdin",
    ),
    "doas": _form("-u -C", "-L -n -s"),
    "chrt": _form("", "-f -r -o -b -i", 1),
    "taskset": _form("", "", 1),
    "chroot": _form("", "", 1),
    "busybox": _form(),
    "toybox": _form(),
    "strace": _form("-e -o -p -s -u -a -P", "-f -ff -c -C -q -t -T -v -x -y -tt"),
    "ltrace": _form("-e -o -p -s -u", "-f -c -C -S"),
    "fakeroot": _form(),
    "chronic": _form(),
    "unbuffer": _form(),
    "faketime": _form("", "-f", 1),
}

_OPAQUE = names(
    "aa-exec ant aws-vault bazel bundle bwrap byobu capsh catchsegv cgexec choom concurrently conda cowsay"
    " cpulimit cross-env daemonize dbus-run-session direnv distcc docker dotenv dumb-init entr envdir fd"
    " fdfind firejail flatpak flock gdbserver gosu gradle grc hatch heaptrack hyperfine just linux32 linux64"
    " logsave ltrace make mamba mise mpiexec mpirun multitime mvn newgrp ninja nix nix-shell nodemon nox npm"
    " npx nsenter numactl openvt op parallel pdm perf pipenv pipx pixi pkexec pnpm podman poetry prlimit"
    " proxychains rake rlwrap rr run-mailcap run-parts runcon runuser rye sbt schedtool screen script scrot"
    " service setarch setlock setpriv sg snap softlimit srun ssh sshpass start-stop-daemon su su-exec"
    " systemd-inhibit systemd-run task tini tmux torify torsocks tox tshark unshare uv uvx valgrind watch"
    " watchexec wine xvfb-run yarn zathura kubectl doas gmake bmake ld-linux-x86-64.so.2 ld-linux-aarch64.so.1"
    " ld-linux.so.2 ld.so catch"
)
"""Programs that can run a command among their arguments, in forms that are not read: only denials look there."""

_PROJECT = names(
    "ant bazel bundle cargo cmake composer dotnet go gradle just make gmake bmake mvn ninja nox npm npx pnpm"
    " poetry pytest rake run-parts sbt task tox uv yarn bun deno hatch pdm pipenv gcc cc g++ clang docker"
    " podman"
)
"""Programs that run files of a project which their arguments need not name."""

_LONGEST_CACHED = 2_000


def inner(words: tuple[Word, ...]) -> Inner:
    """Return what a simple command runs. The result may be shared: do not change it."""
    return _cached(words) if sum(len(word.text) for word in words) <= _LONGEST_CACHED else _inner(words)


def inner_of(text: str) -> Inner | None:
    """Return what a command in its plainest form runs; None if its words must be read from the syntax tree."""
    return _cached_text(text) if len(text) <= _LONGEST_CACHED else None


@lru_cache(maxsize=1024)
def _cached_text(text: str) -> Inner | None:
    words = plain_words(text)
    return None if words is None else _inner(words)


@lru_cache(maxsize=1024)
def _cached(words: tuple[Word, ...]) -> Inner:
    return _inner(words)


def _inner(words: tuple[Word, ...]) -> Inner:
    first = words[0]
    name = first.text.rpartition("/")[2] if first.literal else ""
    bare = name == first.text
    result = Inner(SimpleCommand(words, free=bare and name in _FREE))
    if not first.literal:
        result.doubts.append(f"the name of the command is not known before it runs: {first.text[:80]}")
        suspect_suffixes(words[1:], result)
        return result
    if not name:
        result.doubts.append("a command without a name")
        return result
    if name in SHELLS:
        _shell(name, words, result)
    elif name in _FORMS:
        _wrapper(name, words, result)
    elif name == "eval":
        _text(name, words[1:], result)
    elif name == "trap":
        _text(name, words[2:3] if words[1:2] == (Word("--"),) else words[1:2], result)
    elif name == "find":
        _find(words, result)
    elif name in _RESERVED or name == "coproc":
        result.doubts.append(f"`{name}` where a command is expected")
        suspect_suffixes(words[1:], result)
    elif name in ("source", "."):
        if any(word.literal and word.text.startswith("/dev/") for word in words[1:]) or not words[1:2]:
            result.doubts.append(f"`{name}` runs text that is not known")
            result.reads_script = True
        elif words[1].literal:
            result.runs_file, result.shell = words[1], True
        if any(not word.literal for word in words[1:2]):
            result.doubts.append(f"`{name}` runs a file that is not known")
    elif name == "jobs" and words[1:]:
        suspect_suffixes(words[1:], result)
        result.doubts.append("`jobs` with options may run a command")
    elif name in _CHANGES_COMMANDS:
        result.doubts.append(f"`{name}` changes what later commands mean")
        result.hidden_scripts += [word.text.partition("=")[2] or word.text for word in words[1:]]
    elif name in _OPAQUE:
        suspect_suffixes(words[1:], result)
    if not bare and name not in SHELLS:
        result.runs_file, result.shell = first, True
    count = len(result.doubts)
    note_names(name, words, result)
    result.evaluates = len(result.doubts) > count
    if (language := language_of(name)) is not None:
        note_interpreter(language, words, result)
    if reads_commands(name):
        note_command_reader(name, words, result)
    if name == "git":
        note_git(words, result)
    note_code(name, words, result)
    note_writes(name, words, result)
    result.runs_files |= name in _PROJECT or name in _OPAQUE
    return result


def _text(name: str, words: Sequence[Word], result: Inner) -> None:
    """Judge words that a shell would run as a script."""
    text = " ".join(word.text for word in words)
    if all(word.literal for word in words):
        result.scripts.append(text)
    else:
        result.doubts.append(f"`{name}` runs text that is known only when it runs")
        result.hidden_scripts.append(text.strip('"'))
    result.command = SimpleCommand(result.command.words, free=True)


def _shell(name: str, words: tuple[Word, ...], result: Inner) -> None:
    for index, word in enumerate(words[1:], 1):
        if not word.literal:
            result.doubts.append(f"`{name}` gets arguments that are known only when it runs")
            suspect_suffixes(words[1:], result)
            return
        text = word.text
        if not text.startswith(("-", "+")) or text == "-":
            if text == "-" or text.startswith(("/dev/", "/proc/")):
                break
            result.runs_file, result.shell = word, True  # a program like others
            return
        if text.startswith("--") or set(text[1:]) - set("ceux"):
            if text == "-o" or text == "-s" or "c" not in text[1:] or text.startswith("--"):
                result.doubts.append(f"`{name} {text}` is not read by rules")
                suspect_suffixes(words[1:], result)
                result.reads_script = True
                return
            result.doubts.append(f"`{name} {text}` is not read by rules")
        if "c" in text[1:]:
            rest = words[index + 1 :]
            while rest and rest[0].literal and rest[0].text.startswith(("-", "+")):
                rest = rest[1:]
            _text(f"{name} {text}", rest[:1], result)
            suspect_suffixes(rest[1:], result)
            return
    result.doubts.append(f"`{name}` runs what it reads from its input")
    result.reads_script = True


def _wrapper(name: str, words: tuple[Word, ...], result: Inner) -> None:
    form = _FORMS[name]
    spelled = frozenset() if form.free else frozenset({name})
    result.command = SimpleCommand(words, spelled, free=form.free)
    if name == "command" and any(word.text in ("-v", "-V") for word in words[1:2]):
        result.command = SimpleCommand(words, free=True)
        return
    index, arguments, replaced = 1, form.arguments, ""
    while index < len(words):
        word = words[index]
        if not word.literal:
            break
        text = word.text
        if text == "--":
            index += 1
            continue
        if name == "env" and "=" in text and not text.startswith("-"):
            variable, _, value = text.partition("=")
            if is_dangerous(variable) or not variable.isidentifier():
                result.doubts.append(f"it sets {variable}")
                result.hidden_scripts.append(value)
            index += 1
            continue
        if text.startswith("-") and len(text) > 1:
            option, value, step = _split_option(text, form)
            if step:
                if step == 2:
                    value = words[index + 1].text if index + 1 < len(words) else ""
                if name == "xargs" and option in ("-I", "-i", "--replace"):
                    replaced = value or "{}"
                if name in ("sudo", "doas") and set(text[1:]) & set("sie"):
                    result.doubts.append(f"`{name} {text}` opens a shell or an editor")
                index += step
                continue
            result.doubts.append(f"`{name} {text}` is not read by rules")
            result.hidden_scripts.append(text.partition("=")[2] or text[2:])
            suspect_suffixes(words[index + 1 :], result)
            return
        if arguments:
            arguments -= 1
            index += 1
            continue
        break
    rest = words[index:]
    if not rest:
        if name not in ("env", "exec", "xargs", "time"):
            result.doubts.append(f"`{name}` without a command")
        return
    if name == "xargs":
        if rest[0].text.rpartition("/")[2] in SHELLS:
            result.reads_script = True
        rest = tuple(Word(word.text, word.literal and not (replaced and replaced in word.text)) for word in rest)
        if not replaced:
            rest = (*rest, Word("{}", literal=False))
    if rest[0].literal and rest[0].text in _RESERVED and name == "time":
        result.doubts.append("`time` before a compound command is not read by rules")
        suspect_suffixes(rest, result)
        return
    result.commands.append(rest)


def _split_option(text: str, form: _Form) -> tuple[str, str, int]:
    """Return the last option in a word, its value there, and how many words it takes: 0 if it is not known."""
    if text.startswith("--"):
        option, mark, value = text.partition("=")
        if option in form.valued:
            return option, value, 1 if mark else 2
        return option, value, 1 if option in form.flags else 0
    if re.fullmatch(r"-\d+", text) or text in form.flags:
        return text, "", 1
    for position, letter in enumerate(text[1:], 2):
        option, value = f"-{letter}", text[position:]
        if option in form.valued:
            return option, value, 1 if value else 2
        if option in form.optional:
            return option, value, 1
        if option not in form.flags:
            return option, value, 0
    return option, "", 1


def _find(words: tuple[Word, ...], result: Inner) -> None:
    rest = words
    if any(not word.literal and may_be_option(word) for word in words[1:]):
        result.doubts.append("`find` with an expression that is known only when it runs")
        suspect_suffixes(words[1:], result)
    while True:
        start = next((n for n, word in enumerate(rest) if word.text in ("-exec", "-execdir", "-ok", "-okdir")), None)
        if start is None:
            return
        rest = rest[start + 1 :]
        end = next((n for n, word in enumerate(rest) if word.text in (";", "+")), len(rest))
        if end:
            result.commands.append(
                tuple(Word(word.text, word.literal and "{}" not in word.text) for word in rest[:end])
            )
        rest = rest[end:]


def runs_anything(name: str) -> bool:
    """Return whether a program can run any command or code that its arguments name."""
    if name in ("git", "pytest", "cargo", "go", "dotnet", "pip", "apt", "systemctl"):
        return False  # what they run depends on the subcommand
    return (
        name in SHELLS | _OPAQUE
        or name in _FORMS
        or has_code_options(name)
        or reads_commands(name)
        or language_of(name) is not None
    )
