"""Skills: folders with a `SKILL.md` that says when to use them and how, in the format of agentskills.io.

An agent's prompt has the name and the description of each skill. The agent reads the text with `read_file` once a task
fits, and runs scripts of the folder by commands. Skills of the workspace come before those of the user, and a name
counts once.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from cfs.contract.user_folders import config_folder
from cfs_filesystem import OPERATIONS, DiskFileSystem, FileSystemError, FsHandle, Grant, NotFoundError

FILE = "SKILL.md"
WORKSPACE_FOLDERS = (".agents/skills", ".claude/skills")
"""The folders of a workspace with skills, in the order in which a name is looked up."""

MAX_BYTES = 1 << 20
MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
MAX_PROMPT = 8_000
"""Characters of all descriptions in a prompt; skills beyond it are named only."""

_FIELDS = frozenset({"name", "description", "license", "allowed-tools", "metadata", "compatibility"})
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that an agent can use. `path` is that of its `SKILL.md`, as the agent reads it."""

    name: str
    description: str
    path: str


@dataclass(frozen=True, slots=True)
class SkillProblem:
    """Why a folder is not a skill, in one sentence; `path` is that of the folder."""

    path: str
    reason: str


def user_folder() -> Path:
    """Return the folder of the user's own skills, which need not exist."""
    return config_folder() / "skills"


def user_skills() -> tuple[list[Skill], list[SkillProblem]]:
    """Return the skills in the user's folder, with paths of this machine, and what is wrong with the others."""
    folder = user_folder()
    if not folder.is_dir():
        return [], []
    disk = DiskFileSystem(folder)
    try:
        skills, problems = find_skills(disk.create_handle([Grant(prefix="/", ops=OPERATIONS)]), ["/"])
    finally:
        disk.close()
    named = [replace(skill, path=f"{folder}{skill.path}") for skill in skills]
    return named, [replace(problem, path=f"{folder}{problem.path}") for problem in problems]


def copy_skills(source: Path, files: FsHandle, target: str) -> None:
    """Copy the skills in a folder of this machine into a folder of a file system, as far as they differ.

    Links are not followed. What cannot be copied is left out; a skill without its SKILL.md is a problem of its copy.
    """
    disk = DiskFileSystem(source)
    try:
        entries = disk.create_handle([Grant(prefix="/", ops=OPERATIONS)])
        for entry in entries.list():
            path = f"{target}{entry['path']}"
            with suppress(FileSystemError):
                data = entries.read_binary(entry["path"])
                if not _has(files, path, data):
                    files.write(path, data)
    finally:
        disk.close()


def find_skills(files: FsHandle, folders: Iterable[str]) -> tuple[list[Skill], list[SkillProblem]]:
    """Return the skills below folders of a file system, and what is wrong with the others.

    Links are not followed. A folder that does not exist has no skills.
    """
    skills: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    for folder in folders:
        for path in _members(files, folder):
            result = _skill(files, path)
            if isinstance(result, Skill) and result.name in skills:
                result = SkillProblem(path, f"{skills[result.name].path} has the same name and is used")
            if isinstance(result, Skill):
                skills[result.name] = result
            elif result is not None:
                problems.append(result)
    return list(skills.values()), problems


def skills_prompt(skills: Sequence[Skill]) -> str:
    """Return the part of a system prompt that names skills; empty without any."""
    if not skills:
        return ""
    lines = ["Skills. If one fits the task, read its file with read_file first, and follow it:"]
    size = 0
    for skill in skills:
        size += len(skill.description)
        described = f": {' '.join(skill.description.split())}" if size <= MAX_PROMPT else ""
        lines.append(f"- {skill.name}{described} ({skill.path})")
    return "\n".join(lines)


def _has(files: FsHandle, path: str, data: bytes) -> bool:
    try:
        return files.file(path)["size"] == len(data) and files.read_binary(path) == data
    except NotFoundError:
        return False


def _members(files: FsHandle, folder: str) -> Iterator[str]:
    """Yield the folders in a folder, sorted."""
    try:
        entries = files.scan(folder)
    except FileSystemError:
        return
    for entry in entries:
        path = entry["path"].rstrip("/")
        if files.is_directory(path):
            yield path


def _skill(files: FsHandle, folder: str) -> Skill | SkillProblem | None:
    path = f"{folder}/{FILE}"
    try:
        size = files.file(path)["size"]
        if size > MAX_BYTES:
            return SkillProblem(folder, f"{FILE} has {size:,} bytes; it may have {MAX_BYTES:,}")
        text = files.read_binary(path).decode("utf-8")
    except NotFoundError:
        return SkillProblem(folder, f"it has no {FILE}")
    except UnicodeDecodeError:
        return SkillProblem(folder, f"{FILE} is not UTF-8 text")
    except FileSystemError as error:
        return SkillProblem(folder, f"{FILE} cannot be read: {error}")
    reason, values = _front_matter(text)
    reason = reason or next(_faults(values, folder.rpartition("/")[2]), "")
    if reason:
        return SkillProblem(folder, reason)
    return Skill(_normal(values["name"]), values["description"].strip(), path)


def _front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """Return the reason why a text has no fields, or the fields."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return f"{FILE} must begin with fields between two lines ---", {}
    try:
        values = yaml.load(match[1], Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and maps only
    except yaml.YAMLError as error:
        return f"the fields of {FILE} are not YAML: {' '.join(str(error).split())[:200]}", {}
    if not isinstance(values, dict):
        return f"the fields of {FILE} are not a map", {}
    return "", values


def _faults(values: dict[str, Any], folder: str) -> Iterator[str]:
    """Yield what the format forbids."""
    if unknown := sorted(map(str, values.keys() - _FIELDS)):
        yield f"unknown field {unknown[0]!r}: the fields are {', '.join(sorted(_FIELDS))}"
    for name, limit in (("name", MAX_NAME), ("description", MAX_DESCRIPTION)):
        value = values.get(name)
        if not isinstance(value, str) or not value.strip():
            yield f"the field {name!r} is missing"
            return
        if len(value) > limit:
            yield f"the {name} has {len(value):,} characters; it may have {limit:,}"
    compatibility = values.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > MAX_COMPATIBILITY:
        yield f"the field 'compatibility' must be a text of at most {MAX_COMPATIBILITY} characters"
    name = _normal(values["name"])
    if name != name.lower() or not all(part and part.isalnum() for part in name.split("-")):
        yield f"the name {name!r} must have lower-case letters, digits and single hyphens between them"
    if name != _normal(folder):
        yield f"the name {name!r} must be that of the folder, {folder!r}"


def _normal(name: str) -> str:
    return unicodedata.normalize("NFKC", name.strip())
