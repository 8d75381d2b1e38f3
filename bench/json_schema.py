"""Measure what llguidance enforces of JSON Schema, alone and behind CFS's `prepare`, with the official test suite.

    scripts/bench json_schema [--draft draft2020-12] [--json FILE]

Each schema of the suite is compiled for a vocabulary of bytes, and each instance of it is offered as a reply. For each
file of the suite (a keyword) the table counts schemas that are compiled and refused, and instances: `valid` ones that
are accepted, those that are valid but never written (`narrow`), `invalid` ones that are stopped, and those that pass
(`UNSOUND`), which must be none behind `prepare`. The suite is in the source distribution of `jsonschema`, which pip
fetches.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from cfs_server.engine.chat.json_schema import prepare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.engine.schema_support import official_suite

Compile = Callable[[Any], LLMatcher | None]
COLUMNS = ("compiled", "refused", "valid", "narrow", "invalid", "UNSOUND")


class Compiler:
    """Compiles schemas for a vocabulary of bytes."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer("byte")

    def alone(self, schema: Any) -> LLMatcher | None:
        """Compile a schema as it is; None if llguidance refuses it."""
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
        except ValueError:
            return None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        return None if matcher.is_error() or matcher.get_grammar_warnings() else matcher

    def prepared(self, schema: Any) -> LLMatcher | None:
        """Compile a schema as the engine does."""
        try:
            return self.alone(prepare(schema).schema)
        except ValueError:
            return None


def accepts(matcher: LLMatcher, value: Any) -> bool:
    """Return whether a reply may be exactly this value."""
    matcher = matcher.deep_copy()
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return all(matcher.validate_tokens([byte]) and matcher.consume_token(byte) for byte in text) and (
        matcher.is_accepting()
    )


def files(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the files of a draft: those that every validator passes, then the optional ones."""
    for path in [*sorted(folder.glob("*.json")), *sorted(folder.glob("optional/**/*.json"))]:
        yield path.relative_to(folder).as_posix().removesuffix(".json"), json.loads(path.read_text())


def measure(cases: Any, compile_it: Compile) -> Counter[str]:
    """Count the schemas and the instances of one file."""
    count: Counter[str] = Counter()
    for case in cases:
        matcher = compile_it(case["schema"])
        count["refused" if matcher is None else "compiled"] += 1
        for instance in case["tests"] if matcher is not None else ():
            taken = matcher is not None and accepts(matcher, instance["data"])
            kinds = ("narrow", "valid") if instance["valid"] else ("invalid", "UNSOUND")
            count[kinds[taken]] += 1
    return count


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draft", default="draft2020-12")
    parser.add_argument("--json", type=Path, help="write the counts here")
    arguments = parser.parse_args()
    compiler = Compiler()
    ways: dict[str, Compile] = {"llguidance alone": compiler.alone, "behind prepare": compiler.prepared}
    with tempfile.TemporaryDirectory() as cache:
        suite = list(files(official_suite(Path(cache)) / arguments.draft))
    counts = {way: {name: measure(cases, compile_it) for name, cases in suite} for way, compile_it in ways.items()}
    for way, rows in counts.items():
        print(f"\n{way:42}" + "".join(f"{column:>10}" for column in COLUMNS))
        total = sum(rows.values(), Counter[str]())
        for name, row in [*rows.items(), ("total", total)]:
            print(f"{name:42}" + "".join(f"{row[column]:10}" for column in COLUMNS))
    if arguments.json:
        arguments.json.write_text(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
