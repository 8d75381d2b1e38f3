"""Markdown and code as HTML: what it looks like, and that no text can bring anything else into a page."""

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import nh3
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.token import STANDARD_TYPES

from cfs.api import KEY
from cfs_server.http.idempotency import SPACE
from cfs_server.http.markup import Renderer, to_html, unformatted
from tests.filesystem.support import grant
from tests.server.guests import guests
from tests.server.markup_attacks import MARKDOWN
from tests.server.support import ServerHarness, until

LINK = 'target="_blank" rel="noopener noreferrer nofollow"'
TAGS = {
    *(
        "p",
        "br",
        "hr",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "em",
        "strong",
        "s",
        "del",
        "a",
        "code",
        "pre",
        "div",
        "span",
    ),
    *("blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"),
    *("math", "mi", "mn", "mo", "mtext", "mspace", "mrow", "mstyle", "mpadded", "mphantom", "menclose", "mfrac"),
    *("msqrt", "mroot", "msub", "msup", "msubsup", "mmultiscripts", "mover", "munder", "munderover", "mtable"),
    *("mtr", "mtd"),
}
VALUES = {
    ("a", "href"): re.compile(r"(https?://|mailto:)[^\s<>\"]+", re.IGNORECASE),
    ("a", "target"): re.compile("_blank"),
    ("a", "rel"): re.compile("noopener noreferrer nofollow"),
    ("div", "class"): re.compile("code|formula"),
    ("li", "class"): re.compile("task"),
    ("div", "data-language"): re.compile(r"[A-Za-z0-9+#._ -]{1,40}"),
    ("span", "class"): re.compile("|".join(name for name in STANDARD_TYPES.values() if name)),
    ("ol", "start"): re.compile("[0-9]{1,9}"),
    ("th", "align"): re.compile("left|center|right"),
    ("td", "align"): re.compile("left|center|right"),
}
SIZE = re.compile("[-+]?[0-9]{0,2}([.][0-9]{1,2}[0-9]?)?(em|ex|px|pt|mu|in|cm|mm|%)?( 2em)?|[a-z]{1,30}")
"""A word, or a length that covers no page."""
VALUES |= {
    ("math", "display"): re.compile("block|inline"),
    ("mtd", "columnalign"): re.compile("left|right|center"),
    ("mover", "accent"): re.compile("true|false"),
    ("mstyle", "displaystyle"): re.compile("true|false"),
    ("mstyle", "scriptlevel"): re.compile("[0-3]"),
    ("menclose", "notation"): re.compile("[a-z ]{1,40}"),
    ("mfrac", "linethickness"): SIZE,
}
VALUES |= {("mspace", name): SIZE for name in ("width", "height", "depth", "linebreak")}
VALUES |= {("mo", name): SIZE for name in ("stretchy", "fence", "form", "minsize", "maxsize", "accent", "separator")}
VALUES |= {("mi", "mathvariant"): SIZE}
VALUES |= {("mtable", name): SIZE for name in ("displaystyle", "rowspacing", "columnspacing", "columnalign")}
PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()
SLOW = "![" * 200_000
"""The parser needs more than its two seconds for this."""


class Reader(HTMLParser):
    """Reads HTML, and refuses all but the few elements and attributes that rendering makes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.links: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert len(dict(attrs)) == len(attrs)
        for name, value in attrs:
            assert VALUES[tag, name].fullmatch(value or ""), (tag, name, value)
        if tag not in ("br", "hr"):
            self._open.append(tag)
        if tag == "a":
            assert self._open.count("a") == 1
            assert dict(attrs).keys() >= {"target", "rel"}
            self.links.append(dict(attrs).get("href") or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)


def read(html: str) -> Reader:
    """Read HTML as a page would; a second cleaning must find nothing to do, or a parser reads it in another way."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    tags = TAGS | {"html", "body"}
    attributes: dict[str, set[str]] = {"*": set()} | {
        tag: {name for of, name in VALUES if of == tag} - {"rel"} for tag, _ in VALUES
    }
    again = nh3.clean(html, tags=tags, attributes=attributes, link_rel="noopener noreferrer nofollow")
    assert again == html
    return reader


# -- what it looks like -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**b** *i* ~~s~~ `c`", "<p><strong>b</strong> <em>i</em> <s>s</s> <code>c</code></p>\n"),
        ("a\nb", "<p>a<br>\nb</p>\n"),
        ("3. x\n4. y", '<ol start="3">\n<li>x</li>\n<li>y</li>\n</ol>\n'),
        ("[x](https://a.example/?b=1&c=2)", f'<p><a href="https://a.example/?b=1&amp;c=2" {LINK}>x</a></p>\n'),
        ("[x](mailto:a@b.example)", f'<p><a href="mailto:a@b.example" {LINK}>x</a></p>\n'),
        ("[x](/v1/sessions)", "<p>[x](/v1/sessions)</p>\n"),
        ("![x](https://a.example/p.png)", f'<p><a href="https://a.example/p.png" {LINK}>x</a></p>\n'),
        ("[![x](https://a.example/p)](https://b.example)", f'<p><a href="https://b.example" {LINK}>x</a></p>\n'),
        ("see setup.py, www.a.example", "<p>see setup.py, www.a.example</p>\n"),
        (
            "(https://a.example/b_(c)).",
            f'<p>(<a href="https://a.example/b_(c)" {LINK}>https://a.example/b_(c)</a>).</p>\n',
        ),
        (
            "请看https://a.example/x，谢谢",
            f'<p>请看<a href="https://a.example/x" {LINK}>https://a.example/x</a>，谢谢</p>\n',
        ),
        ("`https://a.example`", "<p><code>https://a.example</code></p>\n"),
        ("<b>x</b> &amp; &lt;", "<p>&lt;b&gt;x&lt;/b&gt; &amp; &lt;</p>\n"),
        ("    a\n", '<div class="code"><pre><code>a</code></pre></div>'),
        ("```\na <b\n```", '<div class="code"><pre><code>a &lt;b</code></pre></div>'),
        (
            "```mermaid x\na-->b\n```",
            '<div class="code" data-language="mermaid"><pre><code>a--&gt;b</code></pre></div>',
        ),
    ],
)
def test_markdown(text: str, html: str) -> None:
    assert to_html(text, "markdown") == html
    read(html)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("$x^2$", '<p><math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math></p>\n'),
        (r"\(x\)", '<p><math display="inline"><mrow><mi>x</mi></mrow></math></p>\n'),
        ("$$\nx\n$$", '<div class="formula"><math display="block"><mrow><mi>x</mi></mrow></math></div>\n'),
        ("a\n\\[\nx\n\\]", '<p>a<br>\n<math display="block"><mrow><mi>x</mi></mrow></math></p>\n'),
        ("It costs $5 and $10, or $ 3 $.", "<p>It costs $5 and $10, or $ 3 $.</p>\n"),
        (r"`$x$` and \$x$", "<p><code>$x$</code> and $x$</p>\n"),
        (
            r"$\frac$ and $x^$ and \(\left(\)",
            r"<p><code>$\frac$</code> and <code>$x^$</code> and <code>\(\left(\)</code></p>",
        ),
        ("$$\n\\frac\n$$", '<div class="code"><pre><code>$$\n\\frac\n$$</code></pre></div>'),
        (r"$\begin{picture}a & b\end{picture}$", r"<p><code>$\begin{picture}a &amp; b\end{picture}$</code></p>"),
        ("- [ ] a\n- [x] b", '<ul>\n<li class="task">\u2610 a</li>\n<li class="task">\u2611 b</li>\n</ul>\n'),
    ],
)
def test_formulas_and_tasks(text: str, html: str) -> None:
    """What cannot be read as a formula is shown as it is written."""
    assert to_html(text, "markdown").strip() == html.strip()
    read(html)


@pytest.mark.parametrize("name", ["aligned", "align*", "split", "gathered", "cases", "pmatrix", "array"])
def test_environments_of_formulas_are_tables(name: str) -> None:
    columns = "{cc}" if name == "array" else ""
    html = to_html(f"$$\n\\begin{{{name}}}{columns}a & b \\\\ c & d\\end{{{name}}}\n$$", "md")
    read(html)
    assert (html.count("<mtr>"), html.count("<mtd")) == (2, 4)


def test_formulas_are_bounded() -> None:
    """Each one in its length, and all of a text together: the others are shown as they are written."""
    long = "x+" * 1_500
    assert to_html(f"${long}x$ and $y$", "md").startswith(f"<p><code>${long}x$</code> and <math")
    many = to_html("$x+y+z+x+y$ " * 4_000, "md")
    assert many.count("<math") == 20_000 // len("x+y+z+x+y")
    assert many.count("<code>$x+y+z+x+y$</code>") == 4_000 - many.count("<math")
    deep = "{" * 900 + "x" + "}" * 900
    assert "{{{" in to_html(f"${deep}$", "md")
    doubled = "".join(
        rf"\newcommand{{\{b}}}{{\{a}\{a}}}" for a, b in zip("abcdefghijklmn", "bcdefghijklmno", strict=True)
    )
    assert to_html(rf"$\newcommand{{\a}}{{x}}{doubled}\o$", "md").startswith("<p><code>")


def test_cells_of_a_table_are_aligned_without_a_style() -> None:
    html = to_html("| a | b |\n|:-:|--:|\n| 1 | 2 |", "md")
    assert '<td align="center">1</td>\n<td align="right">2</td>' in html
    assert "style" not in html


@pytest.mark.parametrize("language", ["python", "py", "main.py", "/workspaces/a b/main.py"])
def test_code_has_the_classes_of_pygments(language: str) -> None:
    assert to_html("def f():\n    pass\n", language) == (
        '<div class="code" data-language="python"><pre><code>'
        '<span class="k">def</span><span class="w"> </span><span class="nf">f</span><span class="p">():</span>\n'
        '    <span class="k">pass</span></code></pre></div>'
    )


@pytest.mark.parametrize("language", [None, "", "no such language", "x.nosuchtype", "text"])
def test_code_of_no_known_language_is_shown_as_it_is(language: str | None) -> None:
    text = "\n\n  <a>\tb & c\r\n\n"
    html = to_html(text, language)
    assert "<span" not in html
    assert read(html).text.rstrip("\n") == text.replace("\r\n", "\n").rstrip("\n") or read(html).text == text


def test_code_keeps_its_blank_lines() -> None:
    assert read(to_html("\n\n x = 1\n\n\n", "python")).text == "\n\n x = 1\n\n"


def test_a_text_that_is_nested_too_deeply_is_shown_whole() -> None:
    """The parser would leave out what is deeper than its limit: text that a model reads and no person sees."""
    text = "> " * 60 + "hidden"
    assert read(to_html(text, "markdown")).text == text
    assert "hidden" in read(to_html("> " * 30 + "hidden", "markdown")).text


# -- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", MARKDOWN.values(), ids=MARKDOWN)
def test_no_text_brings_markup_of_its_own(text: str) -> None:
    for around in ("{}", "> {}", "- {}", "| {} |\n|-|\n| x |", "**{}**", "[{}](http://a.example)"):
        read(to_html(around.replace("{}", text), "markdown"))


@pytest.mark.parametrize("text", MARKDOWN.values(), ids=MARKDOWN)
def test_no_code_brings_markup_of_its_own(text: str) -> None:
    for language in ("html", "x.svg", "js", "php", "no.such", '"><img src=x onerror=alert(1)>', None):
        reader = read(to_html(text, language))
        assert reader.links == []
        assert re.sub(r"[\0\ufffd\s]", "", reader.text) == re.sub(r"[\0\ufffd\s]", "", text)


PIECES = st.one_of(
    st.sampled_from([piece for text in MARKDOWN.values() for piece in re.findall(r"\w+|\W", text)]),
    st.sampled_from(
        [
            "\n",
            "\n\n",
            "    ",
            "> ",
            "- ",
            "$",
            "$$",
            "\\[",
            "\\]",
            "- [x] ",
            "```",
            "`",
            "](",
            "![",
            "<",
            "&#x6a;",
            "javascript:",
            "http://a.example/",
        ]
    ),
    st.characters(exclude_categories=["Cs"]),
)


@given(st.lists(PIECES, max_size=40).map("".join), st.sampled_from(["markdown", "markdown", "html", "x.py", "php"]))
def test_no_mixture_brings_markup_of_its_own(text: str, language: str) -> None:
    read(to_html(text, language))


def test_references_cannot_multiply_a_text() -> None:
    text = "[a]: http://a.example/" + "x" * 3000 + "\n\n" + "[a]" * 5_000
    assert to_html(text, "markdown") == unformatted(text)


# -- the process ------------------------------------------------------------------------------------------------------


async def test_a_text_that_takes_too_long_is_not_formatted_and_delays_no_other() -> None:
    renderer = Renderer()
    try:
        first = asyncio.create_task(renderer.render("mallory", [(SLOW, "md"), ("*a*", "md")]))
        await until(lambda: renderer._process is not None)
        assert await renderer.render("alice", [("*b*", "md")]) == ["<p><em>b</em></p>\n"]
        assert await first == [unformatted(SLOW), "<p><em>a</em></p>\n"]
        process = renderer._process
        assert process is not None
        assert await renderer.render("mallory", [(SLOW, "md")]) == [unformatted(SLOW)]
        assert renderer._process is process, "that it cannot be rendered is remembered"
    finally:
        await renderer.aclose()
    assert not psutil.pid_exists(process.pid)


async def test_markdown_without_any_text_is_nothing() -> None:
    """A reply that has not begun yet was shown as an empty block of code."""
    renderer = Renderer()
    try:
        assert await renderer.render("a", [("", "markdown"), ("x", "md"), ("", "markdown")]) == ["", "<p>x</p>\n", ""]
    finally:
        await renderer.aclose()


async def test_the_process_is_started_again() -> None:
    renderer = Renderer()
    try:
        await renderer.render("a", [("x", "md")])
        process = renderer._process
        assert process is not None
        process.kill()
        await process.wait()
        assert await renderer.render("a", [("y", "md"), ("z", "md")]) == [unformatted("y"), "<p>z</p>\n"]
    finally:
        await renderer.aclose()


async def test_a_request_that_is_dropped_mixes_no_answers() -> None:
    renderer = Renderer()
    try:
        task = asyncio.create_task(renderer.render("a", [(SLOW, "md")]))
        await until(lambda: renderer._process is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await renderer.render("a", [("y", "md")]) == ["<p>y</p>\n"]
    finally:
        await renderer.aclose()


async def test_the_cache_is_bounded_and_separate_for_each_owner() -> None:
    renderer = Renderer(cache_bytes=10_000)
    try:
        for number in range(100):
            await renderer.render("a", [(f"*{number}* " * 20, "md")])
            assert renderer._cached.currsize <= 10_000
        assert 0 < len(renderer._cached) < 100
        await renderer.render("a", [("x" * 20_000, None), ("*y*", "md")])
        assert renderer._cached.currsize <= 10_000
        before = len(renderer._cached)
        await renderer.render("a", [("*y*", "md")])
        assert len(renderer._cached) == before
        await renderer.render("b", [("*y*", "md")])
        assert len(renderer._cached) == before + 1
    finally:
        await renderer.aclose()


# -- the route --------------------------------------------------------------------------------------------------------


async def render(client: httpx.AsyncClient, *items: dict[str, Any], **headers: str) -> httpx.Response:
    return await client.post("/v1/render", json={"items": items}, headers=headers)


async def test_texts_are_rendered_in_order(server: ServerHarness) -> None:
    answer = await render(server.client, {"text": "*a*", "language": "markdown"}, {"text": "a<b"}, {"text": "*a*"})
    code = '<div class="code"><pre><code>{}</code></pre></div>'
    found = [item["html"] for item in answer.json()["items"]]
    assert found == ["<p><em>a</em></p>\n", code.format("a&lt;b"), code.format("*a*")]
    assert (await render(server.client)).json() == {"items": []}


async def test_a_request_has_limits(server: ServerHarness) -> None:
    big = await render(server.client, {"text": "x" * (1 << 20)})
    assert (big.status_code, big.json()["type"]) == (413, "urn:cfs:error:too-large")
    wrong: list[Any] = [
        [{"text": "x"}] * 257,
        [{"text": "x", "language": "l" * 256}],
        [{"text": "x", "id": 1}],
        [{}],
        "x",
    ]
    for items in wrong:
        assert (await server.client.post("/v1/render", json={"items": items})).status_code == 422
    lone = await server.client.post(
        "/v1/render", content=b'{"items": [{"text": "\\ud800"}]}', headers={"Content-Type": "application/json"}
    )
    assert lone.status_code == 400


async def test_everyone_who_is_signed_in_may_render(server: ServerHarness) -> None:
    """G9: no grant is needed, as it shows only what the caller sent."""
    async with guests(server, nobody=[grant("/sessions/none", "list")]) as who:
        answer = await render(who["nobody"].client, {"text": "x", "language": "md"})
        assert answer.json() == {"items": [{"html": "<p>x</p>\n"}]}


async def test_nothing_is_stored(server: ServerHarness) -> None:
    """A key for repetitions is ignored, and a journal that cannot be written does not matter."""
    for _ in range(2):
        answer = await render(server.client, {"text": "secret"}, **{KEY: "k"})
        assert answer.status_code == 200
    journal = server.store.journal
    assert journal is not None
    assert journal.kept(SPACE) == {}


async def test_the_process_ends_with_the_server(server: ServerHarness) -> None:
    await render(server.client, {"text": "x"})
    process = server.parts.renderer._process
    assert process is not None
    server.server.exit_at_once()  # type: ignore[attr-defined]
    await process.wait()


async def test_the_documented_request_works(server: ServerHarness) -> None:
    body = re.search(r"<!-- tested: render -->\n```json\n(.*?)```", PAGE, re.DOTALL)
    assert body is not None
    answer = await server.client.post("/v1/render", json=json.loads(body[1]))
    first, second = (item["html"] for item in answer.json()["items"])
    assert "<strong>Done</strong>" in first
    assert 'data-language="python"' in second
