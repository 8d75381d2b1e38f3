"""How each harness wants its actions: as calls of its tools, or as code. Pure: no I/O."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness_bench.tasks import Action


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool by its name."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Writes actions for one harness: `call` makes the call of one action, or text where the answer is plain text.

    `code` writes a whole reply as text instead, for harnesses that run code.
    """

    call: Callable[[Action], Call | str]
    code: Callable[[Sequence[Action]], str] | None = None


def _shell_write(action: Action) -> str:
    folder = shlex.quote(action.name.rpartition("/")[0] or ".")
    return f"mkdir -p {folder} && printf %s {shlex.quote(action.content)} > {shlex.quote(action.name)}"


def _file_tools(run: str, answer: Callable[[str], Call | str]) -> Callable[[Action], Call | str]:
    """Return a dialect with `write_file`, `read_file` and a tool `run` for commands."""

    def call(action: Action) -> Call | str:
        match action.kind:
            case "write":
                return Call("write_file", {"path": action.name, "content": action.content})
            case "read":
                return Call("read_file", {"path": action.name})
            case "run":
                return Call(run, {"command": action.name})
            case "answer":
                return answer(action.name)
            case "mcp":
                raise ValueError(action.name)

    return call


_cfs = _file_tools("execute_command", str)
_smol_tools = _file_tools("run_command", lambda text: Call("final_answer", {"answer": text}))


def _smol_code(actions: Sequence[Action]) -> str:
    lines = []
    for action in actions:
        called = _smol_tools(action)
        assert isinstance(called, Call)
        arguments = ", ".join(f"{name}={value!r}" for name, value in called.arguments.items())
        call = f"{called.name}({arguments})"
        lines.append(call if action.kind in ("answer", "write") else f"print({call})")
    return "Thought: the next step.\n<code>\n" + "\n".join(lines) + "\n</code>"


def _mini(action: Action) -> Call | str:
    match action.kind:
        case "write":
            return Call("bash", {"command": _shell_write(action)})
        case "read":
            return Call("bash", {"command": f"cat {shlex.quote(action.name)}"})
        case "run":
            return Call("bash", {"command": action.name})
        case "answer":
            said = shlex.quote(action.name)
            return Call("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {said}"})
        case "mcp":
            raise ValueError(action.name)


def _deep(action: Action) -> Call | str:
    match action.kind:
        case "write":
            return Call("write_file", {"file_path": f"/{action.name}", "content": action.content})
        case "read":
            return Call("read_file", {"file_path": f"/{action.name}"})
        case "run":
            return Call("execute", {"command": action.name})
        case "answer":
            return action.name
        case "mcp":
            raise ValueError(action.name)


def _openhands(directory: str) -> Callable[[Action], Call | str]:
    def call(action: Action) -> Call | str:
        path = f"{directory}/{action.name}"
        match action.kind:
            case "write":
                return Call("file_editor", {"command": "create", "path": path, "file_text": action.content})
            case "read":
                return Call("file_editor", {"command": "view", "path": path})
            case "run":
                return Call("terminal", {"command": action.name})
            case "answer":
                return Call("finish", {"message": action.name})
            case "mcp":
                raise ValueError(action.name)

    return call


def dialect(name: str, directory: str) -> Dialect:
    """Return the dialect of a side; `directory` is where it works, for harnesses that want absolute paths."""
    match name:
        case "CFS file agent" | "CFS Fibre":
            return Dialect(_cfs)
        case "smolagents tools":
            return Dialect(_smol_tools)
        case "smolagents code":
            return Dialect(_smol_tools, _smol_code)
        case "mini-swe-agent":
            return Dialect(_mini)
        case "deepagents":
            return Dialect(_deep)
        case "OpenHands SDK":
            return Dialect(_openhands(directory))
    raise ValueError(name)


def arguments_text(call: Call) -> str:
    """Return the arguments as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)
