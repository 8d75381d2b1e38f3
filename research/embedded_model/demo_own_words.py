"""Examine the embedded model in people's own words: what somebody typed who had not seen what training is made of.

    scripts/bench demo_own_words [MODEL.gguf] [--only prompts,agents,trees,requests] [--failures] [--json FILE]

The data are in `own_words/`, written by hand: prompts, tasks for agents and for trees of agents, and requests that
openai, langchain and pydantic-ai sent (`own_words/record.py`). Everything goes through a real server, with
temperature 0, and what a model writes is constrained as it is for every user: a call that is begun is a valid one.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from cfs import wire
from cfs.transports.async_http import AsyncClient
from cfs_agents.loop.model import Item as Reply
from cfs_agents.loop.model import Model
from cfs_agents.loop.server_model import ModelSettings, ServerModel
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.file_agent import FileSystemAgent
from cfs_agents.tree.session_folder import WORKSPACE_FOLDER
from demo_agents import DEFAULT, MEMORY, serving

DATA = Path(__file__).with_name("own_words")
PARTS = ("prompts", "agents", "trees", "requests")
Item = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """How one item went. `overlap`: of a tree, whether its sub-agents worked at the same time."""

    part: str
    kind: str
    spoken: str
    right: bool
    asked: str
    came: str
    overlap: bool | None = None


def items(part: str) -> list[Item]:
    """Return the items of one part of the examination."""
    found: list[Item] = json.loads((DATA / f"{part}.json").read_text())
    return found


# -- prompts and requests ---------------------------------------------------------------------------------------------


async def complete(http: httpx.AsyncClient, body: Item) -> Item:
    """Send a chat completion and return the message."""
    response = await http.post("/v1/chat/completions", json={"model": "cfs", "temperature": 0, **body})
    if response.is_error:
        return {"content": f"HTTP {response.status_code} {response.text[:200]}"}
    message: Item = response.json()["choices"][0]["message"]
    return message


async def prompt(http: httpx.AsyncClient, item: Item) -> Result:
    """Have a conversation; only the last reply counts."""
    messages = [{"role": "system", "content": item["system"]}] if "system" in item else []
    reply = ""
    for said in item["say"]:
        messages.append({"role": "user", "content": said})
        reply = (await complete(http, {"messages": messages, "max_tokens": 100})).get("content") or ""
        messages.append({"role": "assistant", "content": reply})
    right = re.search(item["right"], reply.strip(), re.IGNORECASE) is not None
    if "wrong" in item:
        right = right and re.search(item["wrong"], reply, re.IGNORECASE) is None
    return Result("prompts", item["kind"], item["spoken"], right, " | ".join(item["say"]), reply)


def fits(wanted: Any, found: Any) -> bool:
    """Whether a value is the wanted one: texts in any case and without marks at their ends, numbers by value."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and fits(wanted[key], found[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(fits, wanted, found))
    if not isinstance(wanted, str):
        return bool(wanted == found)
    if not isinstance(found, str):
        return False
    plain, got = (re.sub(r"^\W+|\W+$", "", text.casefold()) for text in (wanted.removeprefix("~"), found))
    return plain in got and len(got) < 3 * len(plain) if wanted.startswith("~") else plain == got


async def request(http: httpx.AsyncClient, item: Item) -> Result:
    """Send what a client sent, and look at the call or at the JSON of the reply."""
    message = await complete(http, {**item["body"], "max_tokens": 200})
    calls = message.get("tool_calls") or []
    came = calls[0]["function"] if calls else {"name": None, "arguments": message.get("content")}
    try:
        arguments = json.loads(str(came["arguments"]))
    except (TypeError, ValueError):
        arguments = None
    right = fits(item["arguments"], arguments) and item.get("name", came["name"]) == came["name"]
    right = right and isinstance(arguments, dict) and len(calls) <= 1
    asked = item["body"]["messages"][-1]["content"]
    spoken = "en" if asked.isascii() else "zh"
    shown = f"{came['name']} {came['arguments']}"
    return Result(item["kind"], item["client"], spoken, right, asked, shown)


# -- agents and trees -------------------------------------------------------------------------------------------------


def left(workspace: Path) -> dict[str, str]:
    """Return the files of a workspace; a line break at the end does not count."""
    files = (path for path in sorted(workspace.rglob("*")) if path.is_file())
    return {
        path.relative_to(workspace).as_posix(): path.read_text(errors="replace").removesuffix("\n") for path in files
    }


async def agent(model: Model, item: Item) -> Result:
    """Let an agent with its usual configuration do a task."""
    files, wrote = item.get("files", {}), item.get("wrote", {})
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        workspace = Path(folder) / "workspace"
        for path, content in files.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(content)
        async with FileSystemAgent(project_root=Path(folder), model=model) as worker:
            said = (await worker.run(item["task"])).text
        came = left(workspace)
    right = came == {**files, **wrote}
    says = (each if any(mark in each for mark in "|\\") else re.escape(each) for each in item.get("says", ()))
    right = right and all(re.search(each, said, re.IGNORECASE) for each in says)
    return Result("agents", item["kind"], item["spoken"], right, item["task"], f"{said!r} {came}")


class Watched:
    """A model that notes when each agent asks it."""

    def __init__(self, model: Model, times: list[float]) -> None:
        self._model, self._times = model, times

    async def stream(self, messages: Sequence[wire.Message], tools: Sequence[Item] = ()) -> AsyncGenerator[Reply]:
        """Pass the replies on."""
        self._times.append(time.monotonic())
        async for reply in self._model.stream(messages, tools):
            yield reply
        self._times.append(time.monotonic())


def overlap(times: Iterable[list[float]]) -> bool:
    """Whether all of some agents were at work at one moment."""
    spans = [(min(some), max(some)) for some in times if some]
    return len(spans) > 1 and max(begin for begin, _ in spans) < min(end for _, end in spans)


async def tree(model: Model, item: Item) -> Result:
    """Let a tree of agents do a task; right when each file was written, and by at least two sub-agents."""
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        config = FibreConfig(prompt="short", root_max_turns=16, max_turns=6, max_agents=6, timeout=120)
        async with FibreAgent(folder, lambda name: Watched(model, times[name]), config) as agents:
            said = (await agents.run(item["task"])).summary
        came = left(Path(folder) / "main" / WORKSPACE_FOLDER)
    children = [some for name, some in times.items() if name != "main"]
    right = came == item["wrote"] and len(children) > 1
    return Result(
        "trees", item["kind"], item["spoken"], right, item["task"], f"{said!r} {came} {list(times)}", overlap(children)
    )


# -- the examination --------------------------------------------------------------------------------------------------


async def examine(url: str, parts: Sequence[str]) -> list[Result]:
    """Run parts of the examination, one item after the other."""
    results: list[Result] = []
    settings = ModelSettings(temperature=0, seed=1, max_tokens=300)
    async with AsyncClient(url, timeout=120) as client, httpx.AsyncClient(base_url=url, timeout=120) as http:
        model = ServerModel(client, settings)
        for part in parts:
            for item in items(part):
                if part == "prompts":
                    results.append(await prompt(http, item))
                elif part == "requests":
                    results.append(await request(http, item))
                elif part == "agents":
                    results.append(await agent(model, item))
                else:
                    results.append(await tree(model, item))
    return results


def _row(name: str, some: list[Result]) -> str:
    spoken = [[one.right for one in some if one.spoken == each] for each in ("en", "zh")]
    cells = (f"{sum(each)} of {len(each)}" if each else "" for each in spoken)
    right = sum(one.right for one in some)
    return f"| {name} | {right} of {len(some)} | {100 * right / len(some):.0f} % | {' | '.join(cells)} |"


def table(results: list[Result]) -> str:
    """Write the figures as docs/benchmarks.md has them."""
    parts: dict[str, list[Result]] = defaultdict(list)
    kinds: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        parts[result.part].append(result)
        kinds[f"{result.part}: {result.kind}"].append(result)
    lines = ["| what | right | | English | Chinese |", "|---|--:|--:|--:|--:|"]
    lines += [_row(f"**{part}**", some) for part, some in parts.items()]
    lines += [_row(kind, some) for kind, some in kinds.items() if kind != "trees: tree"]
    if trees := parts.get("trees"):
        lines.append(f"\nSub-agents at work at the same time: in {sum(bool(one.overlap) for one in trees)} trees.")
    return "\n".join(lines)


def main() -> None:
    """Examine a model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the examination")
    parser.add_argument("--failures", action="store_true", help="print what went wrong")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with serving(arguments.model) as url:
        results = asyncio.run(examine(url, arguments.only.split(",")))
    print(table(results))
    for result in results if arguments.failures else ():
        if not result.right:
            print(f"--- {result.part}, {result.kind}: {result.asked!r}\n    {result.came}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in results], indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
