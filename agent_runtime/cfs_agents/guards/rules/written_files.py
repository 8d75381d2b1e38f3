"""Files that a script writes and then runs: what they do stands in the script itself, and is not read. No I/O (A11)."""

import re
from collections.abc import Mapping, Sequence

from cfs_agents.guards.rules.inner import Inner
from cfs_agents.guards.rules.words import SimpleCommand, Word, names

_WRITERS = names(
    "tee cp mv ln install dd curl wget sort sed sponge xxd shuf iconv perl ruby rsync scp uniq truncate link"
    " rename openssl gpg"
)
_UNPACKERS = names(
    "tar unzip gunzip gzip bunzip2 bzip2 unxz xz unzstd zstd cpio patch uudecode 7z 7za ar shar unshar split"
    " csplit busybox bsdtar gtar lz4 brotli"
)
"""Programs that write files which their arguments do not name."""

_DATA = re.compile(
    r".*\.(?:txt|log|md|rst|csv|tsv|out|err|html?|xml|diff|patch|dat|svg|png|jpe?g|gif|pdf|keep|gitkeep)",
    re.IGNORECASE,
)
_DATA_FOR_PROGRAMS = re.compile(r".*\.(?:json|jsonl|ya?ml|toml|lock|env)", re.IGNORECASE)
_SETTINGS = re.compile(r"(?:package|deno|composer|tsconfig)\.json|.*config.*|pyvenv.*")


_GIT_UNPACKS = names("apply am fast-import update-index checkout-index stash mv unpack-objects")
_GIT_FILES = frozenset({".git", "config", "HEAD", ".gitconfig", ".gitmodules", ".gitattributes"})


def note_writes(name: str, words: Sequence[Word], result: Inner) -> None:
    """Note the files that a command may write."""
    if name in _WRITERS:
        for word in words[1:]:
            text = word.text.rpartition("=")[2]
            result.writes.append(name_of(text))
            if text.startswith("-") and len(text) > 2:
                result.writes.append(name_of(text[2:]))
    if name in _UNPACKERS or (name == "git" and not _GIT_UNPACKS.isdisjoint(word.text for word in words)):
        result.unpacks = True


def name_of(path: str) -> str:
    """Return the last part of a path; `.git` for a path within it."""
    return ".git" if ".git" in path.split("/") else path.rstrip("/").rpartition("/")[2]


def runs_written(inner: Inner, writes: Mapping[str, int], *, unpacks: bool) -> str:
    """Return why a command may run a file that the same script writes; empty if it does not.

    `writes` says how many parts of the script write a file of a name.
    """
    name = inner.command.words[0].text.rpartition("/")[2]
    file = inner.runs_file
    runs = file is not None or inner.runs_files
    if not runs and name != "git" and name not in writes:
        return ""
    written = {other for other, count in writes.items() if other and count > (other in inner.writes)}
    if name == "git":
        return "" if _GIT_FILES.isdisjoint(written) else "`git` runs hooks and settings that the same script writes"
    if name in written and not inner.command.free:
        return f"it runs the program {name}, which the same script writes"
    if not runs:
        return ""
    if unpacks:
        return f"`{name}` may run a file that the same script unpacks"
    if file is not None and (not file.literal or name_of(file.text) in written):
        return f"it runs the file {file.text[:60]}, which the same script writes"
    code = (other for other in written if not _is_data(other, named=file is not None))
    other = next(code, None)
    return "" if other is None else f"`{name}` may run the file {other[:60]}, which the same script writes"


def _is_data(name: str, *, named: bool) -> bool:
    """Return whether a file is no code by its name, for a program whose own file is `named` or not."""
    if _DATA.fullmatch(name):
        return True
    return named and _DATA_FOR_PROGRAMS.fullmatch(name) is not None and _SETTINGS.fullmatch(name) is None


def spelled_of(inner: Inner) -> list[str]:
    """Return the words that a pattern must have to allow a command that runs a file of the same script."""
    return [inner.runs_file.text] if inner.runs_file is not None else [word.text for word in inner.command.words]


def with_reason(command: SimpleCommand, words: Sequence[str], reason: str) -> SimpleCommand:
    """Return a command that only patterns with these words allow; `reason` says why it cannot be read."""
    return SimpleCommand(command.words, command.spelled.union(words), command.free and not words, reason)
