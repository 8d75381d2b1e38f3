"""What a constraint lets through, asked of the product's own grammars."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cfs_server.engine.llama.tokenizer import Vocabulary
from cfs_server.engine.worker.grammar import Constraint, Grammars

SUITE = "jsonschema==4.26.0"
"""The package whose source distribution carries JSON Schema's official test suite."""


class Schemas:
    """The constraints of schemas, for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.grammars = Grammars(vocabulary)
        self.end = next(token for token in range(vocabulary.size) if vocabulary.ends(token))
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        self._plain = np.array([piece.isascii() and piece.decode("latin-1").isprintable() for piece in pieces])
        self._closing = np.array([piece[:1] in (b'"', b"]", b"}") for piece in pieces])

    def begun(self, schema: Any) -> Constraint:
        """Make a constraint that stands at its beginning."""
        constraint = self.grammars.of_schema(schema)
        assert constraint is not None
        return constraint

    def accepts(self, schema: Any, text: str) -> bool:
        """Whether a reply may be exactly this text."""
        constraint = self.begun(schema)
        for token in map(int, self.vocabulary.tokenize(text, special=False)):
            if not constraint.allows(token):
                return False
            constraint.accept(token)
        return constraint.allows(self.end)

    def values(self, schema: Any, values: Any) -> list[Any]:
        """Filter the values that a reply may be."""
        return [value for value in values if self.accepts(schema, json.dumps(value, ensure_ascii=False))]

    def random_reply(self, schema: Any, seed: int, most: int = 300) -> str | None:
        """Write a reply of tokens that are allowed, at random; `None` if it does not end soon."""
        constraint, random = self.begun(schema), np.random.default_rng(seed)
        reply = b""
        for _ in range(most):
            mask = constraint.mask()
            assert mask.any(), f"nothing is allowed behind {reply!r}"
            if mask[self.end] and (random.random() < 0.5 or mask.sum() == 1):
                return reply.decode()
            weights = mask * (0.01 + self._plain + self._closing * mask.sum())
            weights[self.end] = 0
            token = int(random.choice(len(mask), p=weights / weights.sum()))
            assert constraint.allows(token)
            constraint.accept(token)
            reply += self.vocabulary.piece(token)
        return None


def official_suite(cache: Path) -> Path:
    """Fetch the official test suite of JSON Schema by pip, once; returns the folder with the drafts."""
    found = cache / SUITE.replace("==", "-") / "json" / "tests"
    if not found.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--no-binary", "jsonschema", "--dest", str(cache), SUITE], check=True, timeout=300)
        subprocess.run(["tar", "-xzf", cache / f"{SUITE.replace('==', '-')}.tar.gz", "-C", cache], check=True)
    return found
