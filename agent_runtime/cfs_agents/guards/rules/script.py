"""What a shell script would run: each simple command wherever it hides, and what cannot be known. No I/O (A11)."""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from cfs_agents.guards.rules.inner import Inner
from cfs_agents.guards.rules.runners import inner, inner_of
from cfs_agents.guards.rules.variables import is_dangerous
from cfs_agents.guards.rules.words import SimpleCommand, Word, text_of, word_of
from cfs_agents.guards.rules.written_files import name_of, runs_written, spelled_of, with_reason

_LANGUAGE = Language(tree_sitter_bash.language())
_LONGEST = 100_000
_LONGEST_CACHED = 20_000
_DEEPEST = 60
_MOST_SCRIPTS = 200
_MOST_QUOTED = 20
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]")
_CONTINUED = re.compile(r"[^\s\\](?:\\\\)*\\\n|\\\n[^\S\n]*\\\n")
_NUMBERS = re.compile(r"(?:\$?\(\(|\$\[)?[\d\s+\-*/%()<>=!&|^~?:,]*\]?")
_SUBSTITUTION = re.compile(rb"[$<>]\(|\$\[|`")
_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution", "arithmetic_expansion"})

_STRUCTURE = frozenset(
    {"program", "list", "pipeline", "subshell", "if_statement", "elif_clause", "else_clause", "while_statement"}
    | {"do_group", "negated_command", "command_substitution", "process_substitution", "case_statement", "case_item"}
    | {"for_statement", "function_definition", "compound_statement", "redirected_statement", "variable_assignments"}
)
_PLAIN_STRUCTURE = _STRUCTURE - {"compound_statement", "for_statement", "program", "redirected_statement"}
"""Parts of which only the parts count."""

_WORDS = frozenset(
    {"word", "number", "raw_string", "ansi_c_string", "string", "concatenation", "simple_expansion", "expansion"}
    | {"variable_name", "special_variable_name", "string_content", "regex", "extglob_pattern", "test_operator"}
    | {"arithmetic_expansion", "translated_string", "command_name", "array", "subscript", "heredoc_content"}
    | {"heredoc_start", "heredoc_end", "file_descriptor", "brace_expression"}
)
_NAMES = frozenset({"word", "variable_name"})
"""Parts without parts."""

_EXPANSION = frozenset(
    {
        "${",
        "}",
        "variable_name",
        "special_variable_name",
        "#",
        "%",
        "%%",
        "##",
        ":-",
        "-",
        ":+",
        "+",
        ":?",
        "?",
        "/",
        "//",
    }
    | {"word", "regex", "string", "raw_string", "number", "concatenation", "simple_expansion", "expansion", "^", "^^"}
    | {",", ",,", "/#", "/%", "command_substitution", "subscript"}
)
_TESTS = frozenset({"test_command", "binary_expression", "unary_expression", "parenthesized_expression"})
_ARITHMETIC_TEST = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_DESCRIPTORS = re.compile(r"\d+-?|-")
_PLAIN_REDIRECTION = re.compile(r"\d?(?:(>>|>\||>|<|&>>|&>) ?([A-Za-z_/.][A-Za-z0-9_./-]*)|[<>]&(\d))", re.ASCII)
_DUPLICATE = frozenset({">&", "<&", ">&-", "<&-"})
_ARGUMENTS = frozenset(
    {"word", "number", "raw_string", "ansi_c_string", "string", "concatenation", "simple_expansion", "expansion"}
    | {"command_substitution"}
)
_MOVES = frozenset({"cd", "pushd", "popd"})
_NOWHERE = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"})


@dataclass(frozen=True, slots=True)
class Redirection:
    """A file that a redirection opens, in one of the directories in which the shell may be by then."""

    path: str
    writes: bool


@dataclass(slots=True)
class ParsedScript:
    """What a script would run.

    - `commands`: the simple commands, those that others run included.
    - `hidden`: what may be a command; only rules that restrict look at it.
    - `redirections`: files that it opens; their paths are relative to the directory `directories` names.
    - `doubts`: why rules cannot know all that it does. It is never allowed then.
    - `directories`: literal targets of `cd`, in their order.
    """

    commands: list[SimpleCommand] = field(default_factory=list)
    hidden: list[SimpleCommand] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)


def analyse(text: str) -> ParsedScript:
    """Return what a script would run. Takes any text. The result may be shared: do not change it."""
    return _cached(text) if len(text) <= _LONGEST_CACHED else _analyse(text)


@lru_cache(maxsize=128)
def _cached(text: str) -> ParsedScript:
    return _analyse(text)


def _analyse(text: str) -> ParsedScript:
    result = _Analysis()
    result.run(text)
    return result.script


class _Analysis:
    """One analysis. Nested scripts, such as those of `sh -c`, add to the same result."""

    def __init__(self) -> None:
        self.script = ParsedScript()
        self._parser = Parser(_LANGUAGE)
        self._scripts = 0
        self._hidden = False
        """Whether what is read is only a suspicion: it adds to `hidden`, and no doubts."""
        self._suspected: set[tuple[Word, ...] | str] = set()
        """Commands and texts that were read as a suspicion already."""
        self._suspicion = ""
        """The first doubt about what is only a suspicion."""
        self._inputs: list[str] = []
        self._results: list[tuple[int, Inner]] = []
        """What the commands run, each with the index of the command that runs it."""
        self._owner = 0
        """The index of the command whose arguments are searched for others."""
        self._reads_script = False
        self._evaluates = False
        self._quoted: list[str] = []
        """Texts that are substitutions where bash evaluates a quoted text once more."""
        self._source = b""
        self._read: set[int] = set()
        """Where the substitutions begin that were read in the source, and where those in backquotes end."""

    def run(self, text: str) -> None:
        """Analyse a whole script."""
        if len(text) > _LONGEST:
            self.script.doubts.append(f"a script of more than {_LONGEST:,} characters is not read by rules")
            text = text[:_LONGEST]
        self._parse(text, 0)
        self._check_written()
        if self._reads_script:
            literals = [word.text for command in self.script.commands for word in command.words[1:]]
            self._suspect([*self._inputs, *literals, " ".join(literals)], 1)
        if self._evaluates:
            self._suspect(self._quoted[:_MOST_QUOTED], 1)

    def _check_written(self) -> None:
        """Let only a rule that names it allow a command that runs a file which this script writes."""
        written = Counter(name_of(redirection.path) for redirection in self.script.redirections if redirection.writes)
        written.update(name for _, result in self._results if result.writes for name in set(result.writes))
        unpacks = bool(written or self._inputs) and any(result.unpacks for _, result in self._results)
        if not written and not unpacks:
            return
        reasons: dict[int, str] = {}  # equal commands share a result
        for index, result in self._results:
            if (reason := reasons.get(id(result))) is None:
                reason = reasons[id(result)] = runs_written(result, written, unpacks=unpacks)
            if reason:
                command = self.script.commands[index]
                spelled = spelled_of(result) if command == result.command else ()
                self.script.commands[index] = with_reason(command, spelled, reason)
                self._reads_script |= result.shell

    def _doubt(self, reason: str, *, evaluates: bool = False) -> None:
        self._evaluates |= evaluates
        if self._hidden:
            self._suspicion = self._suspicion or reason
        elif reason not in self.script.doubts:
            self.script.doubts.append(reason)

    def _parse(self, text: str, depth: int) -> None:
        self._scripts += 1
        if self._scripts > _MOST_SCRIPTS or depth > 8:
            self.script.doubts.append("too many scripts within scripts")
            return
        usual = text.isascii() and text.replace("\n", "").replace("\t", "").isprintable()
        if not usual and (match := _ODD.search(text)) is not None:
            self._doubt(f"the character U+{ord(match[0]):04X} is not read by rules")
        if "\\\n" in text and _CONTINUED.search(text) is not None:
            self._doubt("a line is continued in the middle of a word")
            self._suspect([text.replace("\\\n", "")], depth + 1)
        data = _encoded(text)
        before, self._source, self._read = (self._source, self._read), data, set()
        root = self._parser.parse(data).root_node
        if root.has_error:
            self._doubt("it is not read as a shell script: a part has another form than rules know")
            self._pieces(text)
        self._visit(root, depth, 0)
        self._check_substitutions(root, depth)
        self._source, self._read = before

    def _suspect(self, texts: list[str], depth: int) -> None:
        """Read texts that may be scripts, for rules that restrict."""
        before, self._hidden = self._hidden, True
        for text in texts:
            if text.strip() and text not in self._suspected:
                self._suspected.add(text)
                self._parse(text, depth)
        self._hidden = before

    def _pieces(self, text: str) -> None:
        """Let rules that restrict look at every word of a text that is not read: each may begin a command."""
        pieces = re.split(r"[\s;|&()<>{}`$]+", re.sub(r"\\\n|[\"'\\]", "", text))
        words = [Word(piece) for piece in pieces if piece]
        for start in range(min(len(words), 200)):
            self.script.hidden.append(SimpleCommand(tuple(words[start : start + 40])))

    def _check_substitutions(self, root: Node, depth: int) -> None:
        """Doubt what looks like a substitution and was not read as one: the grammar is not bash."""
        data = self._source
        for match in _SUBSTITUTION.finditer(data):
            start = match.start()
            if start in self._read or (match[0] != b"`" and _is_escaped(data, start)):
                continue
            if _is_inert(root, start, match[0]):
                self._quoted.append(
                    data[match.end() :].partition(b"`" if match[0] == b"`" else b")")[0].decode("utf-8", "replace")
                )
            else:
                self._doubt("it has a substitution in a place that is not read by rules")
                self._suspect([data[match.end() :].decode("utf-8", "replace")], depth + 1)

    def _visit(self, node: Node, depth: int, level: int) -> None:
        """Visit a part of the structure and all that is below."""
        if level > _DEEPEST:
            self._doubt("it is nested too deeply to be read by rules")
            return
        kind = node.type
        if kind == "command":
            self._command(node, depth, level)
            return
        if kind in _SUBSTITUTIONS:
            self._substitution(node, depth)
        if kind in _STRUCTURE:
            if kind in _PLAIN_STRUCTURE:
                for child in node.named_children:
                    kind = child.type
                    if kind == "command" and level < _DEEPEST:
                        self._command(child, depth, level + 1)
                    elif kind not in _NAMES:
                        self._visit(child, depth, level + 1)
                return
            children = node.children
            if kind == "compound_statement" and children and children[0].type == "((":
                self._arithmetic(node, depth, level)
                return
            if kind == "for_statement":
                self._assigned(text_of(children[1]), "", depth)
            if kind == "program" or kind == "redirected_statement":
                self._check_gaps(node, children)
            if kind == "redirected_statement":
                self._redirected(children, depth, level)
                return
            for child in children:
                if child.is_named and child.type not in _NAMES:
                    self._visit(child, depth, level + 1)
        elif kind in ("variable_assignment", "declaration_command", "unset_command"):
            self._declaration(node, depth, level)
        elif kind in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            if words := self._redirect(node, depth, level):
                self._runs(tuple(words), depth)
        elif kind in _TESTS:
            self._test(node, depth, level)
        elif kind in _WORDS:
            self._within(node, depth, level)
        elif kind == "heredoc_body":
            self._inputs.append(text_of(node))
            for child in node.children:
                self._visit(child, depth, level + 1)
        elif kind == "comment":
            pass
        elif kind == "ERROR":
            for child in node.children:
                self._visit(child, depth, level + 1)
        elif node.is_named:
            self._doubt(f"a part of the form `{kind.replace('_', ' ')}` is not read by rules")
            for child in node.children:
                self._visit(child, depth, level + 1)

    def _redirected(self, children: list[Node], depth: int, level: int) -> None:
        """Visit a statement with redirections. Words behind the file of one belong to the command."""
        words: list[Word] = []
        for child in children:
            if child.type.endswith("_redirect"):
                words += self._redirect(child, depth, level + 1)
        body = children[0]
        if body.type == "command":
            self._command(body, depth, level + 1, words)
            return
        if not body.type.endswith("_redirect"):
            self._visit(body, depth, level + 1)
        if words:
            self._runs(tuple(words), depth)

    def _check_gaps(self, node: Node, children: list[Node]) -> None:
        end = node.start_byte
        for child in children:
            start = child.start_byte
            if start > end and self._source[end:start].strip(b" \t\n\\"):
                self._doubt("a part of it was not read")
            end = max(end, child.end_byte)

    def _within(self, node: Node, depth: int, level: int) -> None:
        """Visit the substitutions in a word."""
        if level > _DEEPEST:
            self._doubt("it is nested too deeply to be read by rules")
            return
        kind = node.type
        if kind in ("arithmetic_expansion", "arithmetic"):
            self._read.add(node.start_byte)
            self._arithmetic(node, depth, level)
            return
        if not node.child_count:
            return
        children = node.children
        if kind == "expansion":
            self._backquoted(text_of(node), depth)
        if kind == "expansion" and any(child.type not in _EXPANSION for child in children):
            self._doubt(f"the expansion {text_of(node)[:60]} is not read by rules")
        if kind == "array" and any(re.match(r"\[(?!\d+\]\+?=)", text_of(child)) for child in children):
            self._doubt("the subscript of an array is evaluated", evaluates=True)
        if kind == "subscript" and not re.fullmatch(r"\w+\[(?:\d+|@|\*)\]", text_of(node)):
            self._doubt("the subscript of an array is evaluated", evaluates=True)
        for child in children:
            if child.type in ("command_substitution", "process_substitution"):
                self._visit(child, depth, level + 1)
            elif child.child_count:
                if child.type in _WORDS:
                    self._within(child, depth, level + 1)
                else:
                    self._visit(child, depth, level + 1)

    def _substitution(self, node: Node, depth: int) -> None:
        """Note that a substitution is read. Backquotes take backslashes away before the rest is read."""
        self._read.add(node.start_byte)
        start = self._source[node.start_byte : node.start_byte + 3]
        if start == b"$((" and node.type == "command_substitution":
            self._doubt("what stands between `$((` and `))` is not read by rules", evaluates=True)
        if start[:1] == b"`":
            self._read.add(node.end_byte - 1)
            text = text_of(node)
            if "\\" in text:
                self._doubt("a backslash in backquotes is not read by rules")
                self._suspect([re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)], depth + 1)

    def _backquoted(self, text: str, depth: int) -> None:
        """Doubt commands in backquotes where the grammar takes them for text."""
        if "`" in text:
            self._doubt("commands in backquotes in an expansion or a here-document are not read by rules")
            self._suspect(text.split("`")[1::2], depth + 1)

    def _arithmetic(self, node: Node, depth: int, level: int) -> None:
        text = text_of(node)
        if _NUMBERS.fullmatch(text) is None:
            self._doubt("arithmetic with a variable or a command can run what its value holds", evaluates=True)
        nodes = [node]
        while nodes:
            part = nodes.pop()
            if part.type in ("command_substitution", "process_substitution"):
                self._visit(part, depth, level + 1)
            else:
                nodes += part.children

    def _test(self, node: Node, depth: int, level: int) -> None:
        double = False
        for child in node.children:
            if child.type == "[[":
                double = True
            if child.type == "test_operator" or child.type in _ARITHMETIC_TEST:
                operator = text_of(child)
                if operator in _ARITHMETIC_TEST and re.search(r"[$A-Za-z_]", text_of(node).replace(operator, "", 1)):
                    self._doubt("a test that evaluates a variable can run what the variable holds", evaluates=True)
            if child.is_named:
                self._visit(child, depth, level + 1)
        if node.type == "test_command" and not double:
            if self._has_split(node):
                self._doubt("`[` with an expansion that is not in quotation marks", evaluates=True)
            if self._hidden:
                return
            self.script.commands.append(SimpleCommand((Word("["),), free=True))

    def _has_split(self, node: Node) -> bool:
        """Return whether a test has a word that can be several when it runs."""
        if node.type == "string":
            return False
        if node.type in ("simple_expansion", "expansion", "command_substitution"):
            return text_of(node) not in ("$#", "$?", "$$", "$!", "${#}")
        return any(map(self._has_split, node.children))

    def _command(self, node: Node, depth: int, level: int, more: list[Word] | None = None) -> None:
        if not more and (plain := inner_of(text_of(node))) is not None:
            self._note(plain, depth)
            return
        words: list[Word] = []
        end = -1
        for child in node.children:
            kind = child.type
            if kind == "variable_assignment":
                self._declaration(child, depth, level + 1)
                continue
            if kind.endswith("_redirect"):
                words += self._redirect(child, depth, level + 1)
                end = -1
                continue
            if end >= 0 and words and child.start_byte == end:
                if kind in ("string", "word", "raw_string", "concatenation") and words[-1].text == "$":
                    words[-1] = Word(word_of(child).text, literal=False)  # $"..."
                else:
                    self._doubt("two words stand side by side without a space")
            elif end >= 0 and words and self._source[end : child.start_byte].strip(b" \t\n\\"):
                self._doubt("a part of it was not read")
            end = child.end_byte
            if child.child_count:
                if kind in ("command_substitution", "process_substitution"):
                    self._visit(child, depth, level + 1)
                else:
                    self._within(child, depth, level + 1)
            words.append(word_of(child))
        words += more or ()
        if words:
            self._runs(tuple(words), depth)

    def _runs(self, words: tuple[Word, ...], depth: int) -> None:
        self._note(inner(words), depth)

    def _note(self, result: Inner, depth: int) -> None:
        """Note what a command runs."""
        if depth > 8 or self._scripts > _MOST_SCRIPTS:
            self.script.doubts.append("too many commands within commands")
            return
        command, commands = result.command, self.script.commands
        index = len(commands)
        if self._hidden:
            self._results.append((self._owner, result))
            self.script.hidden.append(command)
            self._suspicion = self._suspicion or command.unread
        else:
            self._results.append((index, result))
            commands.append(command)
        if command.words[0].text in _MOVES:
            self._note_directory(command.words)
        if result.is_plain:
            return
        for doubt in result.doubts:
            self._doubt(doubt)
        self._reads_script |= result.reads_script
        self._evaluates |= result.evaluates
        for nested in result.commands:
            self._runs(nested, depth + 1)
        for text in result.scripts:
            self._parse(text, depth + 1)
        if result.hidden or result.hidden_scripts:
            self._hide(result, depth, index)

    def _hide(self, result: Inner, depth: int, index: int) -> None:
        """Let rules that restrict look at what a command may run, and note that it cannot be read."""
        before, self._hidden = self._hidden, True
        if not before:
            self._owner = index
        suspicion, self._suspicion = self._suspicion, ""
        for words in result.hidden:
            if words not in self._suspected:
                self._suspected.add(words)
                self._runs(words, depth + 1)
        self._suspect(result.hidden_scripts, depth + 1)
        self._hidden = before
        if self._suspicion and not before:
            command = self.script.commands[index]
            self.script.commands[index] = with_reason(command, (), command.unread or self._suspicion)
            self._suspicion = ""
        self._suspicion = suspicion or self._suspicion

    def _note_directory(self, words: tuple[Word, ...]) -> None:
        target = next((word for word in words[1:] if not word.text.startswith("-")), None)
        clear = target is not None and target.literal and words[0].text != "popd"
        self.script.directories.append(target.text if clear and target is not None else "")

    def _assigned(self, name: str, value: str, depth: int) -> None:
        if is_dangerous(name):
            self._doubt(f"it sets {name}, which changes what commands do")
            if value:
                self._suspect([value], depth + 1)

    def _declaration(self, node: Node, depth: int, level: int) -> None:
        if node.type == "variable_assignment":
            name, _, value = text_of(node).partition("=")
            self._assigned(name.removesuffix("+").partition("[")[0], value.strip("'\""), depth)
            for child in node.children[1:]:
                self._visit(child, depth, level + 1)
            if node.children and node.children[0].type == "subscript":
                self._within(node.children[0], depth, level + 1)
            return
        words = []
        for child in node.children:
            if child.type == "variable_assignment":
                self._declaration(child, depth, level + 1)
                words.append(Word(text_of(child)))
                continue
            if child.is_named:
                self._visit(child, depth, level + 1)
                if child.type not in ("word", "variable_name", "number"):
                    self._doubt(f"`{text_of(node.children[0])}` of a name that is known only when it runs")
            if is_dangerous(text_of(child)):
                self._doubt(f"it changes {text_of(child)}")
            words.append(Word(text_of(child)))
        if any(re.match(r"-\w*[in]", word.text) for word in words[1:]):
            self._doubt(f"`{words[0].text} -i` and `-n` evaluate what is assigned", evaluates=True)
        (self.script.hidden if self._hidden else self.script.commands).append(SimpleCommand(tuple(words), free=True))

    def _redirect(self, node: Node, depth: int, level: int) -> list[Word]:
        """Visit a redirection; return the words that the grammar takes for more of its files."""
        if (plain := _PLAIN_REDIRECTION.fullmatch(text_of(node))) is not None:
            operator, path, _ = plain.groups()
            if path is not None:
                self._opens(Word(path), writes=">" in operator)
            return []
        kind = node.type
        children = node.children
        if kind == "heredoc_redirect":
            start = next((text_of(child) for child in children if child.type == "heredoc_start"), "")
            body = next((text_of(child) for child in children if child.type == "heredoc_body"), "")
            if not re.search(r"[\"'\\]", start):
                self._backquoted(body, depth)
            for child in children:
                if child.is_named:
                    self._visit(child, depth, level + 1)
            arguments = [word_of(child) for child in children if child.type in _ARGUMENTS]
            if any("\n" in word.text for word in arguments):
                self._doubt("a part of a here-document was read as a part of the command")
                self._reads_script = True
            return arguments
        operator = next((child.type for child in children if not child.is_named), "")
        words: list[Word] = []
        for child in children:
            if not child.is_named or child.type == "file_descriptor":
                continue
            if child.type in ("process_substitution", "command_substitution"):
                self._visit(child, depth, level + 1)
            else:
                self._within(child, depth, level + 1)
            words.append(word_of(child))
        if not words:
            return []
        if kind == "herestring_redirect":
            self._inputs.append(words[0].text)
        elif children[-1].type == "process_substitution" and len(words) == 1:
            pass
        elif not (operator in _DUPLICATE and words[0].literal and _DESCRIPTORS.fullmatch(words[0].text)):
            self._opens(words[0], writes=">" in operator)
        return words[1:]

    def _opens(self, word: Word, *, writes: bool) -> None:
        if word.literal and word.text in _NOWHERE:
            return
        if not word.literal:
            self._doubt(f"the file of a redirection is not known: {word.text[:60]}")
        elif word.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self._doubt("a redirection opens a network connection")
        else:
            redirection = Redirection(word.text, writes)
            if redirection not in self.script.redirections:
                self.script.redirections.append(redirection)


def _is_escaped(data: bytes, position: int) -> bool:
    start = position
    while start and data[start - 1] == 0x5C:
        start -= 1
    return (position - start) % 2 == 1


def _is_inert(root: Node, position: int, mark: bytes) -> bool:
    """Return whether text that looks like a substitution is only text."""
    node = root.descendant_for_byte_range(position, position + 1)
    quoted = False
    while node is not None:
        kind = node.type
        if kind == "comment":
            return True
        if kind in ("raw_string", "ansi_c_string"):
            quoted = True
        elif kind == "expansion":
            return False  # quotation marks in it may be text
        elif kind == "string" and mark in (b"<(", b">("):
            return True
        elif kind == "heredoc_redirect":
            start = next((text_of(child) for child in node.children if child.type == "heredoc_start"), "")
            return quoted or mark in (b"<(", b">(") or re.search(r"[\"'\\]", start) is not None
        node = node.parent
    return quoted


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a half of a pair
        return text.encode("utf-8", "replace")
