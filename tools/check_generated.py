"""Report which generated files are out of date. All tools share this process, because their imports take longest.

No file changes. To write them, `scripts/docs` starts a process for each tool: a tool imports what the last one wrote.
"""

import runpy
import sys
from pathlib import Path


def main(tools: list[str]) -> int:
    """Run `tools` with `--check`; returns 1 if one of them found something."""
    sys.argv[1:] = ["--check"]
    outdated = False
    for tool in tools:
        try:
            runpy.run_path(str(Path(__file__).with_name(f"{tool}.py")), run_name="__main__")
        except SystemExit as end:
            outdated |= bool(end.code)
    return int(outdated)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
