"""Options of programs that run code or write files: a pattern must name them to allow them. No I/O (A11)."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cfs_agents.guards.rules.inner import Inner, scripts_in, suspect_suffixes
from cfs_agents.guards.rules.words import Word


class _Options(NamedTuple):
    """Options that run code, those that write a file, and the letters of others with a value, which end a cluster.

    Where several letters follow one dash, as in `-xvIPROGRAM`, each is an option, up to one with a value.
    """

    names: tuple[str, ...]
    valued: str = ""
    writes: tuple[str, ...] = ()


_REMOTE_SHELL = _Options(("-F", "-I", "-S", "-D"), "BbcEeiJLlmopQRWw")
_OPTIONS = {
    "tar": _Options(
        (
            *("--to-command", "--checkpoint-action", "-I", "--use-compress-program", "-F", "--info-script"),
            *("--new-volume-script", "--rsh-command", "--rmt-command"),
        ),
        "fCbgKNTVXHL",
    ),
    "rg": _Options(("--pre", "--hostname-bin")),
    "sort": _Options(("--compress-program",), "kStT", ("-o", "--output")),
    "split": _Options(("--filter",)),
    "rsync": _Options(("-e", "--rsh", "--rsync-path", "-M", "--remote-option"), "fTB"),
    "ssh": _Options(("-F", "-I"), "BbcDEeiJLlmopQRSWw"),
    "scp": _REMOTE_SHELL,
    "sftp": _Options((*_REMOTE_SHELL.names, "-b"), _REMOTE_SHELL.valued),
    "find": _Options((), "", ("-delete", "-fprint", "-fprint0", "-fprintf", "-fls")),
    "man": _Options(("-P", "--pager", "-H", "--html"), "CRLmMSserEpTX"),
    "zip": _Options(("-TT", "--unzip-command")),
    "cpio": _Options(("--rsh-command",)),
    "cmake": _Options(("-P", "-E"), "SBCDUGTA"),
    "pytest": _Options(("-c", "--rootdir", "-p"), "kmnor"),
    "curl": _Options(
        ("-K", "--config", "--engine"),
        "HdAXubFxUmEwyYzrQtCce",
        ("-o", "-O", "--output", "--remote-name", "-T", "--upload-file"),
    ),
    "wget": _Options(("--use-askpass", "-e", "--execute", "--config")),
    "make": _Options(("--eval", "-E", "-f", "--file", "--makefile", "-C", "SHELL"), "IoWjl"),
    "sed": _Options(("-f", "--file"), "", ("-i", "--in-place")),
    "pandoc": _Options(("-F", "--filter", "-L", "--lua-filter", "--pdf-engine")),
    "tcpdump": _Options(("-z", "--postrotate-command")),
    "gcc": _Options(("-wrapper", "-specs", "-fplugin", "-B")),
    "nmap": _Options(("--script",)),
    "apt-get": _Options(("-o", "--option", "-c", "--config-file")),
    "dmesg": _Options(("-H", "--human")),
    "less": _Options(("-k",), "bhjpPtTxyz", ("-o", "-O")),
}
_OPTIONS |= {
    **dict.fromkeys(("gtar", "bsdtar"), _OPTIONS["tar"]),
    **dict.fromkeys(("gmake", "bmake"), _OPTIONS["make"]),
    **dict.fromkeys(("cc", "c++", "g++", "clang"), _OPTIONS["gcc"]),
    "apt": _OPTIONS["apt-get"],
}
_AWK = frozenset({"awk", "gawk", "mawk", "nawk", "original-awk"})
_AWK_EFFECT = re.compile(r"system|getline|[|>@]|-f|close|-i|-l|load|^-E|--exec|--include")
_SED = re.compile(
    r"(?:(?:\d+|\$|/(?:[^/\\\n]|\\.)*/)(?:,(?:\d+|\$|/(?:[^/\\\n]|\\.)*/))?)?!?[pdq=]"
    r"|(?:\d+|\$)?s(?P<s>[/|#,:])(?:(?!(?P=s))[^\\\n]|\\.)*(?P=s)(?:(?!(?P=s))[^\\\n]|\\.)*(?P=s)[gpiI0-9]*",
    re.DOTALL,
)
_SSH_COMMAND = re.compile(r"command|provider|include|xauth", re.IGNORECASE)
"""Settings of ssh that name a program."""


def note_code(name: str, words: tuple[Word, ...], result: Inner) -> None:
    """Note the options that a pattern must name to allow the command, and scripts in their values."""
    if (options := _OPTIONS.get(name)) is not None:
        note_options(words, options.names, options.valued, result, options.writes)
    if name in ("tar", "gtar", "bsdtar"):
        _old_tar(words, result)
    elif name in ("ssh", "scp", "sftp"):
        _ssh(words, result)
    elif name in _AWK:
        _awk(name, words, result)
    elif name == "sed" and not _is_plain_sed(words[1:]):
        result.doubts.append("`sed` with this script can run commands or write files")
        result.hidden_scripts += [
            part for word in words[1:] for part in re.findall(r"(?:^|[\d/$;])e\s+(.*)", word.text)
        ]
    elif name in ("make", "gmake", "bmake"):
        _makefile(name, words, result)
    elif name == "tee":
        result.spell(["tee"])


def note_options(
    words: Sequence[Word], runs: Sequence[str], valued: str, result: Inner, writes: Sequence[str] = ()
) -> None:
    """Note which of the words are options that run code or write files.

    They may be abbreviated, have a value attached, or stand in a cluster.
    """
    names = (*runs, *writes)
    letters = {name[1]: name for name in names if len(name) == 2}
    for index, word in enumerate(words[1:], 1):
        text = word.text
        if text[:1] != "-":
            if text.partition("=")[0] in names:
                result.spell([text.partition("=")[0]])
                result.hidden_scripts += scripts_in(text)
                result.runs_files = True
            continue
        option, mark, value = text.partition("=")
        if option in names or (text.startswith("--") and len(option) > 4):
            matches = [name for name in names if name == option or (option[:2] == "--" and name.startswith(option))]
            result.spell(matches)
        elif text.startswith("--"):
            continue
        else:
            matches, value = _in_cluster(text, letters, valued)
            result.spell(matches)
            mark = value
        matches = [match for match in matches if match in runs]
        result.runs_files |= bool(matches)
        if matches and mark:
            result.hidden_scripts += scripts_in(value)
        elif matches and index + 1 < len(words):
            result.hidden_scripts += scripts_in(words[index + 1].text)
            result.hidden.append(tuple(words[index + 1 :]))


def _in_cluster(text: str, letters: Mapping[str, str], valued: str) -> tuple[list[str], str]:
    """Return the options of a cluster of letters that run code, and what follows the last of them."""
    matches, value = [], ""
    for position, letter in enumerate(text[1:], 2):
        if (name := letters.get(letter)) is not None:
            matches.append(name)
            value = text[position:]
        elif letter in valued:
            break
    return matches, value


def _old_tar(words: Sequence[Word], result: Inner) -> None:
    """Note the options of `tar cIf PROGRAM FILE`: letters without a dash, whose values follow."""
    if len(words) < 2 or words[1].text.startswith("-") or not words[1].literal:
        return
    if matches := [f"-{letter}" for letter in words[1].text if letter in "IF"]:
        result.spell(matches)
        result.runs_files = True
        suspect_suffixes(words[2:], result)


def _ssh(words: Sequence[Word], result: Inner) -> None:
    for index, word in enumerate(words[1:], 1):
        match = re.fullmatch(r"-[^-o]*o(.*)", word.text, re.DOTALL)
        if match is None:
            continue
        value = match[1] or "".join(following.text for following in words[index + 1 : index + 2])
        if _SSH_COMMAND.search(value) or "$" in value or "`" in value:
            result.spell(["-o"])
            result.hidden_scripts += [*scripts_in(value), value.partition(" ")[2]]


def _makefile(name: str, words: Sequence[Word], result: Inner) -> None:
    """Note the file of `make -f`."""
    for index, word in enumerate(words[1:], 1):
        match = re.fullmatch(r"(?:-[^-]*?f|--(?:make)?file=?)(.*)", word.text, re.DOTALL)
        if match is None:
            continue
        file = Word(match[1], word.literal) if match[1] else (*words[index + 1 :], Word("-"))[0]
        if file.text == "-" or file.text.startswith(("/dev/", "/proc/")):
            result.doubts.append(f"`{name}` runs what it reads from its input")
            result.reads_script = True
        else:
            result.runs_file = file


def _awk(name: str, words: Sequence[Word], result: Inner) -> None:
    texts = [word.text for word in words[1:]]
    if all(word.literal for word in words) and not any(map(_AWK_EFFECT.search, texts)):
        return
    result.doubts.append(f"`{name}` can run commands and write files")
    result.hidden_scripts += [part for text in texts for part in re.findall(r'"([^"]*)"', text)]


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


def has_code_options(name: str) -> bool:
    """Return whether a program has options that run code, or runs code as a language."""
    return name in _OPTIONS or name in _AWK
