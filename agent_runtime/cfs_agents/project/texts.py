"""What a project adds to the system prompt of its agents: its instructions, and the names of its skills."""

from collections.abc import Callable
from pathlib import Path

from cfs_agents.project.instructions import MAX_BYTES, instructions_of
from cfs_agents.project.skills import WORKSPACE_FOLDERS, copy_skills, find_skills, skills_prompt
from cfs_filesystem import FsHandle

SMALL_BYTES = 1_000
"""Bytes of instructions for a model with a small context, which could not answer after 32 KiB of them."""

COPIED = ".cfs/skills"
"""The folder of the workspace with copies of the user's own skills, where tools and commands can read them."""


class ProjectText:
    """The text of one workspace. `warn` gets each problem once.

    `skills` is the folder with the user's own skills. They are copied to the logical path `copies` (default: `COPIED`
    of the workspace).
    """

    def __init__(
        self,
        files: FsHandle,
        workspace: str,
        *,
        skills: Path | None = None,
        copies: str | None = None,
        warn: Callable[[str], None],
    ) -> None:
        self._files = files
        self._workspace = workspace.rstrip("/")
        self._skills = skills
        self._copies = copies or f"{self._workspace}/{COPIED}"
        self._warn = warn
        self._warned: set[str] = set()

    def read(self, *, small: bool) -> str:
        """Return the text as the files are now; empty if there are none. Blocks."""
        limit = SMALL_BYTES if small else MAX_BYTES
        folders = [f"{self._workspace}/{folder}" for folder in WORKSPACE_FOLDERS]
        if self._skills is not None and self._skills.is_dir():
            copy_skills(self._skills, self._files, self._copies)
            folders.append(self._copies)
        skills, problems = find_skills(self._files, folders)
        for problem in problems:
            sentence = f"the skill {problem.path} is not used: {problem.reason}"
            if sentence not in self._warned:
                self._warned.add(sentence)
                self._warn(sentence)
        texts = [instructions_of(self._files, self._workspace, limit), skills_prompt(skills)]
        return "\n\n".join(text for text in texts if text)
