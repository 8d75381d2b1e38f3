"""Write docs/configuration.md from the one table of settings; `--check` only says whether it is up to date (P3)."""

import sys
from pathlib import Path

from cfs_server.config.settings import CONFIG_VARIABLE, ENV_PREFIX, ServerSettings, flag_of

PAGE = Path(__file__).parent.parent / "docs/configuration.md"
HEAD = f"""# Configuration

<!-- Made by scripts/docs from server/cfs_server/config/settings.py; change it there. -->

Each setting of `cfs serve` can be given in four ways. The first that names it wins:

1. a flag: `cfs serve --port 9000`;
2. an environment variable: `{ENV_PREFIX}PORT=9000 cfs serve` (one that is empty counts as not set);
3. a TOML file, named by `--config FILE` or by `{CONFIG_VARIABLE}`: `port = 9000`;
4. the default below.

Times are in seconds, sizes in bytes. A flag that switches something on has a twin `--no-...`. If a
setting cannot be used, the server prints one line that says why, and ends with exit code 2 before it listens.

| key of the file | flag | variable | default | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """Write the whole page."""
    return HEAD + "".join(map(_row, ServerSettings.model_fields))


def _row(name: str) -> str:
    field = ServerSettings.model_fields[name]
    value = str(field.default).lower() if isinstance(field.default, bool) else field.default
    default = "" if value is None else f"`{value}`"
    return f"| `{name}` | `{flag_of(name)}` | `{ENV_PREFIX}{name.upper()}` | {default} | {field.description} |\n"


def main() -> int:
    """Write the page, or compare it."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write("docs/configuration.md is out of date: run scripts/docs\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
