"""`cfs files git`: the versions of a workspace as a git repository."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from cfs import api
from cfs.cli.actions.files import WorkspacePath, below, changes_of, place_of
from cfs.cli.base.output import note, visible
from cfs.cli.base.progress import progress
from cfs.contract.errors import Conflict, Forbidden, InvalidPath, InvalidRequest, NotFound
from cfs.contract.wire import FileChange, FileVersion
from cfs.transports.http import Client
from cfs.versions.git import CommittedFile, Removal, Repository, holds, opened

_LISTED = 10

_NESTED = "below a nested .git, or with a name that git takes for one"
_ILLEGAL = "with a name that REST does not have"
_UNREADABLE = "that you may not read"
_NO_TEXT = "links whose target is no UTF-8"
_EMPTY = "empty folders"


def write_repository(client: Client, text: str, directory: Path) -> None:
    """Write the changes of a workspace that a repository does not have yet, and say what it lacks."""
    path = place_of(text)
    if path.path or path.at is not None:
        raise InvalidRequest(f"{text!r} is not the name of a workspace")
    page = client.call(api.file_changes(path.logical, limit=1))
    if not page.changes:
        raise NotFound(f"there is no workspace {path.workspace!r} with versions")
    repository = opened(directory, path.workspace)
    try:
        export = _Export(client, path.logical, repository)
        added = export.run(page.oldest)
    finally:
        repository.close()
    note(f"{added} commits were added to {directory}, up to change {repository.last}")
    for line in export.omissions():
        note(visible(line))


class _Export:
    """One run of the command: it adds commits, and remembers what they lack."""

    def __init__(self, client: Client, workspace: str, repository: Repository) -> None:
        self._client = client
        self._workspace = workspace
        self._repository = repository
        self._omitted: dict[str, dict[str, None]] = {}
        self._folders: set[str] = set()
        self._begins_at: int | None = None

    def run(self, oldest: int) -> int:
        """Add the changes that the repository lacks, the oldest first. Return their number."""
        changes = self._lacking(oldest)
        try:
            with progress("writing", len(changes)) as advance:
                for change in changes:
                    files = list(self._files(change))
                    if oldest and not self._repository.last:
                        self._begins_at = change.number
                        files += self._before(change)
                    self._repository.add(change, files)
                    advance(1)
        finally:
            self._repository.save()
        return len(changes)

    def omissions(self) -> Iterator[str]:
        """Yield what the repository lacks: a line for each reason, and some of the paths."""
        if self._begins_at is not None:
            yield (
                f"Older changes are not kept any more: the first commit has the files as they were at change"
                f" {self._begins_at}, those from before it without permissions, and no links from before it."
            )
        empty = {name: None for name in sorted(self._folders) if not self._repository.has_below(name)}
        for reason, paths in {**self._omitted, _EMPTY: empty}.items():
            if paths:
                kind = reason if reason in (_EMPTY, _NO_TEXT) else f"paths {reason}"
                more = f", and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
                yield f"Left out, {kind}: {', '.join(list(paths)[:_LISTED])}{more}"

    def _lacking(self, oldest: int) -> list[FileChange]:
        """Return the changes after the last one of the repository, the oldest first."""
        last = self._repository.last
        lacking: list[FileChange] = []
        same = not last or last == oldest - 1
        for change in changes_of(self._client, self._workspace):
            if change.number <= last:
                same = same or (change.number, change.at) == (last, self._repository.at)
                break
            lacking.append(change)
        if not same:
            raise Conflict(
                f"change {last}, the last one of the repository, is not in the versions of {self._workspace} any more:"
                " name a new folder"
            )
        return lacking[::-1]

    def _files(self, change: FileChange) -> Iterator[CommittedFile | Removal]:
        for file in change.files:
            name = self._name(file.path)
            if file.type == "folder":
                self._folders.add(name)
                yield Removal(name)
                continue
            self._folders.discard(name)
            written = None if file.type == "removed" else self._written(file, change.number)
            yield Removal(name) if written is None else written

    def _before(self, change: FileChange) -> Iterator[CommittedFile]:
        """Yield the files at the first change that did not change with it."""
        changed = {file.path for file in change.files}
        for info in below(self._client, WorkspacePath(self._workspace.rpartition("/")[2], "", str(change.number))):
            if info.path not in changed:
                file = FileVersion(path=info.path, type="file", mode=0o644, size=info.size)
                written = self._written(file, change.number)
                if written is not None:
                    yield written

    def _written(self, file: FileVersion, number: int) -> CommittedFile | None:
        name = self._name(file.path)
        if not holds(name):
            return self._omit(_NESTED, name)
        if file.type == "link":
            if file.target is None:
                return self._omit(_UNREADABLE, name)
            target = file.target.encode()
            if sha256(target).hexdigest() != file.sha256:
                return self._omit(_NO_TEXT, name)
            return CommittedFile(name, target, file.mode, is_link=True)
        try:
            content = self._client.call(api.read_file(file.path, at=number)).content
        except InvalidPath:
            return self._omit(_ILLEGAL, name)
        except (NotFound, Forbidden):
            return self._omit(_UNREADABLE, name)
        return CommittedFile(name, content, file.mode)

    def _omit(self, reason: str, name: str) -> CommittedFile | None:
        self._omitted.setdefault(reason, {})[name] = None
        return None

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._workspace}/")
