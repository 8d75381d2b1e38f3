"""What is said in sessions becomes markup only as the server has cleaned it, and no script ever runs (D2, G9)."""

import json
from typing import Any

import httpx
from playwright.sync_api import Page, expect

from tests.dashboard.agent import Agent
from tests.dashboard.support import Pages, address, messages, violations
from tests.server.support import Process

HTML = (
    "<script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    "<svg onload='window.ran = 3'></svg>",
    "<iframe srcdoc='<script>parent.ran = 4</script>'></iframe>",
    "<a href='javascript:window.ran = 5'>click</a>",
    "<details open ontoggle='window.ran = 6'><summary>x</summary></details>",
    "<input autofocus onfocus='window.ran = 7'>",
    "<style>@import 'http://evil.example/x.css'; * { background: url(http://evil.example/x) }</style>",
    "<form action='http://evil.example/'><button>send</button></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror='window.ran = 8'>",
    "\"'><b onclick='window.ran = 9'>x</b>",
    "${window.ran = 10} {{window.ran = 11}} </textarea><script>window.ran = 12</script>",
)
"""Twelve ways to run a script or to load something, as they are tried everywhere."""
MARKDOWN = (
    "[click](javascript:window.ran=13)",
    "[click](JaVaScRiPt:window.ran=14)",
    "[click](data:text/html;base64,PHNjcmlwdD53aW5kb3cucmFuPTE1PC9zY3JpcHQ+)",
    "<javascript:window.ran=16>",
    "![x](http://evil.example/tracker.png)",
    "![x](x' onerror='window.ran=17)",
    "[x]: javascript:window.ran=18\n\n[x]",
    "```<img/src=x/onerror=window.ran=19>\ncode\n```",
    "```html\n<script>window.ran = 20</script>\n```",
    "`<script>window.ran = 21</script>`",
    "# <img src=x onerror=window.ran=22>",
    "| <script>window.ran = 23</script> |\n|---|\n| <img src=x onerror=window.ran=24> |",
    "- <svg/onload=window.ran=25>\n\n> <img src=x onerror=window.ran=26>",
    '[x](http://evil.example/" onmouseover="window.ran=27)',
    "http://evil.example/<script>window.ran=28</script>",
    r"$\href{javascript:window.ran=31}{x}$ $\text{<script>window.ran=32</script>}$ \(\style{background:url(x)}{y}\)",
    r"$$\href{javascript:window.ran=33}{x} \text{</math><img src=x onerror=window.ran=34>} \rule{9999em}{9999em}$$",
    "- [x] <input autofocus onfocus=window.ran=35>",
    "&lt;img src=x onerror=window.ran=29&gt; &#60;script&#62;window.ran=30&#60;/script&#62;",
)
"""Markdown that other renderers have turned into scripts, styles or requests."""
WATCH = """
window.ran = 0;
window.refused = [];
addEventListener("securitypolicyviolation", (event) => window.refused.push(event.violatedDirective));
"""
FORBIDDEN = (
    "main :is(script, iframe, style, form form, object, embed, img), main [onclick], main [onerror], main [onload],"
    " main a[href^='javascript' i], main a[href^='data' i], .text [style], .text [id], .text :is(svg:not(.icon), input)"
)
VIEWS = ("Agents", "Files", "Timeline", "Transcript", "Settings", "Conversation")


EACH_IN_SIGHT = """async (messages) => {
  for (const message of messages) {
    message.scrollIntoView({ block: "center" });
    while (message.querySelector(".text .plain")) await new Promise(requestAnimationFrame);
  }
}"""
"""Brings one message after the other into sight until it is rendered, without the browser's library in between."""


def opened(pages: Pages, server: Process, view: str) -> Page:
    """A page that writes down what its policy refuses."""
    page = pages.open(server.url)
    page.add_init_script(WATCH)
    page.goto(address(server.url, view))
    page.reload()
    return page


def harmless(page: Page) -> None:
    """Nothing has run, nothing was even tried, and there is no element that could."""
    assert page.evaluate("() => [window.ran, window.refused]") == [0, []]
    assert page.locator(FORBIDDEN).count() == 0


def test_no_payload_runs_in_any_view(pages: Pages, server: Process, client: httpx.Client) -> None:
    name = "<b onclick=window.ran=36>&amp;\"'"
    with Agent(client, name) as agent:
        agent.begin("\n\n".join(MARKDOWN))
        page = opened(pages, server, f"conversation/{name}")
        for evil in HTML + MARKDOWN:
            agent.think(evil, evil)
            agent.write(evil.replace("/", "_"), evil)
            agent.result(agent.call("run_command", command=evil), "run_command", evil)
        agent.result(agent.call(HTML[1], **{HTML[0]: HTML[1]}), HTML[1], json.dumps(HTML))
        for evil in HTML + MARKDOWN:
            agent.say(f"{evil}\n\n")
        growing = page.locator(".message.growing")
        expect(growing.locator(".settled").first).to_be_attached()
        expect(growing).to_contain_text("window.ran=30")
        harmless(page)
        for folded in page.locator("details.folded:not([hidden]) summary").all():
            folded.click()
        harmless(page)
        agent.finish("\n\n".join(HTML + MARKDOWN))
        expect(messages(page).last).to_contain_text("window.ran=30")
        expect(messages(page).last.locator("table")).to_be_attached()
        client.post("/v1/sessions", json={"id": f"{name}/sub"}).raise_for_status()  # there is a tree to show
        for view in VIEWS:
            tab = page.get_by_role("tab", name=view)
            tab.click()
            expect(tab).to_have_attribute("aria-selected", "true")
            harmless(page)


def test_each_payload_is_shown_and_does_nothing(pages: Pages, server: Process, client: httpx.Client) -> None:
    """By itself, as the whole of a message: nothing before it changes how it is read."""
    said: list[dict[str, Any]] = [
        {"role": role, "content": evil} for evil in HTML + MARKDOWN for role in ("user", "assistant")
    ]
    made = client.post("/v1/sessions", json={"messages": said}).json()["id"]
    page = opened(pages, server, f"conversation/{made}")
    expect(messages(page)).to_have_count(len(said))
    messages(page).evaluate_all(EACH_IN_SIGHT)
    expect(page.locator(".text .plain")).to_have_count(0)
    links = (
        messages(page).locator("a").evaluate_all("links => links.map((link) => [link.rel, link.getAttribute('href')])")
    )
    assert {rel for rel, _ in links} == {"noopener noreferrer nofollow"}
    assert [href for _, href in links if not href.startswith("http://evil.example/")] == []
    harmless(page)


def test_no_other_code_can_make_markup(pages: Pages, server: Process) -> None:
    page = opened(pages, server, "")
    expect(page.get_by_role("tree")).to_be_attached()
    refused = page.evaluate(
        """async () => {
          const found = [];
          for (const attempt of [
            () => (document.body.innerHTML = "<b>x</b>"),
            () => trustedTypes.createPolicy("other", { createHTML: (html) => html }),
            () => trustedTypes.createPolicy("cfs-markup", { createHTML: (html) => html }),
          ]) {
            try { attempt(); found.push("done"); } catch (error) { found.push(error.name); }
          }
          const names = Object.keys(await import("/dashboard/markup.js"));
          return [found, names.filter((name) => /policy|trust/i.test(name))];
        }"""
    )
    assert refused == [["TypeError", "TypeError", "TypeError"], []]
    pages.errors.clear()  # the browser reports each refusal


def test_what_is_settled_stays_while_a_reply_grows(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "m-grow") as agent:
        agent.begin("Write")
        page.goto(address(server.url, "conversation/m-grow"))
        growing = page.locator(".message.growing")
        agent.say("A **first** block.\n\nThe second one has a")
        first = growing.locator(".settled").first
        expect(first.locator("strong")).to_have_text("first")
        first.evaluate("element => { element.dataset.seen = 'yes' }")
        agent.say(" *word* in it.\n\n```python\ndef f():\n\n    return 1\n")
        expect(growing.locator("em")).to_have_text("word")
        expect(growing.locator(".code .k").first).to_have_text("def")
        expect(first).to_have_attribute("data-seen", "yes")
        text = growing.locator(".text").last
        text.evaluate("element => { element.dataset.same = 'yes' }")
        code = "```python\ndef f():\n\n    return 1\n```\n\n- end"
        whole = f"A **first** block.\n\nThe second one has a *word* in it.\n\n{code}"
        agent.say("```\n\n- end")
        agent.finish(whole)
        reply = messages(page).nth(1)
        expect(reply.locator("li")).to_have_text("end")
        expect(reply.locator(".settled, .tail, .pending")).to_have_count(0)  # rendered once more, as a whole
        expect(reply.locator(".text")).to_have_attribute("data-same", "yes")
        expect(reply.locator("pre")).to_have_count(1)


def test_a_page_without_its_renderer_shows_plain_text(pages: Pages, server: Process, client: httpx.Client) -> None:
    client.post("/v1/sessions", json={"id": "m-plain", "transcript": "User: a\nAssistant: **b**\n"}).raise_for_status()
    page = pages.open(server.url)
    page.route("**/v1/render", lambda route: route.abort())
    page.goto(address(server.url, "conversation/m-plain"))
    expect(messages(page).nth(1)).to_contain_text("**b**")
    page.unroute("**/v1/render")
    page.reload()
    expect(messages(page).nth(1).locator("strong")).to_have_text("b")


def test_formulas_are_drawn_by_the_browser_and_tasks_have_boxes(
    page: Page, server: Process, client: httpx.Client
) -> None:
    """Without a script, a font or a request of their own."""
    content = "Let $x_1$ be\n\n$$\n\\frac{a}{b}\n$$\n\nand $\\frac$ not.\n\n- [x] done\n- [ ] open"
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    client.post("/v1/sessions", json={"id": "m-math", "messages": said}).raise_for_status()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.resource_type))
    page.goto(address(server.url, "conversation/m-math"))
    reply = messages(page).nth(1)
    expect(reply.locator("math")).to_have_count(2)
    expect(reply.locator("li.task")).to_have_text(["\u2611 done", "\u2610 open"])
    expect(reply.locator("code")).to_have_text(["$\\frac$"])
    above, below = (reply.locator(f".formula mfrac > :nth-child({part})").bounding_box() for part in (1, 2))
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"]  # it is a fraction, and not two letters in a line
    assert "font" not in asked
    assert violations(page) == []


def test_no_space_is_lost_where_a_reply_grows(page: Page, server: Process, client: httpx.Client) -> None:
    """A space at the end of what is rendered belongs to no element."""
    with Agent(client, "m-space") as agent:
        agent.begin("Write")
        page.goto(address(server.url, "conversation/m-space"))
        agent.say("one ")
        tail = page.locator(".message.growing .tail")
        expect(tail).to_have_text("one")
        page.route("**/v1/render", lambda route: route.abort())  # what comes now is not rendered
        agent.say("two")
        agent.say(" three")
        expect(tail).to_have_text("one two three")
        page.unroute("**/v1/render")


def test_only_json_is_highlighted_as_json(page: Page, server: Process, client: httpx.Client) -> None:
    with Agent(client, "m-json") as agent:
        agent.begin("Look")
        results = ("[WARNING] no\nsuch {file}\n", '{\n  "a": [1, 2]\n}')
        for result in results:
            agent.result(agent.call("look"), "look", result)
        agent.finish("done")
        page.goto(address(server.url, "conversation/m-json"))
        calls = page.locator(".call .output")
        expect(calls.nth(1).locator(".code")).to_have_attribute("data-language", "json")
        expect(calls.nth(0)).to_contain_text("[WARNING] no")
        expect(calls.nth(0).locator("span.err, [data-language]")).to_have_count(0)
