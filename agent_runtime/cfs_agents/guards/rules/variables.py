"""Variables and names that change what commands do, and the builtins that evaluate them. No I/O (A11)."""

import re
from collections.abc import Sequence
from itertools import pairwise

from cfs_agents.guards.rules.inner import Inner, suspect_suffixes
from cfs_agents.guards.rules.words import Word

_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})
_TAKES_NAMES = frozenset({"printf", "read", "unset", "mapfile", "readarray", "wait", "getopts"})
_EVALUATES_NAMES = _DECLARES | _TAKES_NAMES | {"test", "[", "let"}
"""Builtins that run `$(...)` in the subscript of a variable's name, even in single quotation marks."""

_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[(?!(?:\d+|@|\*)\])")
"""The start of a name with a subscript that is not a plain number."""
_QUOTED_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")


_DANGEROUS = re.compile(
    r"(?:PATH|LD_\w*|DYLD_\w*|BASH_ENV|ENV|IFS|CDPATH|SHELL|PROMPT_COMMAND|PS[0-4]|BASH_FUNC_.*|BASHOPTS|SHELLOPTS"
    r"|BASH_\w*|GLOBIGNORE|FIGNORE|EXECIGNORE|HOME|XDG_CONFIG_HOME|PYTHON(?:PATH|HOME|STARTUP|INSPECT|BREAKPOINT)"
    r"|PERL5\w*|RUBY\w*|NODE_\w*|GIT_\w*|\w*PAGER|EDITOR|VISUAL|BROWSER|LESS\w*|RIPGREP_CONFIG_PATH|GCONV_PATH"
    r"|MAKEFLAGS|MALLOC_\w*|SSH_ASKPASS|RUSTC\w*|CARGO_\w*|JAVA_TOOL_OPTIONS|npm_config_\w*|TAR_OPTIONS|UV_\w*|PIP_\w*"
    r"|RSYNC_\w*|CVS_RSH|SVN_SSH|SUDO_\w*|MAKEFILES|MANOPT|AWK\w*|VIMINIT|EXINIT|MYVIMRC|LUA_\w*|PHPRC|PHP_INI\w*"
    r"|PSQLRC|WGETRC|CURL_HOME|OPENSSL_CONF|ZDOTDIR|ZIPOPT|R_PROFILE\w*|R_ENVIRON\w*|JULIA_\w*|KUBE_EDITOR|DENO_\w*)"
)


def is_dangerous(variable: str) -> bool:
    """Return whether a variable changes which programs run, or what they do."""
    return _DANGEROUS.fullmatch(variable) is not None


def may_be_option(word: Word) -> bool:
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


def note_names(name: str, words: tuple[Word, ...], result: Inner) -> None:
    """Doubt names of variables that are evaluated, or that change which programs run."""
    if name not in _EVALUATES_NAMES:
        return
    unknown = [word for word in words[1:] if not word.literal and re.search(r"[$`]", word.text)]
    if name == "printf":
        names = words[1:3] if words[1:2] == (Word("-v"),) else words[1:2]
        unknown = [word for word in names if word in unknown and may_be_option(word)]
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
        suspect_suffixes(words[1:], result)
    if name in ("test", "[") and any(word.text in ("-v", "-R") for word in words[1:]):
        result.doubts.append(f"`{name} -v` evaluates a name")
