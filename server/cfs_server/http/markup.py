"""Renders markdown and code as HTML for the dashboard, in a process of its own with limits, and caches the results.

Texts come from users and models, so each one may be an attack. Three layers stand between it and a page: the markdown
parser creates no raw HTML, the cleaner removes what the list below does not name, and the page's Content Security
Policy runs no script of it. A text can also be slow: one regular expression of a lexer can compute for hours, and
Python cannot interrupt it. The process ends at a limit of CPU time and memory, and the text is shown unformatted.
"""

import asyncio
import contextlib
import hashlib
import html
import json
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, BinaryIO

import nh3
from cachetools import LRUCache
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.tasklists import tasklists_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

from cfs_server.http import formulas

COMMAND = (sys.executable, "-P", "-m", "cfs_server.http.markup")
CACHE_BYTES = 32 << 20
PATIENCE = 10.0
"""Seconds for all texts of a request. The rest is then shown unformatted."""

_CPU_SECONDS = 2.0
"""Maximum CPU time for one text."""
_MEMORY_BYTES = 1 << 30
_HEADER = struct.Struct(">I")
_ENTRY_BYTES = 200
"""Estimated memory of a cache entry, without its HTML."""
_MARKDOWN = frozenset({"markdown", "md"})
_DEEPEST = 40
"""Maximum depth of lists and quotes in each other."""
_PLAIN_HTML, _HTML_PER_CHARACTER = 64 << 10, 40
"""How much HTML a text may become. Only repeated references to long links exceed this."""

Item = tuple[str, str | None]
"""A text and its language: `markdown`, a name of a lexer, a file name, or None for plain text."""


# The server's side.


class Renderer:
    """Renders texts in a process, which starts with the first text and again after its death."""

    def __init__(self, command: Sequence[str] = COMMAND, cache_bytes: int = CACHE_BYTES) -> None:
        self._command = command
        self._cached: LRUCache[bytes, str] = LRUCache(cache_bytes, _cost)
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def render(self, owner: str, items: Iterable[Item]) -> list[str]:
        """Return the HTML of each text. Texts of other owners are rendered in between.

        The cache is separate for each owner: otherwise the time of an answer would tell what others have rendered.
        """
        clock = asyncio.get_running_loop().time
        end, results = clock() + PATIENCE, []
        for text, language in items:
            key = hashlib.blake2b(json.dumps([owner, language, text]).encode(), digest_size=20).digest()
            rendered = self._cached.get(key)
            if rendered is None and clock() < end:
                rendered = await self._rendered(text, language)
                with contextlib.suppress(ValueError):  # it is larger than the cache
                    self._cached[key] = rendered
            results.append(unformatted(text) if rendered is None else rendered)
        return results

    async def aclose(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _rendered(self, text: str, language: str | None) -> str:
        async with self._turn:
            try:
                process = self._process or await self._start()
                if process.stdin is None or process.stdout is None:
                    raise ConnectionError  # it is never so: both are pipes
                process.stdin.write(_frame(json.dumps([text, language]).encode()))
                await process.stdin.drain()
                (size,) = _HEADER.unpack(await process.stdout.readexactly(_HEADER.size))
                return (await process.stdout.readexactly(size)).decode()
            except (ConnectionError, asyncio.IncompleteReadError):  # it took too much time or memory
                await self._end()
                return unformatted(text)
            except BaseException:  # the answer is still to come, and the next text would get it
                await self._end()
                raise

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, start_new_session=True
        )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()  # also closes the pipes


def unformatted(text: str, language: str = "") -> str:
    """Return a text as it is."""
    return _block(html.escape(text), language)


def _block(code: str, language: str = "") -> str:
    named = f' data-language="{html.escape(language)}"' if language else ""
    return f'<div class="code"{named}><pre><code>{code}</code></pre></div>'


def _cost(rendered: str) -> int:
    return _ENTRY_BYTES + sys.getsizeof(rendered)


def _frame(data: bytes) -> bytes:
    return _HEADER.pack(len(data)) + data


# The process's side.

_LINK = re.compile(r"(?:https?://|mailto:)[^\x00-\x20]+", re.IGNORECASE)
_ADDRESS = re.compile(r"(?<![A-Za-z0-9_])https?://[^\s<>\"`\u2018-\u201f\u3000-\u303f\uff01-\uff60]+", re.IGNORECASE)
"""An address in a text; it ends at Chinese punctuation, too."""
_NOT_LAST = ".,:;!?'*_~]"
_NO_NAME = re.compile(r"[^A-Za-z0-9+#._-]")
_LONGEST_NAME = 255
_LONGEST_LABEL = 40
_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "s", "a", "code", "pre", "div", "span"),
    *("blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"),
    *formulas.ATTRIBUTES,
}
_FORMULAS = 20_000
"""Characters of all formulas of a text that are converted."""
_BOXES = {True: "\u2611", False: "\u2610"}
"""How a task is shown that is done, and one that is open."""


def to_html(text: str, language: str | None) -> str:
    """Return the clean HTML of a text. It has no ids, styles, images or scripts, and its links leave the server."""
    if language in _MARKDOWN:
        parser = _markdown()
        tokens = parser.parse(text)
        if any(token.level >= _DEEPEST - 1 for token in tokens):  # the parser drops what is deeper
            return unformatted(text)
        rendered = parser.renderer.render(tokens, parser.options, {})
    else:
        rendered = _highlighted(text, language or "")
    clean = _cleaner().clean(rendered)
    return clean if len(clean) <= _PLAIN_HTML + _HTML_PER_CHARACTER * len(text) else unformatted(text)


@cache
def _cleaner() -> nh3.Cleaner:
    return nh3.Cleaner(
        tags=_TAGS,
        attributes={
            "*": set(),
            "a": {"href"},
            "div": {"data-language"},
            "ol": {"start"},
            "th": {"align"},
            "td": {"align"},
            **formulas.ATTRIBUTES,
        },
        allowed_classes={
            "div": {"code", "formula"},
            "li": {"task"},
            "span": {name for name in STANDARD_TYPES.values() if name},
        },
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer nofollow",
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",
    )


@cache
def _markdown() -> MarkdownIt:
    """Return the parser: GFM without raw HTML, where a line break stays one, as in the chats that people know."""
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _DEEPEST}).enable(
        ["table", "strikethrough"]
    )
    dollarmath_plugin(
        parser, allow_labels=False, allow_space=False, allow_digits=False, allow_blank_lines=False, double_inline=True
    )
    parser.inline.ruler.before("escape", "math_brackets", _bracketed)
    tasklists_plugin(parser)
    parser.validateLink = lambda url: bool(_LINK.fullmatch(url))  # type: ignore[method-assign]
    parser.core.ruler.push("restrict", _restrict)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_block", _fence)
    for kind in ("math_inline", "math_inline_double", "math_block"):
        parser.add_render_rule(kind, _formula)
    return parser


def _restrict(state: StateCore) -> None:
    """Make links of addresses and of images, attributes of the styles of cells, and signs of the boxes of tasks."""
    for token in state.tokens:
        if token.type == "list_item_open" and "class" in token.attrs:
            token.attrs["class"] = "task"
        style = str(token.attrs.pop("style", ""))
        if style.startswith("text-align:"):
            token.attrs["align"] = style.removeprefix("text-align:")
        if token.children:
            token.children = list(_with_links(token.children, state.md))


def _with_links(tokens: Iterable[Token], parser: MarkdownIt) -> Iterator[Token]:
    links = 0
    for token in tokens:
        links += token.nesting if token.type in ("link_open", "link_close") else 0
        if token.type == "image":
            url = str(token.attrs["src"])
            text = RendererHTML().renderInlineAsText(token.children, parser.options, {}) or url
            yield from [_text(text)] if links else _link(url, text)
        elif token.type == "html_inline":  # only the box of a task: the parser reads no HTML
            yield _text(_BOXES['checked="checked"' in token.content])
        elif token.type == "text" and not links:
            yield from _addresses(token.content, parser)
        else:
            yield token


def _addresses(text: str, parser: MarkdownIt) -> Iterator[Token]:
    """Make links of the addresses in a text. They have a scheme: without one, `setup.py` would be a host."""
    end = 0
    for match in _ADDRESS.finditer(text):
        address = match[0]
        last, unmatched = len(address), address.count(")") - address.count("(")
        # "(see https://a.example/.)"
        while address[last - 1] in _NOT_LAST or (address[last - 1] == ")" and unmatched > 0):
            unmatched -= address[last - 1] == ")"
            last -= 1
        address = address[:last]
        url = parser.normalizeLink(address)
        if parser.validateLink(url):
            yield _text(text[end : match.start()])
            yield from _link(url, address)
            end = match.start() + len(address)
    yield _text(text[end:])


def _link(url: str, text: str) -> list[Token]:
    return [Token("link_open", "a", 1, attrs={"href": url}), _text(text), Token("link_close", "a", -1)]


def _text(text: str) -> Token:
    return Token("text", "", 0, content=text)


def _fence(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: object = None, _env: object = None
) -> str:
    token = tokens[index]
    name = (token.info.split() or [""])[0]
    return _highlighted(token.content.removesuffix("\n"), name)


_CLOSING = {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}
_BRACKETS = {"\\(": "math_inline", "\\[": "math_inline_double"}


def _bracketed(state: StateInline, silent: bool) -> bool:
    """Read a formula between the brackets of LaTeX, which most models write."""
    opening = state.src[state.pos : state.pos + 2]
    if opening not in _BRACKETS or state.env.get(opening) == state.src:
        return False
    end = state.src.find(_CLOSING[opening], state.pos + 2, state.posMax)
    if end < 0:
        state.env[opening] = state.src  # nor does any later one end here: a long text is searched once
        return False
    if not silent:
        token = state.push(_BRACKETS[opening], "math", 0)
        token.content, token.markup = state.src[state.pos + 2 : end], opening
    state.pos = end + 2
    return True


def _formula(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: object = None, env: Any = None
) -> str:
    """Return a formula as MathML, or as it is written."""
    token = tokens[index]
    is_block = token.type == "math_block"
    env["formulas"] = env.get("formulas", 0) + len(token.content)
    if env["formulas"] <= _FORMULAS:
        mathml = formulas.to_mathml(token.content.strip(), display=token.type != "math_inline")
        if mathml is not None:
            return f'<div class="formula">{mathml}</div>\n' if is_block else mathml
    source = f"{token.markup}{token.content}{_CLOSING[token.markup]}"
    return unformatted(source) if is_block else f"<code>{html.escape(source)}</code>"


def _highlighted(code: str, name: str) -> str:
    """Return code with the classes of pygments. A language without a lexer is shown by its name, without colours."""
    lexer = _lexer(name[:_LONGEST_NAME])
    if lexer is None:
        return unformatted(code, _NO_NAME.sub("", name)[:_LONGEST_LABEL] if "/" not in name else "")
    return _block(highlight(code, lexer, HtmlFormatter(nowrap=True)).removesuffix("\n"), lexer.aliases[0])


@lru_cache
def _lexer(name: str) -> Lexer | None:
    """Return the lexer of a language, or of a file's name. It keeps the code as it is."""
    for find in (get_lexer_by_name, get_lexer_for_filename):
        with contextlib.suppress(ClassNotFound):
            return find(name, stripnl=False, ensurenl=False)
    return None


def _serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Render texts until the server ends. A text that exceeds a limit ends this process."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while header := orders.read(_HEADER.size):
        text, language = json.loads(orders.read(*_HEADER.unpack(header)))
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)  # the signal ends the process, also in native code
        try:
            rendered = to_html(text, language)
        except Exception:  # noqa: BLE001 - no memory, or a defect of a library: the text is shown all the same
            rendered = unformatted(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(_frame(rendered.encode()))
        answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
