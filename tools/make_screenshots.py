"""Make the pictures of the dashboard in `docs/images`, with a real server, a scripted model, and a real browser.

    tools/make_screenshots.py [--into DIR] [NAME ...]

A tree of agents works on a small shop: it writes files, corrects them, runs commands, fails and asks. Every picture is
taken of what the server then holds. On Debian and Ubuntu, root gets Chromium and the fonts that are missing.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfs_server.app import create_app  # noqa: E402
from cfs_server.config.settings import Settings  # noqa: E402
from cfs_server.engine.contract.interface import GenerationRequest  # noqa: E402
from cfs_server.engine.host.scripted import ScriptedEngine  # noqa: E402
from cfs_server.main import logs  # noqa: E402
from cfs_server.main.serve import Server, listen, server_config, url_of  # noqa: E402
from tests.dashboard.agent import Agent  # noqa: E402

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
BEAT = 0.35
"""Seconds between two steps of the agents, so that the timeline has something to show."""
PATIENCE = 120_000
"""Milliseconds to wait for anything: the machine may be busy."""
TREE = "web-shop"
"""The session of the tree."""

# -- what is said -----------------------------------------------------------------------------------------------------

MARKDOWN = """Use a **queue** between the two tasks. A queue has three advantages here:

1. The reader never waits for the writer.
2. `maxsize` limits the memory: a fast writer waits.
3. The end is a value like any other.

```python
import asyncio

async def produce(queue: asyncio.Queue[int | None]) -> None:
    for number in range(10):
        await queue.put(number)      # waits while the queue is full
    await queue.put(None)            # the end

async def consume(queue: asyncio.Queue[int | None]) -> int:
    total = 0
    while (number := await queue.get()) is not None:
        total += number
    return total
```

| | list | queue |
|---|---|---|
| order | yes | yes |
| limit | no | `maxsize` |
| waits | no | ~~busy~~ yes |

> `asyncio.Queue` belongs to one event loop. Between threads use `queue.Queue`.
"""
REPLIES = {
    "How do two asyncio tasks share numbers?": MARKDOWN,
    "What is a lighthouse?": "A lighthouse is a tower with a bright light. It shows ships where the coast is.",
    "And who keeps it?": "A keeper lived there and lit the lamp each evening. Today most lamps are electric.",
    "And how bright is it?": "A strong lamp with a Fresnel lens can be seen from about 30 kilometres away.",
    "灯塔是什么？": "灯塔是一座带有强光的高塔。它在夜里为船只指明海岸的位置，帮助它们安全航行。",
    "Plan a weekend in Lisbon": "**Saturday**: Alfama and the castle.\n\n**Sunday**: Belém and its tower.",
    "Explain the CAP theorem": "A store cannot be consistent, available and tolerant of partitions at once.",
    "Name three uses of a queue": "- work for background tasks\n- a limit on memory\n- an order among writers",
}

CART = '''"""The cart of a customer."""

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass
class Line:
    """So many pieces of a product."""

    product: str
    price: Decimal
    count: int = 1

    @property
    def total(self) -> Decimal:
        return self.price * self.count


@dataclass
class Cart:
    """What a customer wants to buy."""

    lines: list[Line] = field(default_factory=list)

    def add(self, product: str, price: Decimal, count: int = 1) -> None:
        """Add a product, or more of one that is there."""
        self.lines.append(Line(product, price, count))

    def total(self) -> Decimal:
        return sum(line.total for line in self.lines)
'''
ADD = "        self.lines.append(Line(product, price, count))\n"
ADD_AGAIN = """        for line in self.lines:
            if line.product == product:
                line.count += count
                return
        self.lines.append(Line(product, price, count))
"""
SUM = "        return sum(line.total for line in self.lines)\n"
SUM_AGAIN = '        return sum((line.total for line in self.lines), Decimal("0.00"))\n'
TESTS = """from decimal import Decimal

from shop.cart import Cart


def test_the_same_product_is_one_line() -> None:
    cart = Cart()
    cart.add("tea", Decimal("3.50"))
    cart.add("tea", Decimal("3.50"), 2)
    assert [line.count for line in cart.lines] == [3]


def test_an_empty_cart_costs_nothing() -> None:
    assert Cart().total() == Decimal("0.00")
"""
PAGE = """# Shop

A cart and a till, in two modules.

```python
from shop.cart import Cart

cart = Cart()
cart.add("tea", Decimal("3.50"))
```
"""
TILL = '''"""The till: what a cart costs with taxes."""

from decimal import Decimal

from shop.cart import Cart

RATE = Decimal("0.19")


def bill(cart: Cart) -> Decimal:
    """Return the price with taxes, in whole cents."""
    return (cart.total() * (1 + RATE)).quantize(Decimal("0.01"))
'''

# -- the server -------------------------------------------------------------------------------------------------------


def reply(request: GenerationRequest) -> Iterable[str]:
    """Say what stands in `REPLIES`, word by word."""
    text = REPLIES.get(request.messages[-1].content, "I have no answer to this.")
    return [f"{word} " for word in text.split(" ")]


async def serve(data: Path) -> None:
    """Be the server, until the process is ended."""
    logs.configure("text", "error")
    settings = Settings(port=0, engine="scripted", data_dir=data)
    engine = ScriptedEngine(reply, context_tokens=8192)
    model = await engine.start()
    with listen(settings.host, settings.port, settings.send_timeout) as listener:
        server = Server(
            server_config(create_app(settings, engine, model)),
            lambda: print(f"listening on {url_of(listener)}", flush=True),
        )
        await server.serve(sockets=[listener])


@contextmanager
def running() -> Iterator[str]:
    """Run a server with an empty store; gives its URL."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, __file__, "--serve", data]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.kill()
            process.communicate()


# -- what the server holds --------------------------------------------------------------------------------------------


def talk(client: httpx.Client, session: str, *questions: str) -> None:
    """Ask the model some questions in one session."""
    client.post("/v1/sessions", json={"id": session}).raise_for_status()
    for question in questions:
        body = {"content": question}
        client.post(f"/v1/sessions/{session}/messages", json=body, params={"wait": 30}).raise_for_status()
        client.get(f"/v1/sessions/{session}", params={"wait": 30}).raise_for_status()


def keep(client: httpx.Client, path: str, text: str) -> None:
    """Put a file into the workspace of the tree, as an agent on the server's machine does."""
    client.put(f"/v1/files/workspaces/{TREE}/{path}", content=text.encode()).raise_for_status()


def tree(client: httpx.Client) -> list[Agent]:
    """Let the agents work on the shop; returns those that still do. Their turns end with the server."""
    lead = Agent(client, TREE)
    lead.begin("Build a cart and a till for the shop, with tests and a page of documentation.")
    lead.think(
        "Four parts, of which three can begin at once.",
        "I split the work: the cart, its tests, the till, and the page.",
    )
    for name, role in (
        ("coder", "writes the cart"),
        ("tester", "tests it"),
        ("till", "writes the till"),
        ("writer", "documents it"),
    ):
        call = lead.call("sys_spawn_agent", agent_name=name, role_description=role, task_goal=f"The agent {role}.")
        lead.result(call, "sys_spawn_agent", name)
        beat()
    coder = Agent(client, f"{TREE}/coder").begin("Write shop/cart.py: a cart with lines, `add` and `total`.")
    writer = Agent(client, f"{TREE}/writer").begin("Write README.md: one example.")
    till = Agent(client, f"{TREE}/till").begin("Write shop/till.py: the bill of a cart with taxes.")
    waits = lead.call("sys_wait_agent", agent_id="coder")
    beat()
    coder.write("/workspace/shop/cart.py", CART)
    keep(client, "shop/cart.py", CART)
    keep(client, "shop/__init__.py", "")
    beat(2)
    writer.write("/workspace/README.md", PAGE)
    keep(client, "README.md", PAGE)
    tester = Agent(client, f"{TREE}/tester").begin("Test the cart in tests/test_cart.py.")
    beat()
    tester.write("/workspace/tests/test_cart.py", TESTS)
    keep(client, "tests/test_cart.py", TESTS)
    call = tester.call("execute_command", command="pytest -q tests")
    beat(3)
    tester.result(call, "execute_command", "FF [100%]\n2 failed: assert [1, 2] == [3]; assert 0 == Decimal('0.00')")
    till.write("/workspace/shop/till.py", TILL)
    keep(client, "shop/till.py", TILL)
    report(writer, "success", "README.md has one example of a cart.", ["README.md"])
    beat()
    call = tester.call("sys_send_message", agent_id="coder", content="The same product must be one line.")
    tester.result(call, "sys_send_message", "coder has the message.")
    call = coder.call("edit_file", path="/workspace/shop/cart.py", old=ADD, new=ADD_AGAIN)
    beat()
    coder.result(call, "edit_file", "changed /workspace/shop/cart.py at line 29")
    call = till.call("execute_command", command="python -m shop.till --check")
    till.result(call, "execute_command", "Error: no module named 'shop.rates'")
    beat(2)
    call = tester.call("edit_file", path="/workspace/shop/cart.py", old=SUM, new=SUM_AGAIN)
    tester.result(call, "edit_file", "changed /workspace/shop/cart.py at line 36")
    keep(client, "shop/cart.py", CART.replace(ADD, ADD_AGAIN).replace(SUM, SUM_AGAIN))
    till.fail("the token budget of till is used up: 20,114 of 20,000")
    beat()
    call = tester.call("execute_command", command="pytest -q tests")
    beat(2)
    tester.result(call, "execute_command", ".. [100%]\n2 passed in 0.04s")
    report(
        tester,
        "success",
        "Both tests pass: the same product is one line, and an empty cart costs 0.00.",
        ["tests/test_cart.py"],
    )
    report(coder, "success", "shop/cart.py has a cart with lines. The same product is one line.", ["shop/cart.py"])
    lead.result(waits, "sys_wait_agent", "[coder success]\nshop/cart.py has a cart with lines.\ncreated: shop/cart.py")
    beat()
    again = Agent(client, f"{TREE}/till").begin("Go on with the till: the rate is 0.19, in the module itself.")
    again.call("execute_command", command="python -m pytest tests/test_till.py")
    again.say("The bill needs whole cents, so I round")
    checker = Agent(client, f"{TREE}/coder/reviewer").begin("Read shop/cart.py and say what is missing.")
    call = checker.call("read_file", path="/workspace/shop/cart.py")
    checker.result(call, "read_file", CART)
    checker.say("The cart has no way to remove a line. `add` with a negative count would")
    lead.call("sys_wait_agent", agent_id="till")
    return [lead, again, checker]


def report(agent: Agent, status: str, summary: str, created: list[str]) -> None:
    """End an agent's task as the runtime does: with a report, which is also its answer."""
    agent.call("sys_finish_task", status=status, summary=summary, details={"created_files": created})
    agent.finish(summary, 4200, 380)


def beat(times: int = 1) -> None:
    """Wait, as work takes time."""
    time.sleep(BEAT * times)


def furnish(client: httpx.Client) -> list[Agent]:
    """Make the sessions of which the pictures are taken."""
    for number, question in enumerate(list(REPLIES)[-3:]):
        talk(client, f"calm-otter-{number + 1}", question)
    talk(client, "asyncio", "How do two asyncio tasks share numbers?")
    talk(client, "lighthouse", "What is a lighthouse?", "And who keeps it?")
    client.post("/v1/sessions/lighthouse/fork", json={"id": "lighthouse-2", "messages": 2})
    body = {"content": "And how bright is it?"}
    client.post("/v1/sessions/lighthouse-2/messages", json=body)
    talk(client, "灯塔", "灯塔是什么？")
    deploy = Agent(client, "deploy").begin("Publish the page of documentation.")
    deploy.think("The page is built; publishing needs consent.", "The page is ready. I publish it now.")
    deploy.call("execute_command", command="make publish")
    deploy.ask("make publish")
    return [deploy, *tree(client)]


# -- the pictures -----------------------------------------------------------------------------------------------------

Picture = Callable[[Page, str], None]


def at(view: str, ready: str) -> Picture:
    """A picture of a view, taken once some element is there."""

    def take(page: Page, url: str) -> None:
        page.goto(f"{url}/#{quote(view)}" if view else f"{url}/", wait_until="commit")
        page.locator(ready).first.wait_for()

    return take


def diff(page: Page, url: str) -> None:
    """The changes of one file, beside each other."""
    at(f"files/{TREE}", ".choose")(page, url)
    page.get_by_role("treeitem", name="cart.py").first.click()
    page.get_by_role("button", name="Changes").click()
    page.locator(".diff .added").first.wait_for()


def files(page: Page, url: str) -> None:
    """The contents of a file."""
    at(f"files/{TREE}", ".choose")(page, url)
    page.get_by_role("treeitem", name="cart.py").first.click()
    page.locator(".numbered").wait_for()


def timeline(page: Page, url: str) -> None:
    """The timeline with what is said of one call."""
    at(f"timeline/{TREE}", ".track .turn")(page, url)
    page.locator(".lane", has_text="till").locator(".tick").last.hover()
    page.locator(".tip").wait_for()


def share(page: Page, url: str) -> None:
    """The dialog that makes a link to a session."""
    at("conversation/lighthouse", ".message")(page, url)
    page.get_by_role("button", name="Share").click()
    page.get_by_role("dialog").wait_for()


def search(page: Page, url: str) -> None:
    """What is found in messages."""
    at("conversation/lighthouse", ".message")(page, url)
    page.get_by_role("searchbox").first.fill("queue")
    page.locator(".found a").first.wait_for()


def unfolded(page: Page, url: str) -> None:
    """The tree at the side, with all agents."""
    at(f"agents/{TREE}", ".column")(page, url)
    page.locator(f'[role=treeitem][data-session="{TREE}"]').click()
    page.keyboard.press("ArrowRight")
    at(f"agents/{TREE}", ".column")(page, url)


PICTURES: dict[str, tuple[Picture, dict[str, Any]]] = {
    "timeline": (timeline, {}),
    "empty": (at("", "textarea, .nothing"), {}),
    "chat": (at("conversation/lighthouse", ".message"), {}),
    "markdown": (at("conversation/asyncio", ".message"), {}),
    "tree": (unfolded, {}),
    "files": (files, {}),
    "diff": (diff, {"viewport": {"width": 1440, "height": 800}}),
    "search": (search, {}),
    "question": (at("conversation/deploy", ".question"), {}),
    "settings": (at(f"settings/{TREE}", ".settings"), {}),
    "share": (share, {}),
    "branches": (at("conversation/lighthouse-2", ".message"), {}),
    "phone": (at(f"agents/{TREE}", ".column"), {"viewport": PHONE, "has_touch": True, "is_mobile": True}),
    "phone-chat": (at("conversation/asyncio", ".message"), {"viewport": PHONE, "has_touch": True, "is_mobile": True}),
    "dark": (at(f"conversation/{TREE}", ".message"), {"color_scheme": "dark"}),
    "chinese": (at("conversation/灯塔", ".message"), {"locale": "zh-CN"}),
}
"""The pictures by name: what leads to each, and what its browser is like."""


def shoot(browser: Browser, url: str, name: str, into: Path) -> None:
    """Take one picture."""
    take, like = PICTURES[name]
    context = browser.new_context(**{"viewport": DESK, "locale": "en-GB", "reduced_motion": "reduce"} | like)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    take(page, url)
    page.wait_for_timeout(1200)  # markup and fonts
    file = into / f"dashboard-{name}.png"
    page.screenshot(path=file)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")
    context.close()


def main() -> int:
    """Make the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(PICTURES)}")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hold", action="store_true", help="only serve the sessions, until Enter is pressed")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    if unknown := [name for name in options.names if name not in PICTURES]:
        parser.error(f"there is no picture {unknown[0]!r}; there are: {', '.join(PICTURES)}")
    fonts = {
        "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc": "fonts-noto-cjk",
        "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf": "fonts-noto-color-emoji",
    }
    packages = [f"{file}:{package}" for file, package in {"chromium": "chromium", **fonts}.items()]
    subprocess.run([ROOT / "scripts/lib/system-packages", *packages], check=True)
    with running() as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        furnish(client)
        if options.hold:
            input(f"{url}\n")
            return 0
        with sync_playwright() as library:
            browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for name in options.names or PICTURES:
                shoot(browser, url, name, options.into)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
