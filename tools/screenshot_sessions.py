"""The server of the pictures of the dashboard, and the sessions that it holds.

As a program, it serves a folder: `tools/screenshot_sessions.py DIR`.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfs_server.app import create_app  # noqa: E402
from cfs_server.config.settings import ServerSettings  # noqa: E402
from cfs_server.engine.contract.interface import GenerationRequest  # noqa: E402
from cfs_server.engine.host.scripted import ScriptedEngine  # noqa: E402
from cfs_server.main import logs  # noqa: E402
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of  # noqa: E402
from screenshot_texts import ADD, ADD_AGAIN, CART, PAGE, REPLIES, SUM, SUM_AGAIN, TESTS, TILL  # noqa: E402
from tests.dashboard.agent import Agent  # noqa: E402

BEAT = 0.35
"""Seconds between two steps of the agents, so that the timeline has something to show."""
TREE = "web-shop"
"""The session of the tree."""


def reply(request: GenerationRequest) -> Iterable[str]:
    """Say what stands in `REPLIES`, word by word."""
    text = REPLIES.get(request.messages[-1].content, "I have no answer to this.")
    return [f"{word} " for word in text.split(" ")]


async def serve(data: Path) -> None:
    """Be the server, until the process is ended."""
    logs.configure("text", "error")
    settings = ServerSettings(port=0, engine="scripted", data_dir=data)
    engine = ScriptedEngine(reply, context_tokens=8192)
    model = await engine.start()
    with listen(settings.host, settings.port, settings.send_timeout) as listener:
        server = UvicornServer(
            server_config(create_app(settings, engine, model)),
            lambda: print(f"listening on {url_of(listener)}", flush=True),
        )
        await server.serve(sockets=[listener])


@contextmanager
def running() -> Iterator[str]:
    """Run a server with an empty store; gives its URL."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, __file__, data]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.kill()
            process.communicate()


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


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
