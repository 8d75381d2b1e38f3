"""What it costs to render messages for the dashboard, over HTTP: new ones, known ones, and beside a hostile one.

Run by `scripts/bench render [--smoke] [--json FILE]`. The server is a process of its own. A message is 10 kB of
markdown with headings, lists, tables, addresses and 14 blocks of code; each round has other words, so that the cache
does not have it.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

import httpx

from rest import serving

SIZE = 10_000
HOSTILE = "![" * 200_000
CODE = '''```python
@dataclass(frozen=True)
class Point{number}:
    """A place."""  # in the plane

    x: float = {number}.5

    def moved(self, by: float) -> "Point{number}":
        return replace(self, x=self.x + by) if by else self
```
'''
PART = (
    """## Part {number}

Some *emphasis*, **strong words**, `code({number})` and an address, https://example.com/{number}?a=1, in a paragraph of
usual length. It has a second sentence, and [a link](https://example.com/{number}) in the third one.

1. first, with `code`
2. second
   - inner one
   - inner two

| name | value |
|------|------:|
| a    | {number} |
| b    | ~~2~~ |

"""
    + CODE
)


def message(round_: int, size: int = SIZE) -> str:
    """Return a message that no other round has."""
    parts = (PART.replace("{number}", str(round_ * 1000 + number)) for number in range(size // 400))
    return "".join(parts)[:size]


async def render(client: httpx.AsyncClient, text: str) -> float:
    """Render a message; how many milliseconds that took."""
    began = time.perf_counter()
    answer = await client.post("/v1/render", json={"items": [{"text": text, "language": "markdown"}]})
    answer.raise_for_status()
    return (time.perf_counter() - began) * 1000


async def measure(url: str, rounds: int) -> dict[str, float]:
    """Return all figures in milliseconds."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        first = await render(client, message(0))
        new = [await render(client, message(round_)) for round_ in range(1, rounds)]
        known = [await render(client, message(round_)) for round_ in range(1, rounds)]
        grown = [await render(client, message(rounds, size)) for size in range(500, SIZE, 500)]
        hostile = asyncio.create_task(render(client, HOSTILE))
        await asyncio.sleep(0.1)
        beside = []
        while not hostile.done():
            began = time.perf_counter()
            (await client.get("/healthz")).raise_for_status()
            beside.append((time.perf_counter() - began) * 1000)
        return {
            "first message, with the start of the process": first,
            "new message, median": statistics.median(new),
            "new message, 95 %": statistics.quantiles(new, n=20)[-1],
            "known message, median": statistics.median(known),
            "all of a growing message, rendered each 500 characters": sum(grown),
            "hostile message, until it is returned unformatted": await hostile,
            "another request meanwhile, median": statistics.median(beside),
            "another request meanwhile, longest": max(beside),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with serving("--engine", "scripted") as (url, _):
        found = asyncio.run(measure(url, 5 if options.smoke else 200))
    print("| what (10 kB of markdown) | ms |\n|---|---|")
    for name, value in found.items():
        print(f"| {name} | {value:.1f} |")
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
