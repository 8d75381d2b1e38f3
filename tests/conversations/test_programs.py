"""The real programs write conversations, CFS imports and exports them, and the programs go on with what it wrote."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cfs_server.engine.contract.interface import CallDelta, Delta, GenerationRequest
from tests.conversations.support import cfs_import, imported
from tests.programs import CLAUDE_CODE, CODEX, OPENCODE, PI, Program
from tests.server.support import CFS, ServerHarness, environment, running_server

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

TASK, QUESTION, ORDER = "Write a note.", "And a second question.", "LOOK AT THE NOTES"
COMMAND = "echo milk"
"""It leaves no file: the program may run two at once."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program: how it is configured and called, and how a model runs a command and starts a sub-agent with it."""

    name: str
    program: Program
    configure: Callable[[Path, str], dict[str, str]]
    run: tuple[str, ...]
    resume: tuple[str, ...]
    home: str
    tool: str
    command: dict[str, Any]
    agent: str = ""
    order: dict[str, Any] | None = None


def configure_claude_code(_: Path, url: str) -> dict[str, str]:
    names = dict.fromkeys(("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL"), "any")
    return names | {"ANTHROPIC_BASE_URL": url, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def configure_codex(home: Path, url: str) -> dict[str, str]:
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex/config.toml").write_text(
        'model = "any"\nmodel_provider = "cfs"\nmodel_context_window = 32768\n[features]\nmulti_agent = true\n'
        f'[model_providers.cfs]\nname = "CFS"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    )
    return {}


def configure_opencode(home: Path, url: str) -> dict[str, str]:
    model = {"name": "CFS", "reasoning": True, "limit": {"context": 32768, "output": 8192}}
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "CFS", "options": options, "models": {"any": model}}
    (home / "project/opencode.json").write_text(
        json.dumps({"model": "cfs/any", "permission": "allow", "provider": {"cfs": provider}})
    )
    return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def configure_pi(home: Path, url: str) -> dict[str, str]:
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none"}
    (home / ".pi/agent").mkdir(parents=True, exist_ok=True)
    (home / ".pi/agent/models.json").write_text(
        json.dumps({"providers": {"cfs": provider | {"models": [{"id": "any", "reasoning": True}]}}})
    )
    return {}


CODEX_RUN = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
PI_RUN = ("pi", "-p", "--offline", "--provider", "cfs", "--model", "any")
SHELL = {"command": COMMAND, "description": "Write."}
CASES = [
    Case(
        "claude-code",
        CLAUDE_CODE,
        configure_claude_code,
        ("claude", "-p", "--allowedTools", "Bash", "Agent", "--"),
        ("claude", "-p", "--resume", "{id}"),
        ".claude",
        "Bash",
        SHELL,
        "Agent",
        {"description": "look", "prompt": ORDER, "subagent_type": "general-purpose"},
    ),
    Case(
        "codex",
        CODEX,
        configure_codex,
        CODEX_RUN,
        (*CODEX_RUN, "resume", "{id}"),
        ".codex",
        "exec_command",
        {"cmd": COMMAND},
        "multi_agent_v1__spawn_agent",
        {"message": ORDER},
    ),
    Case("pi", PI, configure_pi, PI_RUN, (*PI_RUN, "--session", "{file}"), ".pi/agent", "bash", SHELL),
    Case(
        "opencode",
        OPENCODE,
        configure_opencode,
        ("opencode", "run"),
        ("opencode", "run", "-s", "{id}"),
        ".local/share/opencode",
        "bash",
        SHELL,
        "task",
        {"description": "look", "prompt": ORDER, "subagent_type": "general"},
    ),
]


class Worker:
    """A model that thinks, runs two commands at once, starts a sub-agent, and answers."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __call__(self, request: GenerationRequest) -> Iterator[str | Delta]:
        """Answer a request by what the conversation has already."""
        case, results = self._case, [message for message in request.messages if message.role == "tool"]
        text = "\n".join(message.content for message in request.messages if message.role == "user")
        if not request.options.tools:
            yield "A title."
        elif QUESTION in text:
            yield "Second answer."
        elif ORDER in text:
            yield "The notes say milk."
        elif not results:
            yield Delta("", 1, thinking="I need a file. ")
            arguments = json.dumps(case.command)
            yield Delta("I write it. ", 1, calls=tuple(CallDelta(n, f"call_{n}", case.tool, arguments) for n in (0, 1)))
        elif len(results) == 2 and case.agent:
            yield Delta("I ask. ", 1, calls=(CallDelta(0, "call_2", case.agent, json.dumps(case.order)),))
        elif len(results) == 3 and case.program is CODEX:
            agents = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", results[-1].content)
            arguments = json.dumps({"targets": agents, "timeout_ms": 20_000})
            yield Delta("", 1, calls=(CallDelta(0, "call_3", "multi_agent_v1__wait_agent", arguments),))
        else:
            yield "All done."


async def run(case: Case, server: ServerHarness, home: Path, *command: str) -> str:
    """Run a program in its working folder with a home of its own; return its output."""
    work = home / "project"
    work.mkdir(parents=True, exist_ok=True)
    path = f"{case.program.executables}{os.pathsep}{os.environ['PATH']}"
    env = environment(PATH=path, HOME=str(home), PWD=str(work), LC_ALL="C.UTF-8", NO_PROXY="127.0.0.1,localhost")
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        env=env | case.configure(home, server.url),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 240)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (output, errors)
    return output.decode()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=pytest.mark.slow if case.name == "opencode" else ()) for case in CASES],
)
async def test_a_conversation_goes_there_and_back(case: Case, tmp_path: Path) -> None:
    """What the program wrote is a session here; what is exported of it is a session there, and goes on."""
    await asyncio.to_thread(case.program.install)
    first, second = tmp_path / "first", tmp_path / "second"
    async with running_server(Worker(case), may_block=True) as server:
        await run(case, server, first, *case.run, TASK)
        code, errors = await asyncio.to_thread(cfs_import, server.url, case.name, first / case.home)
        assert code == 0, errors
        sessions = await asyncio.to_thread(imported, server.url)
        root = next(name for name in sessions if "/" not in name)
        history = [message for message in sessions[root].history if message.role != "system"]
        assert history[0].content.strip('"') == TASK
        assert (history[1].content.strip(), (history[1].thinking or "").strip()) == ("I write it.", "I need a file.")
        assert [call.name for call in history[1].tool_calls] == [case.tool, case.tool]
        assert all("milk" in message.content for message in history[2:4])
        assert history[-1].content == "All done."
        assert sessions[root].tokens > 0
        children = [detail for name, detail in sessions.items() if name.startswith(f"{root}/")]
        assert len(children) == bool(case.agent)
        for child in children:
            texts = [message.content for message in child.history if message.role != "system"]
            assert texts == [ORDER, "The notes say milk."]

        target = second / case.home
        command = [str(CFS), "export", "--as", case.name, "--folder", str(second / "project"), str(target), root]
        done = await run(case, server, second, *command, "--url", server.url)
        resume = done.splitlines()[0]
        value = resume.split()[-1]
        if case.program is OPENCODE:
            for line in done.splitlines():
                await run(case, server, second, *line.split())
            value = Path(value).stem
        before = len(server.engine.requests)
        answer = await run(case, server, second, *(word.format(id=value, file=value) for word in case.resume), QUESTION)
        assert "Second answer." in answer
        request = next(each for each in server.engine.requests[before:] if each.options.tools)
        shown = "\n".join(message.content for message in request.messages)
        for text in (TASK, "I write it.", "milk", "All done.", QUESTION):
            assert text in shown, request.messages
        assert [call.name for message in request.messages for call in message.tool_calls][:2] == [case.tool, case.tool]
