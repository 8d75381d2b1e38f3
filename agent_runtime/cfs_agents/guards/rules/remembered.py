"""Answers that last: exact calls and patterns that a user has always allowed in a workspace (A11).

They are in a TOML file of the user, which people can read and edit. Several programs may share it.
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cfs.contract.user_folders import state_folder
from cfs_agents.base.disk import replace_file
from cfs_agents.guards.rules.calls import GatedCall
from cfs_agents.guards.rules.decisions import Answers, Decision, Rule
from cfs_agents.guards.rules.patterns import Pattern
from cfs_agents.guards.rules.rules_file import RulesError

_HEAD = "# What you have always allowed. Remove an entry to be asked again.\n"
_LONGEST_TEXT = 200


def remembered_path() -> Path:
    """Return the path of the user's lasting answers."""
    return state_folder() / "remembered.toml"


class Remembered:
    """The lasting answers of a user. Methods block, and raise `OSError`, and `RulesError` for a damaged file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or remembered_path()

    def answers(self, workspace: Path) -> Answers:
        """Return the answers for a workspace."""
        entries = [entry for entry in self._read() if entry["workspace"] == _name(workspace)]
        source = self._path.name
        patterns = [Rule(Pattern.parse(entry["pattern"]), source) for entry in entries if "pattern" in entry]
        return Answers(tuple(patterns), frozenset(entry["digest"] for entry in entries if "digest" in entry))

    def add_call(self, workspace: Path, call: GatedCall, decision: Decision) -> None:
        """Remember one exact call."""
        self._add({"workspace": _name(workspace), "call": call.text[:_LONGEST_TEXT], "digest": decision.digest})

    def add_patterns(self, workspace: Path, patterns: Iterable[str]) -> None:
        """Remember patterns. Raises `ValueError` if one is malformed."""
        for pattern in patterns:
            Pattern.parse(pattern)
        self._add(*({"workspace": _name(workspace), "pattern": pattern} for pattern in patterns))

    def _add(self, *added: dict[str, str]) -> None:
        keys = ("workspace", "pattern", "digest")
        with self._locked():
            entries = self._read()
            count = len(entries)
            for entry in added:
                if not any(all(other.get(key) == entry.get(key) for key in keys) for other in entries):
                    entries.append(entry)
            if len(entries) > count:
                text = _HEAD + "".join(map(_written, entries))
                replace_file(self._path, text.encode("utf-8", "replace"))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _read(self) -> list[dict[str, str]]:
        try:
            document: dict[str, Any] = tomllib.loads(self._path.read_bytes().decode())
        except FileNotFoundError:
            return []
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RulesError(f"{self._path}: {error}: correct the file, or remove it to be asked again") from None
        entries = document.get("answer", [])
        for entry in entries if isinstance(entries, list) else [None]:
            self._check(entry)
        return list(entries)

    def _check(self, entry: object) -> None:
        if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
            raise RulesError(f"{self._path}: `answer` must be tables of texts: correct the file, or remove it")
        if "workspace" not in entry or not {"pattern", "digest"} & entry.keys():
            raise RulesError(
                f"{self._path}: an answer lacks its workspace, or both pattern and digest: remove the entry"
            )
        try:
            Pattern.parse(entry.get("pattern", "*"))
        except ValueError as error:
            raise RulesError(f"{self._path}: {entry['pattern'][:80]!r}: {error}") from None


def _name(workspace: Path) -> str:
    return os.fsencode(os.path.realpath(workspace)).decode("utf-8", "backslashreplace")


def _written(entry: dict[str, str]) -> str:
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f") for key, value in entry.items()
    ]
    return "\n".join(["\n[[answer]]", *lines, ""])
