"""A project's instructions for agents: `AGENTS.md` in the root of a workspace, or `CLAUDE.md` if there is none.

Those of folders are named when an agent first reads a file there.

They are the project's text, not the user's: a prompt shows them below the user's instructions and says where they come
from. They can restrict what an agent does; they allow nothing.
"""

from contextlib import suppress

from cfs_filesystem import FileSystemError, FsHandle, NotFoundError

FILES = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES = 32 << 10


def instructions_of(files: FsHandle, folder: str, limit: int = MAX_BYTES) -> str:
    """Return the part of a system prompt with the instructions in a folder; empty without any.

    Those with more bytes than `limit` are cut. Links are not followed.
    """
    file = _read(files, folder)
    if file is None:
        return ""
    path, data = file
    text = data[:limit].decode("utf-8", "ignore").strip()
    if len(data) > limit:
        text += f"\n[... {path} has {len(data):,} bytes; this is its beginning ...]"
    if not text:
        return ""
    return (
        f"The project's own instructions, from {path}. What the user says goes before them, and they give no"
        f" permission:\n<project>\n{text}\n</project>"
    )


class FolderInstructions:
    """Names the instructions of the folders below a workspace's root, each once."""

    def __init__(self, files: FsHandle, workspace: str) -> None:
        self._files = files
        self._workspace = f"{workspace.rstrip('/')}/"
        self._seen: set[str] = set()

    def note(self, path: str) -> str:
        """Return a line about the instructions for a file that is read; empty if there are no new ones. Blocks."""
        if not path.startswith(self._workspace):
            return ""
        *folders, _ = path[len(self._workspace) :].split("/")
        paths = ["/".join(folders[:count]) for count in range(1, len(folders) + 1)]
        new = [folder for folder in paths if folder not in self._seen]
        self._seen.update(new)
        files = [file for folder in new if (file := self._file_of(folder)) and file != path]
        if not files:
            return ""
        return (
            f"[The project has instructions for this folder, in {' and '.join(files)}: read them before you change"
            " files there.]"
        )

    def _file_of(self, folder: str) -> str:
        for name in FILES:
            path = f"{self._workspace}{folder}/{name}"
            with suppress(FileSystemError):
                self._files.file(path)
                return path
        return ""


def _read(files: FsHandle, folder: str) -> tuple[str, bytes] | None:
    for name in FILES:
        path = f"{folder.rstrip('/')}/{name}"
        try:
            return path, files.read_binary(path)
        except NotFoundError:
            continue
        except FileSystemError:  # a link, or a folder of this name
            return None
    return None
