"""Open files: reading is of one version, and a write replaces the version that was there when the file was opened."""

from typing import Any

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.spec import AbstractBufferedFile


class FileChangedError(OSError):
    """A file is another version than the one that was read or opened. Nothing was written."""


class CFSFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """A file that is open for reading, writing or appending.

    `content` is the whole content, if it is known. `etag` is the version that is read, or that a write replaces; None
    if there must not be a file. What is written is kept in memory and stored when the file is closed.
    """

    def __init__(
        self,
        fs: AsyncFileSystem,
        path: str,
        mode: str,
        *,
        etag: str | None,
        content: bytes | None = None,
        **options: Any,
    ) -> None:
        self._etag = etag
        self._content = content
        super().__init__(fs, path, mode, **options)
        if mode == "ab" and content:
            self.loc = self.buffer.write(content)

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._content is not None:
            return self._content[start:end]
        return bytes(sync(self.fs.loop, self.fs.read_version, self.path, start, end, self._etag))

    def _upload_chunk(self, final: bool = False) -> bool:
        """Keep what was written until the file is closed: the server replaces a file in one step."""
        if final and self.autocommit:
            self.commit()
        return False

    def commit(self) -> None:
        """Store the file; raises `FileChangedError` if it has changed since it was opened."""
        options = {"mode": "create"} if self._etag is None else {"etag": self._etag}
        try:
            self.fs.pipe_file(self.path, self.buffer.getvalue(), **options)
        except FileExistsError as error:
            if self.mode == "xb":
                raise
            raise FileChangedError(error.errno, "the file was made since it was opened", self.path) from None

    def discard(self) -> None:
        """Forget what was written."""
