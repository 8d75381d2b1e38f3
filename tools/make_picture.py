"""Write the moving picture of the README, docs/images/first-hour.svg, from a recorded run; `--check` only compares.

`tools/make_picture.py --record` makes the recording anew: it starts a server with the embedded model, mounts it, types
the commands below into one shell, and keeps what each of them prints. The picture is made from the recording alone, so
that it is the same on every machine: each command is typed at the same speed, whatever it took.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from make_api_docs import update

FOLDER = Path(__file__).parent.parent / "docs/images"
RECORDING, PICTURE = FOLDER / "first-hour.json", FOLDER / "first-hour.svg"
COMMANDS = (
    "cfs send chat1 'My name is Alice.'",
    "curl -H 'Accept: text/plain' $CFS_URL/v1/sessions/chat1     # the session is a URL",
    "cfs mount ~/cfs --background",
    "echo 'What is my name?' >> ~/cfs/chat1                      # and a file",
    "tail -n 1 ~/cfs/chat1",
    "grep -l Alice ~/cfs/*",
    "cfs agent serve --session main --background",
    'cfs send main \'Make a.txt with "hello" and b.txt with "world" in parallel.\'',
    "cfs agent tree main",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and what it printed."""

    typed: str
    shown: str


# The recording


def record(port: int) -> list[Step]:
    """Type all commands into one shell whose home is empty, with a server on a port; return what they print."""
    program = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "cfs").mkdir()
        env = {
            "HOME": folder,
            "PATH": f"{program}{os.pathsep}{os.environ['PATH']}",
            "CFS_URL": f"http://localhost:{port}",
            "LC_ALL": "C.UTF-8",
        }

        def run(command: str) -> str:
            line = ["bash", "-euo", "pipefail", "-c", command]
            done = subprocess.run(line, cwd=home, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
            return done.stdout.replace(folder, "~").replace(str(port), "8000")

        run(f"cfs up --background --no-mount --port {port} --data-dir data")
        try:
            for session in ("chat1", "main"):  # the same words in each recording
                settings = json.dumps({"id": session, "settings": {"temperature": 0}})
                run(f"curl -sSf -H 'Content-Type: application/json' -d '{settings}' $CFS_URL/v1/sessions")
            return [Step(command, run(_quiet(command))) for command in COMMANDS]
        finally:
            run("fusermount3 -u ~/cfs || true; cfs down")


def _quiet(command: str) -> str:
    return command.replace("curl ", "curl -sSf ", 1).replace("agent serve", "agent serve --temperature 0")


# The picture

COLUMNS, CHARACTER, LINE, EDGE, TOP = 92, 8.4, 20, 20, 52
TYPING_SECONDS, READING_SECONDS, REST_SECONDS = 0.035, 1.1, 6.0
STYLE = """\
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d7dce5;white-space:pre}
.typed{fill:#fff}.prompt{fill:#6ee7b7}.back{fill:#12161f}
"""
STILL = "@media (prefers-reduced-motion:reduce){*{animation:none!important}}\n"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the terminal: it appears at a time in seconds, a typed one letter by letter."""

    text: str
    at: float
    typed: bool

    @property
    def ends(self) -> float:
        """When all of it is there."""
        return self.at + len(self.text) * TYPING_SECONDS * self.typed


def lines_of(steps: list[Step]) -> Iterator[Line]:
    """Yield the lines of a terminal, with the times at which they appear."""
    now = 0.6
    for step in steps:
        typed = Line(step.typed, now, typed=True)
        yield typed
        now = typed.ends + 0.3
        for text in step.shown.strip("\n").splitlines():
            if text.strip():
                yield Line(text[:COLUMNS], now, typed=False)
                now += 0.12
        now += READING_SECONDS


def render(_: str = "") -> str:
    """Write the picture."""
    lines = list(lines_of([Step(**step) for step in json.loads(RECORDING.read_text(encoding="utf-8"))]))
    whole = lines[-1].ends + REST_SECONDS
    width, height = round(2 * EDGE + (COLUMNS + 2) * CHARACTER), TOP + len(lines) * LINE + EDGE - 12
    rules, shapes = [STYLE], []
    for number, line in enumerate(lines):
        begin, end = 100 * line.at / whole, 100 * line.ends / whole
        y, x = TOP + number * LINE, EDGE + 2 * CHARACTER * line.typed
        length = f'textLength="{len(line.text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
        kind = "typed" if line.typed else "shown"
        words = f'<text x="{x:.1f}" y="{y}" {length} class="{kind}">{escape(line.text)}</text>'
        prompt = f'<text x="{EDGE}" y="{y}" class="prompt">$</text>' if line.typed else ""
        rules.append(f"@keyframes l{number}{{0%,{begin:.2f}%{{opacity:0}}{begin + 0.01:.2f}%,100%{{opacity:1}}}}\n")
        rules.append(f"#l{number}{{animation:l{number} {whole:.2f}s infinite}}\n")
        cover = ""
        if line.typed:  # a cover moves to the right, letter by letter
            cover = f'<rect id="c{number}" class="back" x="{x:.1f}" y="{y - 15}" width="{width}" height="{LINE}"/>'
            moved = len(line.text) * CHARACTER
            steps = f"animation-timing-function:steps({len(line.text)},end)"
            rules.append(
                f"@keyframes c{number}{{0%,{begin:.2f}%{{transform:none;{steps}}}"
                f"{end:.2f}%,100%{{transform:translateX({moved:.1f}px)}}}}\n"
                f"#c{number}{{transform:translateX({moved:.1f}px);animation:c{number} {whole:.2f}s infinite}}\n"
            )
        shapes.append(f'<g id="l{number}">{prompt}{words}{cover}</g>\n')
    dots = "".join(f'<circle cx="{24 + 18 * n}" cy="22" r="5.5" fill="#3a4252"/>' for n in range(3))
    spoken = escape("; ".join(line.text for line in lines if line.typed))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-labelledby="t d">\n<title id="t">CFS in a terminal</title>\n<desc id="d">{spoken}</desc>\n'
        f"<style>\n{''.join(rules)}{STILL}</style>\n"
        f'<clipPath id="frame"><rect width="{width}" height="{height}" rx="10"/></clipPath>\n'
        f'<g clip-path="url(#frame)"><rect class="back" width="{width}" height="{height}"/>{dots}\n'
        f"{''.join(shapes)}</g>\n</svg>\n"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        text = json.dumps([asdict(step) for step in record(8419)], indent=1, ensure_ascii=False)
        RECORDING.write_text(text + "\n", encoding="utf-8")
        del sys.argv[1]
        PICTURE.touch()
    raise SystemExit(update(PICTURE, render))
