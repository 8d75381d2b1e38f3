"""Runs one task with an agent that answers a session of a server: URL DIRECTORY STATE TASK [options].

The options are --ask OPEN_QUESTION, --budget DOLLARS and --resume. Exit code 0 when the last reply is no error.
"""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from cfs import api
from cfs.errors import Timeout
from cfs.transports.http import Client
from cfs.wire import NewMessage, SettingsPatch
from harness_bench.runners.person import Person, option

SESSION = "main"
PRICE = "5, 5, 20 USD"
_CFS = (sys.executable, "-m", "cfs")


def main(url: str, state: str, task: str, options: list[str]) -> bool:
    """Work on the task, or go on with it."""
    rules = Path(state) / "rules.toml"
    rules.write_text('ask = ["execute_command(*)"]\n' if "--ask" in options else "", encoding="utf-8")
    person = Person(state, int(option(options, "--ask") or 0))
    upstream = ["--upstream", f"{url}/v1", "--upstream-model", "oracle", "--upstream-price", PRICE]
    serve = [*_CFS, "serve", "--port", "0", "--data-dir", f"{state}/server", *upstream]
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(serve, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("listening on ").strip()
        client = stack.enter_context(Client(address))
        if "--resume" not in options:
            client.call(api.create(SESSION, settings=SettingsPatch(driver="agent")))
            client.call(api.post(SESSION, NewMessage(content=task)))
        budget = option(options, "--budget")
        agent = [*_CFS, "agent", "serve", "--session", SESSION, "--root", state, "--commands", "host"]
        agent += ["--rules", str(rules), "--url", address, *(["--budget", f"${budget}"] if budget else [])]
        stack.callback(stack.enter_context(subprocess.Popen(agent)).terminate)
        reply = _reply(client, person)
    (Path(state) / "last-words.txt").write_text(reply, encoding="utf-8")
    return not reply.startswith("[Error:")


def _reply(client: Client, person: Person) -> str:
    """Answer questions until the task is over; return the one reply of the agent that is no call."""
    over = False
    while not over:
        try:
            client.call(api.wait(SESSION, 0.5))
            over = True
        except Timeout:
            for question in client.call(api.questions(SESSION)):
                person.consent()
                client.call(api.answer(SESSION, question.id, "allow"))
    history = client.call(api.read(SESSION)).history
    (reply,) = (message.content for message in history if message.role == "assistant" and not message.tool_calls)
    return reply


sys.exit(0 if main(sys.argv[1], sys.argv[3], sys.argv[4], sys.argv[5:]) else 1)
