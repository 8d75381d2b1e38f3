"""Scenes in which the model calls tools, or says that it lacks one.

A tool kind is a function that makes one `Task`: request, call, possible results with the closing answers. To
add a kind, describe the tool in TOOLS and enter such a function with `@task("its_tool")`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from demo_model import tool_phrases as say
from demo_model import words
from demo_model.chat_format import Message, Tool, ToolCall
from demo_model.scenes import Cast, Exchange

TOOLS = [
    Tool("read_file", {"path": "string", "start_line": "integer", "end_line": "integer"}),
    Tool("write_file", {"path": "string", "content": "string"}),
    Tool("list_directory", {"path": "string"}),
    Tool("execute_command", {"command": "string", "working_dir": "string"}),
]
OTHER_TOOLS = [
    Tool("sync_context", {"new_context_content": "string"}),
    Tool("search", {"query": "string"}),
    Tool("get_time"),
    Tool("leave_note", {"to": "string", "text": "string"}),
]


@dataclass(frozen=True)
class Task:
    """One use of a tool, from the request to the closing answer."""

    request: str
    call: ToolCall
    result: str
    answer: str
    failure: str = ""  # the closing answer's opening when the tool fails


TASKS: dict[str, list[Callable[[Cast], Task]]] = {}


def task(tool: str) -> Callable[[Callable[[Cast], Task]], Callable[[Cast], Task]]:
    """Enter a task maker under the tool that it needs."""

    def enter(function: Callable[[Cast], Task]) -> Callable[[Cast], Task]:
        TASKS.setdefault(tool, []).append(function)
        return function

    return enter


def _content(cast: Cast) -> str:
    pick = cast.rng.random()
    if pick < 0.08:
        return words.number(cast.rng)
    if pick < 0.14:
        return f"{words.word(cast.rng)} = {words.number(cast.rng)}"
    return words.phrase(cast.rng, cast.language, cast.rng.choice((1, 2, 3, 5, 8))).replace('"', "")


def _fits_unquoted(content: str) -> bool:
    return content[-1] not in ".!?。！？"


@task("write_file")
def write(cast: Cast) -> Task:
    """A file is to be written."""
    path, content = words.file(cast.rng), _content(cast)
    pick = cast.rng.random()
    if pick < 0.06:
        content += "\n" + _content(cast)
        asked = cast.pick(say.WRITE_BLOCK, say.WRITE_BLOCK_ZH)
    elif pick < 0.55 and _fits_unquoted(content):
        asked = cast.pick(say.WRITE, say.WRITE_ZH)
    else:
        asked = cast.pick(say.WRITE_QUOTED, say.WRITE_QUOTED_ZH)
    result = cast.rng.choice(
        ["OK", "ok", "", f"Wrote {len(content.encode())} bytes to {path}", f"Successfully wrote {path}",
         f"{path}: {len(content)} bytes written", '{"ok": true}', f"File written: {path}", "File written successfully."]
    )  # fmt: skip
    return Task(
        asked.replace("#", path).replace("*", content),
        ToolCall("write_file", {"path": path, "content": content}),
        result,
        cast.say(f"I wrote the file {path}.", f"我已写好文件{path}。"),
        cast.say(f"I could not write {path}", f"我没能写入{path}"),
    )


@task("read_file")
def read(cast: Cast) -> Task:
    """A file is to be read, whole or some of its lines."""
    path = words.file(cast.rng)
    arguments: dict[str, str | int] = {"path": path}
    if cast.rng.random() < 0.25:
        first = cast.rng.randint(1, cast.rng.choice((9, 40, 300)))
        last = first + cast.rng.randint(0, cast.rng.choice((5, 30, 100)))
        arguments |= {"start_line": first, "end_line": last}
        asked = cast.pick(say.READ_LINES, say.READ_LINES_ZH).replace("@", str(first)).replace("*", str(last))
    else:
        asked = cast.pick(say.READ, say.READ_ZH)
    lines = [_content(cast) for _ in range(cast.rng.choice((1, 1, 1, 1, 2, 4)))]
    if len(lines) == 1:
        answer = cast.say(f"{path} says: {lines[0]}", f"{path}的内容是：{lines[0]}")
    else:
        answer = cast.say(f"{path} begins with: {lines[0]}", f"{path}的开头是：{lines[0]}")
    return Task(
        asked.replace("#", path),
        ToolCall("read_file", arguments),
        "\n".join(lines),
        answer,
        cast.say(f"I could not read {path}", f"我没能读取{path}"),
    )


@task("list_directory")
def listing(cast: Cast) -> Task:
    """A directory is to be listed."""
    path = words.folder(cast.rng)
    here = cast.rng.random() < 0.12
    if here:
        path, asked = ".", cast.pick(say.LIST_HERE, say.LIST_HERE_ZH)
    else:
        asked = cast.pick(say.LIST, say.LIST_ZH)
    names = [words.stem(cast.rng) + cast.rng.choice((".txt", ".md", ".py", "/")) for _ in range(cast.rng.randint(0, 4))]
    if not names:
        answer = cast.say(f"{path} is empty.", f"{path}是空的。")
    else:
        answer = cast.say(f"{path} contains: {', '.join(names)}", f"{path}里有：{'、'.join(names)}")
    return Task(
        asked.replace("#", path),
        ToolCall("list_directory", {"path": path}),
        "\n".join(names) or cast.rng.choice(("", "(empty)", "empty")),
        answer,
        cast.say(f"I could not list {path}", f"我没能列出{path}"),
    )


@task("execute_command")
def run(cast: Cast) -> Task:
    """A command is to be run, here or in a directory."""
    command = words.command(cast.rng)
    arguments = {"command": command}
    if cast.rng.random() < 0.15:
        arguments["working_dir"] = words.folder(cast.rng)
        asked = cast.pick(say.RUN_IN, say.RUN_IN_ZH).replace("@", arguments["working_dir"])
    elif cast.rng.random() < 0.5:
        asked = cast.pick(say.RUN_QUOTED, say.RUN_QUOTED_ZH)
    else:
        asked = cast.pick(say.RUN, say.RUN_ZH)
    output = cast.rng.choice((_content(cast), _content(cast), ""))
    if output:
        answer = cast.say(f"The command printed: {output}", f"命令输出：{output}")
    else:
        answer = cast.say("The command finished without output.", "命令已执行，没有输出。")
    status = cast.rng.choice(("", "", "exit status 0", "exit code: 0"))
    return Task(
        asked.replace("*", command),
        ToolCall("execute_command", arguments),
        "\n".join(part for part in (output, status) if part),
        answer,
        cast.say("The command failed", "命令失败了"),
    )


def _failure(cast: Cast) -> tuple[str, str]:
    reason = cast.rng.choice([*say.REASONS, *(words.phrase(cast.rng, "en", 5).rstrip(".!?") for _ in range(8))])
    shape = cast.rng.choice(("Error: *", "Error: *", "error: *", "[Error: *]", '{"error": "*"}', "Failed: *"))
    return shape.replace("*", reason), reason


def closed(cast: Cast, one: Task) -> list[Message]:
    """The call, its result and the answer that closes it; now and then the tool fails."""
    result, answer = one.result, one.answer
    if cast.rng.random() < 0.2:
        result, reason = _failure(cast)
        answer = cast.say(f"{one.failure}: {reason}.", f"{one.failure}：{reason}。")
    return [Message("assistant", "", one.call), Message("tool", result), Message("assistant", answer)]


def use(cast: Cast, tool: str) -> Exchange:
    """A request that one tool answers."""
    one = cast.rng.choice(TASKS[tool])(cast)
    return [Message("user", one.request), *closed(cast, one)]


def use_two(cast: Cast, tools: list[str]) -> Exchange:
    """A request that takes two calls, one after the other."""
    first, second = (cast.rng.choice(TASKS[cast.rng.choice(tools)])(cast) for _ in range(2))
    link = cast.pick([", then ", " and then ", ". Then "], ["，然后", "，再", "。然后"])
    request = first.request.rstrip(".?。？") + link + second.request[:1].lower() + second.request[1:]
    calls = [Message("assistant", "", first.call), Message("tool", first.result)]
    return [Message("user", request), *calls, *closed(cast, second)]


def lacking(cast: Cast, tool: str) -> Exchange:
    """A request whose tool is not listed: the answer is words."""
    one = cast.rng.choice(TASKS[tool])(cast)
    words_ = cast.say("I have no tool for that.", "我没有可用的工具来做这件事。")
    return [Message("user", one.request), Message("assistant", words_)]


def toolbox(cast: Cast) -> list[Tool]:
    """The tools that a dialogue lists: all or some, in any order, sometimes with others between."""
    count = cast.rng.choice((1, 1, 2, 2, 3, 4, 4, 4))
    tools = cast.rng.sample(TOOLS, count)
    if count == 4 and cast.rng.random() < 0.5:
        tools = list(TOOLS)
    if cast.rng.random() < 0.3:
        tools += cast.rng.sample(OTHER_TOOLS, cast.rng.choice((1, 1, 2)))
        if cast.rng.random() < 0.5:
            cast.rng.shuffle(tools)
    return tools


def verbose_tools(cast: Cast, tools: list[Tool]) -> str:
    """The tools as callers write them into a system message by hand: whole OpenAI definitions."""
    definitions = [tool.as_dict() for tool in tools]
    for definition in definitions:
        definition["function"]["description"] = words.sentence(cast.rng, "en", 8)
    indent = 2 if cast.rng.random() < 0.15 else None
    shape = cast.rng.random()
    if shape < 0.5:
        return json.dumps(definitions, indent=indent)
    functions = [definition["function"] for definition in definitions]
    return json.dumps(functions, indent=indent) if shape < 0.8 else "\n".join(map(json.dumps, functions))
