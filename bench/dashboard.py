"""How smooth the dashboard is while many agents talk: frames, heap, and the time from a token to the pixel.

Run by `scripts/bench dashboard [--smoke | --minutes N] [--json FILE]`. A server of its own with the scripted engine
holds a tree of 200 sub-sessions, ten of which say 50 tokens a second each, in replies of 1,000 tokens of markdown:
headings, paragraphs, lists, code and tables. Each token ends with the time at which it was made. Chromium (without a
window and without a graphics card) shows the columns of the agents, where each reply is rendered as it grows. A token
is on the screen at the end of the frame after the one in which its text came into the page. The heap is flat if it is
not much larger in the end than after the first minute, when the page keeps as many messages as it ever does.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import CDPSession, Page, sync_playwright

from cfs_server.app import create_app
from cfs_server.config.settings import ServerSettings
from cfs_server.engine.contract.interface import GenerationRequest
from cfs_server.engine.host.scripted import ScriptedEngine
from cfs_server.main import logs
from cfs_server.main.serve import UvicornServer, listen, server_config, url_of

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
SUB_SESSIONS = 200
STREAMING = 10
TOKENS_A_SECOND = 50
REPLY = 1000
FRAMES_BAR = 50.0
PIXEL_BAR_MS = 100.0
HEAP_BAR = 1.5
WARM_SECONDS = 60
MARKDOWN = (
    *("## A heading @", "\n\n"),
    *("A paragraph with **bold words** @ ", "and `code` @ ", "and *others* @ ", "that goes on @ ") * 4,
    *("\n\n", "- an item @\n", "- [a link](https://example.com/) @\n", "- one more @\n", "\n```python\n"),
    *("def f(x: int) -> str:  # @\n", '    return f"{x}"  # @\n', "\n\n") * 3,
    *("```\n", "\n", "| a | b |\n|---|--:|\n", "| one | @ |\n", "| two | @ |\n", "\n", "> A quote @\n", "\n"),
)
"""What each reply says again and again; a time stands for each @."""
PROBE = """
class Row {  // of numbers, with room from the beginning, so that measuring does not grow the heap
  values = new Float32Array(1 << 19);
  count = 0;
  push(value) { this.values[this.count++] = value; }
  read() { return [...this.values.subarray(0, this.count)]; }
}
window.figures = {frames: new Row(), delays: new Row(), rendered: 0};
const plainFetch = window.fetch;
window.fetch = (path, options) => {
  if (path === '/v1/render') figures.rendered += JSON.parse(options.body).items.length;
  return plainFetch(path, options);
};
let before = performance.now();
const frame = (now) => { figures.frames.push(now - before); before = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
const arrived = [];
const seen = () => {
  requestAnimationFrame(() => setTimeout(() => {  // after that frame has been drawn
    const now = (performance.timeOrigin + performance.now()) / 1000;
    for (const made of arrived.splice(0)) figures.delays.push((now - made) * 1000);
  }));
};
new MutationObserver((changes) => {
  for (const { target, type } of changes) {
    if (type !== 'characterData') continue;
    const made = /(\\d{10}\\.\\d{3})\\W*$/.exec(target.data.slice(-40));
    if (made) arrived.push(Number(made[1]));
  }
  if (arrived.length) seen();
}).observe(document, {subtree: true, characterData: true});
"""


def times(_: GenerationRequest) -> Iterable[str]:
    """Say what time it is, again and again."""
    return (piece.replace("@", f"{time.time():.3f}") for piece in islice(cycle(MARKDOWN), REPLY))


async def serve() -> None:
    """Be the server, until the process is ended."""
    logs.configure("text", "error")
    settings = ServerSettings(port=0, engine="scripted")
    engine = ScriptedEngine(times, interval=1 / TOKENS_A_SECOND)
    model = await engine.start()
    with listen(settings.host, settings.port, settings.send_timeout) as listener:
        config = server_config(create_app(settings, engine, model))
        server = UvicornServer(config, lambda: print(f"listening on {url_of(listener)}", flush=True))
        await server.serve(sockets=[listener])


@contextmanager
def running() -> Iterator[str]:
    """Run the server; gives its URL."""
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("listening on ").strip()
    finally:
        process.kill()
        process.communicate()


def furnish(client: httpx.Client, seconds: float) -> None:
    """Make the tree, and let ten of it talk for so long."""
    for number in range(SUB_SESSIONS):
        client.post("/v1/sessions", json={"id": f"main/agent{number:03}"}).raise_for_status()
    for _ in range(int(seconds * TOKENS_A_SECOND / REPLY) + 3):
        for number in range(0, SUB_SESSIONS, SUB_SESSIONS // STREAMING):
            body = {"content": "What time is it?", "settings": {"max_tokens": REPLY}}
            client.post(f"/v1/sessions/main/agent{number:03}/messages", json=body).raise_for_status()


def heap(session: CDPSession) -> float:
    """Bytes of the page's heap that are in use, after a collection."""
    session.send("HeapProfiler.collectGarbage")
    found: float = session.send("Runtime.getHeapUsage")["usedSize"]
    return found


def worked(session: CDPSession) -> dict[str, float]:
    """Seconds of processor time that the page's own thread has taken so far, by what for."""
    found = session.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found}


def watch(page: Page, seconds: float) -> dict[str, Any]:
    """Look for a while; returns the figures of that time."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.wait_for_timeout(5000)  # the first columns are drawn
    page.evaluate("() => { figures.frames.count = figures.delays.count = figures.rendered = 0 }")
    before = worked(session)
    heaps: dict[float, float] = {}
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        heaps[passed] = heap(session)
        page.wait_for_timeout(min(15_000, seconds * 250))
    warm = next((bytes_ for at, bytes_ in heaps.items() if at >= WARM_SECONDS), heaps[max(heaps)])
    after = worked(session)
    found = page.evaluate(
        "() => ({frames: figures.frames.read(), delays: figures.delays.read(), rendered: figures.rendered})"
    )
    frames, delays = sorted(found["frames"]), sorted(found["delays"])
    return {
        "seconds": seconds,
        "frames_a_second": round(1000 * len(frames) / sum(frames), 1),
        "frame_p95_ms": round(frames[int(len(frames) * 0.95)], 1),
        "script_ms_a_frame": round(1000 * (after["ScriptDuration"] - before["ScriptDuration"]) / len(frames), 2),
        "page_ms_a_frame": round(1000 * (after["TaskDuration"] - before["TaskDuration"]) / len(frames), 2),
        "updates_seen": len(delays),
        "pixel_p50_ms": round(statistics.median(delays), 1),
        "pixel_p95_ms": round(delays[int(len(delays) * 0.95)], 1),
        "renderings_a_second": round(found["rendered"] / seconds, 1),
        "heap_first_mb": round(heaps[min(heaps)] / 1e6, 1),
        "heap_warm_mb": round(warm / 1e6, 1),
        "heap_last_mb": round(heaps[max(heaps)] / 1e6, 1),
    }


def bench(seconds: float) -> dict[str, Any]:
    """Measure it."""
    with (
        running() as url,
        httpx.Client(base_url=url, timeout=60, trust_env=False) as client,
        sync_playwright() as library,
    ):
        browser = library.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-headless-shell"), args=FLAGS
        )
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.add_init_script(PROBE)
        furnish(client, seconds + 10)
        page.goto(f"{url}/#agents/main")
        figures = watch(page, seconds)
        browser.close()
    return figures


def main() -> int:
    """Measure, print, and say by the exit code whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a minute, instead of five")
    parser.add_argument("--minutes", type=float, default=5, help="how long to watch (5)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    figures = bench(60 if options.smoke else 60 * options.minutes)
    for name, value in figures.items():
        print(f"{name:18}{value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    smooth = figures["frames_a_second"] >= FRAMES_BAR and figures["pixel_p95_ms"] <= PIXEL_BAR_MS
    flat = figures["heap_last_mb"] <= HEAP_BAR * figures["heap_warm_mb"]
    print("The bars are met." if smooth and flat else "NOT all bars are met.")
    return 0 if smooth and flat else 1


if __name__ == "__main__":
    sys.exit(main())
