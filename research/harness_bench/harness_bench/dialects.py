"""How each harness wants its actions: as calls of its tools, or as code. Pure: no I/O."""

import json
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from harness_bench.tasks import Action, ActionKind, Child


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool by its name."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Writes actions for one harness: `call` makes the call of one action, or text where the answer is plain text.

    `code` writes a whole reply as text instead, for harnesses that run code. `fan_out` makes the replies that start
    children and wait for them; None where there are no children. `changes` says how its tools
    change a file: by an edit, or by writing all of it.
    """

    call: Callable[[Action], Call | str]
    code: Callable[[Sequence[Action]], str] | None = None
    fan_out: Callable[[Sequence[Child]], Sequence[Sequence[Call]]] | None = None
    changes: Collection[ActionKind] = ("edit", "rewrite")


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
            case "edit":
                return Call("edit_file", {"path": action.name, "old": action.old, "new": action.content})
            case "run":
                return Call(run, {"command": action.name})
            case "answer" | "report":
                return answer(action.name)
            case "mcp" | "rewrite":
                raise ValueError(action.name)

    return call


_cfs_agent = _file_tools("execute_command", str)


def _cfs(action: Action) -> Call | str:
    if action.kind == "report":
        return Call("sys_finish_task", {"status": "success", "summary": action.name})
    return _cfs_agent(action)


def _cfs_fan_out(children: Sequence[Child]) -> Sequence[Sequence[Call]]:
    about = {"role_description": "one of several", "system_instruction": "You work on files.", "max_turns": 60}
    return [
        [Call("sys_spawn_agent", {"agent_name": child.name, "task_goal": child.words, **about}) for child in children],
        *([Call("sys_wait_agent", {"agent_id": child.name})] for child in children),
    ]


def _smol_fan_out(children: Sequence[Child]) -> Sequence[Sequence[Call]]:
    return [[Call(child.name, {"task": child.words}) for child in children]]


def _deep_fan_out(children: Sequence[Child]) -> Sequence[Sequence[Call]]:
    kind = {"subagent_type": "general-purpose"}
    return [[Call("task", {"description": child.words, **kind}) for child in children]]


def _openhands_fan_out(children: Sequence[Child]) -> Sequence[Sequence[Call]]:
    kind = {"subagent_type": "general-purpose"}
    return [[Call("task", {"description": child.name, "prompt": child.words, **kind}) for child in children]]


_smol_tools = _file_tools("run_command", lambda text: Call("final_answer", {"answer": text}))


def _smol_code(actions: Sequence[Action]) -> str:
    lines = []
    for action in actions:
        called = _smol_tools(action)
        assert isinstance(called, Call)
        arguments = ", ".join(f"{name}={value!r}" for name, value in called.arguments.items())
        call = f"{called.name}({arguments})"
        lines.append(call if action.kind in ("answer", "report", "write") else f"print({call})")
    return "Thought: the next step.\n<code>\n" + "\n".join(lines) + "\n</code>"


def _mini(action: Action) -> Call | str:
    match action.kind:
        case "write":
            return Call("bash", {"command": _shell_write(action)})
        case "read":
            return Call("bash", {"command": f"cat {shlex.quote(action.name)}"})
        case "run":
            return Call("bash", {"command": action.name})
        case "answer" | "report":
            said = shlex.quote(action.name)
            return Call("bash", {"command": f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {said}"})
        case "mcp" | "edit" | "rewrite":
            raise ValueError(action.name)


def _deep(action: Action) -> Call | str:
    match action.kind:
        case "write":
            return Call("write_file", {"file_path": f"/{action.name}", "content": action.content})
        case "read":
            return Call("read_file", {"file_path": f"/{action.name}"})
        case "edit":
            path = f"/{action.name}"
            return Call("edit_file", {"file_path": path, "old_string": action.old, "new_string": action.content})
        case "run":
            return Call("execute", {"command": action.name})
        case "answer" | "report":
            return action.name
        case "mcp" | "rewrite":
            raise ValueError(action.name)


def _openhands(directory: str) -> Callable[[Action], Call | str]:
    def call(action: Action) -> Call | str:
        path = f"{directory}/{action.name}"
        match action.kind:
            case "write":
                return Call("file_editor", {"command": "create", "path": path, "file_text": action.content})
            case "read":
                return Call("file_editor", {"command": "view", "path": path})
            case "edit":
                change = {"old_str": action.old, "new_str": action.content}
                return Call("file_editor", {"command": "str_replace", "path": path, **change})
            case "run":
                return Call("terminal", {"command": action.name})
            case "answer" | "report":
                return Call("finish", {"message": action.name})
            case "mcp" | "rewrite":
                raise ValueError(action.name)

    return call


_WRITES: tuple[ActionKind, ...] = ("rewrite",)
_EDITS: tuple[ActionKind, ...] = ("edit",)


def dialect(name: str, directory: str) -> Dialect:
    """Return the dialect of a side; `directory` is where it works, for harnesses that want absolute paths."""
    match name:
        case "CFS file agent":
            return Dialect(_cfs_agent)
        case "CFS Fibre":
            return Dialect(_cfs, fan_out=_cfs_fan_out, changes=_WRITES)
        case "smolagents tools":
            return Dialect(_smol_tools, fan_out=_smol_fan_out, changes=_WRITES)
        case "smolagents code":
            return Dialect(_smol_tools, _smol_code, _smol_fan_out, changes=_WRITES)
        case "mini-swe-agent":
            return Dialect(_mini, changes=_WRITES)
        case "deepagents":
            return Dialect(_deep, fan_out=_deep_fan_out)
        case "OpenHands SDK":
            return Dialect(_openhands(directory), fan_out=_openhands_fan_out, changes=_EDITS)
    raise ValueError(name)


def arguments_text(call: Call) -> str:
    """Return the arguments as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)
