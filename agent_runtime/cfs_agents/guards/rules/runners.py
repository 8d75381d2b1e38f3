"""Programs that run other commands, such as `timeout`, `xargs`, `sh -c` and `find -exec`. No I/O (A11)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cfs_agents.guards.rules.words import Command, Word

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

_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})
_TAKES_NAMES = frozenset({"printf", "read", "unset", "mapfile", "readarray", "wait", "getopts"})
_EVALUATES_NAMES = _DECLARES | _TAKES_NAMES | {"test", "[", "let"}
"""Builtins that run `$(...)` in the subscript of a variable's name, even in single quotation marks."""

_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[(?!(?:\d+|@|\*)\])")
"""The start of a name with a subscript that is not a plain number."""
_QUOTED_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")


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

_OPAQUE = frozenset(
    {"parallel", "ssh", "docker", "podman", "kubectl", "tmux", "screen", "entr", "watch", "script", "su", "runuser"}
    | {
        "unshare",
        "nsenter",
        "setpriv",
        "bwrap",
        "firejail",
        "systemd-run",
        "flock",
        "at",
        "batch",
        "npx",
        "uvx",
        "pipx",
    }
    | {"uv", "poetry", "pdm", "hatch", "conda", "mamba", "bundle", "direnv", "mise", "npm", "pnpm", "yarn", "bun"}
    | {"proxychains", "torsocks", "xvfb-run", "dbus-run-session", "gdb", "valgrind", "perf", "expect", "socat", "nc"}
    | {"make", "fd", "fdfind", "vim", "vi", "ed", "ex", "emacs", "nix", "nix-shell", "start-stop-daemon", "daemonize"}
    | {"crontab", "doas", "pkexec", "setarch", "linux32", "linux64", "prlimit", "capsh", "sg", "newgrp", "run-parts"}
)
"""Programs that can run a command among their arguments, in forms that are not read: only denials look there."""

_CODE = {
    **dict.fromkeys(("python", "python2", "python3", "pypy3"), ("-c",)),
    **dict.fromkeys(("perl", "ruby", "lua", "osascript", "Rscript"), ("-e", "-E")),
    **dict.fromkeys(("node", "nodejs", "deno", "bun"), ("-e", "-p", "--eval", "--print", "eval", "-pe")),
    "php": ("-r",),
    "tar": (
        "--to-command",
        "--checkpoint-action",
        "-I",
        "--use-compress-program",
        "-F",
        "--info-script",
        "--rsh-command",
    ),
    "git": (
        *("-c", "--config-env", "--exec-path", "--upload-pack", "--receive-pack", "-x", "--exec", "-O", "--output"),
        *("--open-files-in-pager", "--ext-diff", "--extcmd", "--tree-filter", "--index-filter", "--msg-filter"),
    ),
    "rg": ("--pre",),
    "sort": ("--compress-program", "-o", "--output"),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "find": ("-delete", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "vim": ("-c", "--cmd", "-S"),
    "man": ("-P", "--pager", "-H"),
    "zip": ("-TT", "--unzip-command"),
    "cmake": ("-P", "-E"),
    "pytest": ("-c", "--rootdir"),
    "curl": ("-o", "-O", "--output", "--remote-name", "-K", "--config", "-T", "--upload-file"),
    "wget": ("--use-askpass", "-e", "--execute"),
    "make": ("--eval", "-f", "-C", "SHELL"),
    "sed": ("-i", "--in-place", "-f", "--file"),
}
"""Options that run code or a program, or write a file: a pattern must name them to allow them."""

_GIT_RUNS = {("bisect", "run"), ("submodule", "foreach")}
_AWK = frozenset({"awk", "gawk", "mawk", "nawk"})
_AWK_EFFECT = re.compile(r"system|getline|[|>@]|-f|close|-i|load")
_SED = re.compile(
    r"(?:(?:\d+|\$|/(?:[^/\\\n]|\\.)*/)(?:,(?:\d+|\$|/(?:[^/\\\n]|\\.)*/))?)?!?[pdq=]"
    r"|(?:\d+|\$)?s(?P<s>[/|#,:])(?:(?!(?P=s))[^\\\n]|\\.)*(?P=s)(?:(?!(?P=s))[^\\\n]|\\.)*(?P=s)[gpiI0-9]*",
    re.DOTALL,
)

_DANGEROUS = re.compile(
    r"(?:PATH|LD_\w*|DYLD_\w*|BASH_ENV|ENV|IFS|CDPATH|SHELL|PROMPT_COMMAND|PS[0-4]|BASH_FUNC_.*|BASHOPTS|SHELLOPTS"
    r"|BASH_\w*|GLOBIGNORE|FIGNORE|EXECIGNORE|HOME|XDG_CONFIG_HOME|PYTHON(?:PATH|HOME|STARTUP|INSPECT|BREAKPOINT)"
    r"|PERL5\w*|RUBY\w*|NODE_\w*|GIT_\w*|\w*PAGER|EDITOR|VISUAL|BROWSER|LESS\w*|RIPGREP_CONFIG_PATH|GCONV_PATH"
    r"|MAKEFLAGS|MALLOC_\w*|SSH_ASKPASS|RUSTC\w*|CARGO_\w*|JAVA_TOOL_OPTIONS|npm_config_\w*|TAR_OPTIONS|UV_\w*|PIP_\w*)"
)


def is_dangerous(variable: str) -> bool:
    """Return whether a variable changes which programs run, or what they do."""
    return _DANGEROUS.fullmatch(variable) is not None


@dataclass(slots=True)
class Inner:
    """What a command runs: other commands, texts that are scripts, and what only a denial looks at.

    `doubts` say why its effects are not known. `directory` is where it changes to; None if it does not.
    """

    command: Command
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    hidden: list[tuple[Word, ...]] = field(default_factory=list)
    hidden_scripts: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    reads_script: bool = False
    evaluates: bool = False


def inner(words: tuple[Word, ...]) -> Inner:
    """Return what a simple command runs."""
    first = words[0]
    name = first.text.rpartition("/")[2] if first.literal else ""
    bare = name == first.text
    result = Inner(Command(words, free=bare and name in _FREE))
    if not first.literal:
        result.doubts.append(f"the name of the command is not known before it runs: {first.text[:80]}")
        _suffixes(words[1:], result)
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
        _suffixes(words[1:], result)
    elif name in ("source", "."):
        if any(word.literal and word.text.startswith("/dev/") for word in words[1:]) or not words[1:2]:
            result.doubts.append(f"`{name}` runs text that is not known")
            result.reads_script = True
        if any(not word.literal for word in words[1:2]):
            result.doubts.append(f"`{name}` runs a file that is not known")
    elif name == "jobs" and words[1:]:
        _suffixes(words[1:], result)
        result.doubts.append("`jobs` with options may run a command")
    elif name in _CHANGES_COMMANDS:
        result.doubts.append(f"`{name}` changes what later commands mean")
        result.hidden_scripts += [word.text.partition("=")[2] or word.text for word in words[1:]]
    elif name in _OPAQUE:
        _suffixes(words[1:], result)
    if name in _EVALUATES_NAMES:
        count = len(result.doubts)
        _names(name, words, result)
        result.evaluates = len(result.doubts) > count
    _code(name, words, result)
    return result


def _suffixes(words: Sequence[Word], result: Inner) -> None:
    """Let denials look for a command that begins at any word, and in words that are scripts."""
    for start in range(min(len(words), 40)):
        result.hidden.append(tuple(words[start:]))
        if any(mark in words[start].text for mark in " ;|&\n"):
            result.hidden_scripts.append(words[start].text)


def _text(name: str, words: Sequence[Word], result: Inner) -> None:
    """Judge words that a shell would run as a script."""
    text = " ".join(word.text for word in words)
    if all(word.literal for word in words):
        result.scripts.append(text)
    else:
        result.doubts.append(f"`{name}` runs text that is known only when it runs")
        result.hidden_scripts.append(text.strip('"'))
    result.command = Command(result.command.words, free=True)


def _shell(name: str, words: tuple[Word, ...], result: Inner) -> None:
    for index, word in enumerate(words[1:], 1):
        if not word.literal:
            result.doubts.append(f"`{name}` gets arguments that are known only when it runs")
            _suffixes(words[1:], result)
            return
        text = word.text
        if not text.startswith(("-", "+")) or text == "-":
            if text == "-" or text.startswith(("/dev/", "/proc/")):
                break
            return  # a script in a file: a program like others
        if text.startswith("--") or set(text[1:]) - set("ceux"):
            if text == "-o" or text == "-s" or "c" not in text[1:] or text.startswith("--"):
                result.doubts.append(f"`{name} {text}` is not read by rules")
                _suffixes(words[1:], result)
                result.reads_script = True
                return
            result.doubts.append(f"`{name} {text}` is not read by rules")
        if "c" in text[1:]:
            rest = words[index + 1 :]
            while rest and rest[0].literal and rest[0].text.startswith(("-", "+")):
                rest = rest[1:]
            _text(f"{name} {text}", rest[:1], result)
            _suffixes(rest[1:], result)
            return
    result.doubts.append(f"`{name}` runs what it reads from its input")
    result.reads_script = True


def _wrapper(name: str, words: tuple[Word, ...], result: Inner) -> None:
    form = _FORMS[name]
    spelled = frozenset() if form.free else frozenset({name})
    result.command = Command(words, spelled, free=form.free)
    if name == "command" and any(word.text in ("-v", "-V") for word in words[1:2]):
        result.command = Command(words, free=True)
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
            _suffixes(words[index + 1 :], result)
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
        _suffixes(rest, result)
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
    if any(not word.literal and _may_be_option(word) for word in words[1:]):
        result.doubts.append("`find` with an expression that is known only when it runs")
        _suffixes(words[1:], result)
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


def _may_be_option(word: Word) -> bool:
    """Return whether the value of an expansion can begin the word, or be several words."""
    return word.text.lstrip('"')[:1] in ("$", "`", "{", "-")


def _is_split(words: Sequence[Word]) -> bool:
    """Return whether one of the words can be several when the command runs."""
    return any(
        not word.literal and word.text[:1] in ("$", "`", "{") and word.text not in ("$#", "$?", "$$", "$!", "${#}")
        for word in words
    )


def _is_operator_unknown(words: Sequence[Word]) -> bool:
    """Return whether a word of `test` can be an operator with one operand."""
    before = "!"
    for word, after in pairwise(words):
        starts = before in ("!", "(", "-a", "-o")
        if starts and not word.literal and re.fullmatch(r"[!=]?=|[<>]|-[a-z][a-z]", after.text) is None:
            return True
        before = word.text
    return False


def _names(name: str, words: tuple[Word, ...], result: Inner) -> None:
    """Doubt names of variables that are evaluated, or that change which programs run."""
    unknown = [word for word in words[1:] if not word.literal and re.search(r"[$`]", word.text)]
    if name == "printf":
        names = words[1:3] if words[1:2] == (Word("-v"),) else words[1:2]
        unknown = [word for word in names if word in unknown and _may_be_option(word)]
    else:
        names = words[1:]
    if unknown and name in _TAKES_NAMES:
        result.doubts.append(f"`{name}` with a name that is known only when it runs: {unknown[0].text[:60]}")
    if any(_SUBSCRIPT.match(word.text.removeprefix("-v")) for word in names) and name not in ("test", "["):
        result.doubts.append(f"`{name}` evaluates the subscript of an array")
    if name in _DECLARES:
        if any(re.match(r"-\w*[in]", word.text) for word in words[1:]):
            result.doubts.append(f"`{name} -i` and `-n` evaluate what is assigned")
        if any(not word.literal and re.search(r"[$`{]", word.text.partition("=")[0]) for word in words[1:]):
            result.doubts.append(f"`{name}` of a name that is known only when it runs")
    if name == "test" and (_is_split(words[1:]) or _is_operator_unknown(words[1:])):
        result.doubts.append("`test` of a value that can be more than one word, or an operator")
    if name == "let":
        result.doubts.append("`let` evaluates text")
    for word in words[1:]:
        if "$(" in word.text or "`" in word.text:
            if word.literal:
                result.doubts.append(f"`{name}` may run what stands in {word.text[:60]}")
                result.hidden_scripts += ["".join(parts) for parts in _QUOTED_SUBSTITUTION.findall(word.text)]
        elif is_dangerous(re.split(r"[\[=]", word.text.removeprefix("-v"), maxsplit=1)[0]) and name not in (
            "test",
            "[",
        ):
            result.doubts.append(f"`{name}` changes {word.text.partition('=')[0]}")
    if name in ("mapfile", "readarray") and any(re.match(r"-[^-]*C", word.text) for word in words):
        result.doubts.append(f"`{name} -C` runs a command")
        _suffixes(words[1:], result)
    if name in ("test", "[") and any(word.text in ("-v", "-R") for word in words[1:]):
        result.doubts.append(f"`{name} -v` evaluates a name")


def _code(name: str, words: tuple[Word, ...], result: Inner) -> None:
    """Note the options that a pattern must name to allow the command, and scripts in their values."""
    options = _CODE.get(name, ())
    if not options and name not in _AWK and name not in ("sed", "tee"):
        return
    spelled = set(result.command.spelled)
    for index, word in enumerate(words[1:], 1):
        if options and (word.text[:1] == "-" or word.text.partition("=")[0] in options):
            _option(index, words, options, spelled, result)
    texts = [word.text for word in words[1:]]
    if name == "git":
        for pair in _GIT_RUNS:
            if set(pair) <= set(texts):
                spelled.update(pair)
                after = words[2 + max(texts.index(part) for part in pair) :]
                _suffixes(after, result)
        if any(not word.literal for word in words[1:2]):
            spelled.add(words[1].text)
    if name in _AWK and (not all(word.literal for word in words) or any(map(_AWK_EFFECT.search, texts))):
        result.doubts.append(f"`{name}` can run commands and write files")
        result.hidden_scripts += [part for text in texts for part in re.findall(r'"([^"]*)"', text)]
    if name == "sed" and not _is_plain_sed(words[1:]):
        result.doubts.append("`sed` with this script can run commands or write files")
        result.hidden_scripts += [part for text in texts for part in re.findall(r"(?:^|[\d/$;])e\s+(.*)", text)]
    if name == "tee":
        spelled.add("tee")
    if spelled != result.command.spelled:
        result.command = Command(result.command.words, frozenset(spelled), result.command.free and not spelled)


def _option(index: int, words: tuple[Word, ...], options: Sequence[str], spelled: set[str], result: Inner) -> None:
    """Note which of the options a word is."""
    text = words[index].text
    for option in options:
        attached = text.startswith(f"{option}=") or (len(option) == 2 and text.startswith(option))
        if text != option and not attached and not _abbreviates(text, option):
            continue
        spelled.add(option)
        if text != option:
            _value(text.partition("=")[2] or text[2:], result)
        elif index + 1 < len(words):
            _value(words[index + 1].text, result)
            result.hidden.append(words[index + 1 :])


def _abbreviates(text: str, option: str) -> bool:
    name = text.partition("=")[0]
    return len(name) > 4 and name.startswith("--") and option.startswith(name)


def _value(text: str, result: Inner) -> None:
    """Let denials look at the value of an option: a command, or one behind `name=` and `!`."""
    for part in _scripts_in(text):
        result.hidden_scripts.append(part)


def _scripts_in(text: str) -> Iterator[str]:
    yield text
    while "=" in text or text.startswith("!"):
        text = text[1:] if text.startswith("!") else text.partition("=")[2]
        yield text
    if text and not text.startswith("git"):
        yield f"git {text}"  # the value of an alias


def _is_plain_sed(words: Sequence[Word]) -> bool:
    """Return whether the script of sed only prints, deletes and substitutes."""
    scripts, rest = [], list(words)
    positional = True
    while rest:
        word = rest.pop(0)
        if word.text in ("-e", "--expression") and rest:
            scripts.append(rest.pop(0))
            positional = False
        elif re.fullmatch(r"-[nErszu]+|--quiet|--regexp-extended|-i\S*|--in-place(=\S*)?", word.text):
            continue
        elif word.text.startswith("-"):
            return False
        elif positional:
            scripts.append(word)
            positional = False
    return bool(scripts) and all(
        word.literal and all(_SED.fullmatch(part.strip()) for part in re.split(r"(?<=[a-zA-Z0-9/|#,:]);", word.text))
        for word in scripts
    )


def runs_anything(name: str) -> bool:
    """Return whether a program can run any command or code that its arguments name."""
    return name in SHELLS | _OPAQUE | _AWK or name in _FORMS or (name in _CODE and name not in ("git", "pytest"))
