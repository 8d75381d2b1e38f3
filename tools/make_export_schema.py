"""Write docs/export-format.schema.json: the JSON schema of exports, from the models that read and write them.

`scripts/docs` calls this; `--check` only compares.
"""

import json
from pathlib import Path

from cfs.conversations.archive import json_schema
from make_api_docs import update

SCHEMA = Path(__file__).parent.parent / "docs/export-format.schema.json"


def render(_old: str = "") -> str:
    """Return the schema as text."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    raise SystemExit(update(SCHEMA, render))
