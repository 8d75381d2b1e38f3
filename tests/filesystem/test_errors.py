"""The errors of file systems are a branch of the one tree, with its HTTP status, WebDAV status and errno (G4)."""

import errno

import pytest

from cfs.errors import TABLE, CfsError, from_problem, to_problem
from cfs_filesystem import (
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    VersionError,
    _errors,
)

FACES: dict[type[FileSystemError], tuple[str, int]] = {
    InvalidPathError: ("EINVAL", 400),
    InvalidArgumentError: ("EINVAL", 422),
    AccessDeniedError: ("EACCES", 403),
    NotFoundError: ("ENOENT", 404),
    ConflictError: ("EPERM", 409),
    VersionError: ("ESTALE", 412),
}


def test_these_are_all_errors_of_file_systems() -> None:
    kinds = [kind for kind in vars(_errors).values() if isinstance(kind, type) and issubclass(kind, FileSystemError)]
    assert set(kinds) == {FileSystemError, *FACES}


@pytest.mark.parametrize("kind", FACES)
def test_each_error_has_the_numbers_of_its_base_in_the_tree(kind: type[FileSystemError]) -> None:
    error = kind("what was wrong", "/a")
    assert (errno.errorcode[error.errno], error.status) == FACES[kind]
    assert (str(error), error.detail, error.path) == ("what was wrong", "what was wrong", "/a")
    assert kind.__name__ in (_errors.__doc__ or ""), "the tree at the top of the module names every class"


@pytest.mark.parametrize("kind", FACES)
def test_each_error_travels_as_a_problem_document(kind: type[FileSystemError]) -> None:
    """A client raises the class of the tree that the file system's own class is; the logical path stays behind."""
    error = kind("what was wrong", "/a")
    problem = to_problem(error)
    assert problem.keys() == {"type", "title", "status", "detail"}
    again = from_problem(error.status, problem)
    assert type(again) in TABLE
    assert isinstance(error, type(again))
    assert (again.status, again.errno, again.detail) == (error.status, error.errno, "what was wrong")


def test_an_error_of_ones_own_looks_like_its_parent() -> None:
    class LockedError(ConflictError):
        """Somebody holds a lock."""

    assert LockedError("held").status == 409
    assert isinstance(LockedError("held"), CfsError)
