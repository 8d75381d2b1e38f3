"""Files of rules: the user's, and a workspace's, which may restrict but never allow (A11)."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from cfs.contract.user_folders import config_folder
from cfs.errors import InvalidRequest
from cfs_agents.guards.rules.decisions import Rule, Rules
from cfs_agents.guards.rules.patterns import Pattern

_LISTS = ("allow", "ask", "deny")
WORKSPACE_RULES = ".cfs/rules.toml"
_LARGEST = 1 << 20


class RulesError(InvalidRequest):
    """A file of rules that cannot be used. The message names the file, the line and what to do."""


def user_rules_path() -> Path:
    """Return the path of the user's rules."""
    return config_folder() / "rules.toml"


def load_rules(workspace: Path | None = None, files: Iterable[Path] | None = None) -> Rules:
    """Load the rules of a user and of a workspace. Raises `RulesError`.

    `files` replace the user's file, and must exist. `warnings` of the result say what was ignored.
    """
    required = files is not None
    rules = [
        _load(path, path.name, required=required) for path in (files if files is not None else [user_rules_path()])
    ]
    warnings: list[str] = []
    if workspace is not None:
        path = workspace / WORKSPACE_RULES
        workspace_rules = _load(path, WORKSPACE_RULES, required=False)
        if workspace_rules.allow:
            warnings.append(
                f"{path}: `allow` is ignored: the files of a workspace can only restrict."
                f" Move it to {user_rules_path()} if you want it"
            )
        rules.append(Rules(ask=workspace_rules.ask, deny=workspace_rules.deny))
    allow, ask, deny = (tuple(rule for one in rules for rule in getattr(one, name)) for name in _LISTS)
    return Rules(allow, ask, deny, tuple(warnings))


class WorkspaceRules:
    """The rules of a workspace as its file is now. Methods block, and raise `RulesError`."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._rules = Rules()
        self._version: tuple[int, ...] | None = None

    def rules(self) -> tuple[Rules, tuple[str, ...]]:
        """Return the rules, and the warnings about them if the file has changed."""
        try:
            status = (self._workspace / WORKSPACE_RULES).stat()
            version: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            version = ()
        if version == self._version:
            return self._rules, ()
        self._rules = load_rules(self._workspace, [])
        self._version = version
        return self._rules, self._rules.warnings


def _load(path: Path, name: str, *, required: bool) -> Rules:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise RulesError(f"{path}: there is no such file of rules: create it, or leave --rules out") from None
        return Rules()
    except OSError as error:
        raise RulesError(f"{path}: the rules cannot be read ({error.strerror}): make it a readable file") from None
    if len(data) > _LARGEST:
        raise RulesError(f"{path}: the rules are longer than 1 MiB: shorten them")
    try:
        return parse_rules(data.decode(), path, name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RulesError(f"{path}:{line}: not UTF-8: save the file as UTF-8") from None


def parse_rules(text: str, path: Path, name: str = "") -> Rules:
    """Parse the text of a file of rules. Raises `RulesError`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = re.search(r"at line (\d+)", str(error))
        line = position[1] if position else len(text.splitlines()) or 1
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise RulesError(
            f'{path}:{line}: not TOML ({message}): write lists, such as deny = ["execute_command(rm:*)"]'
        ) from None
    except RecursionError:
        raise RulesError(f"{path}:1: the lists are nested too deeply: write lists of texts") from None
    lines = text.splitlines()
    for key in document:
        if key not in _LISTS:
            line = _line(lines, key)
            raise RulesError(f"{path}:{line}: {key[:60]!r} is not a list of rules: use allow, ask and deny")
    result: dict[str, tuple[Rule, ...]] = {}
    for key in _LISTS:
        values = document.get(key, [])
        start = _line(lines, key)
        if not isinstance(values, list):
            raise RulesError(f"{path}:{start}: {key} must be a list of texts in brackets")
        rules = []
        for value in values:
            if not isinstance(value, str):
                raise RulesError(f"{path}:{start}: {key} must hold texts in quotation marks, not {str(value)[:60]}")
            line = _line(lines, value, start)
            try:
                rules.append(Rule(Pattern.parse(value), f"{name or path.name}:{line}"))
            except ValueError as error:
                raise RulesError(f"{path}:{line}: {value[:80]!r}: {error}") from None
        result[key] = tuple(rules)
    return Rules(result["allow"], result["ask"], result["deny"])


def _line(lines: list[str], text: str, start: int = 1) -> int:
    """Return the line in which a text of the document stands, from a line on; `start` if it is written with escapes."""
    return next((number for number, line in enumerate(lines[start - 1 :], start) if text in line), start)
