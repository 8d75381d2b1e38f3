"""The words of a shell script, without their quotation marks, and the simple commands made of them. No I/O (A11)."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from tree_sitter import Node

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_ANSI = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|c(.)|(.))", re.DOTALL
)
_ANSI_LETTERS = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PLAIN_WORD = re.compile(
    r"""([A-Za-z0-9_./:,@%+-]+)|('[^'\n]*'|"[^"$`\\!\n]*")"""
    r"""|("[^"$`\\!\n]*(?:\$[A-Za-z_]\w*[^"$`\\!\n]*)+"|\$[A-Za-z_]\w*)""",
    re.ASCII,
)
_PLAIN_COMMAND = re.compile(rf"(?:{_PLAIN_WORD.pattern})(?: +(?:{_PLAIN_WORD.pattern}))*", re.ASCII)
_SPECIAL = re.compile(r"(?<!\\)(?:\\\\)*[*?\[]|\{.*(?:,|\.\.)|^[~]|^[+@!?*]\(|[=:]~")


class Word(NamedTuple):
    """A word. `literal` is false if its text is known only when the script runs: expansions and file name patterns."""

    text: str
    literal: bool = True


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A simple command. `spelled` are words that a pattern must have to allow it, because they change what it does.

    `free` commands do nothing by themselves, and need no rule of their own. `unread` says why rules cannot know what it
    runs: it is asked where no rule allows it with all that is `spelled`.
    """

    words: tuple[Word, ...]
    spelled: frozenset[str] = frozenset()
    free: bool = False
    unread: str = ""

    @property
    def text(self) -> str:
        """The words in one line."""
        return " ".join(word.text for word in self.words)


def names(text: str) -> frozenset[str]:
    """Return the set of the names in a text."""
    return frozenset(text.split())


def text_of(node: Node) -> str:
    """Return the source of a node."""
    data = node.text
    return "" if data is None else data.decode("utf-8", "surrogateescape")


def plain_words(text: str) -> tuple[Word, ...] | None:
    """Return the words of a simple command as `word_of` does, without its nodes; None if one has another form.

    It reads most commands in a tenth of the time: plain words, quotation marks without an expansion, and `$name`.
    """
    if _PLAIN_COMMAND.fullmatch(text) is None:
        return None
    return tuple(
        Word(plain or quoted[1:-1]) if not expansion else Word(expansion, literal=False)
        for plain, quoted, expansion in _PLAIN_WORD.findall(text)
    )


def word_of(node: Node) -> Word:
    """Return the word of a node."""
    kind = node.type
    if kind in ("word", "number", "variable_name", "special_variable_name"):
        text = text_of(node)
        if kind == "number" and node.child_count:
            return Word(text, literal=False)
        literal = text.isalnum() or _SPECIAL.search(text) is None
        return Word(_ESCAPED.sub(lambda match: match[1].strip("\n"), text) if "\\" in text else text, literal)
    if kind == "command_name" and node.child_count == 1:
        return word_of(node.children[0])
    if kind == "raw_string":
        return Word(text_of(node)[1:-1])
    if kind == "ansi_c_string":
        return _ansi(text_of(node)[2:-1])
    if kind == "string":
        if any(child.type not in ('"', "string_content") for child in node.children):
            return Word(text_of(node), literal=False)
        return Word(_IN_QUOTES.sub(lambda match: match[1].strip("\n"), text_of(node)[1:-1]))
    if kind in ("concatenation", "command_name"):
        words = [word_of(child) for child in node.children]
        text = "".join(word.text for word in words)
        # Braces that make several words are words of their own here.
        # `{name}>file` opens a descriptor, and is no argument.
        braces = "{" in text and ("," in text or ".." in text or (text[0] == "{" and text[-1] == "}" and len(text) > 2))
        return Word(text, all(word.literal for word in words) and not braces)
    return Word(text_of(node), literal=False)


def _ansi(text: str) -> Word:
    def decoded(match: re.Match[str]) -> str:
        octal, byte, short, long, control, letter = match.groups()
        if octal is not None:
            return chr(int(octal, 8) & 0xFF)
        if (code := byte or short or long) is not None:
            return chr(min(int(code, 16), 0x10FFFF))
        if control is not None:
            return chr(ord(control) & 0x1F)
        return _ANSI_LETTERS.get(letter, letter if letter in "\\'\"?" else f"\\{letter}")

    result = _ANSI.sub(decoded, text)
    return Word(result, literal="\0" not in result and result.isascii() and result.isprintable())
