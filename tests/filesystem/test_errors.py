"""One table maps each error to its faces, walked both ways (G4)."""

import errno

import pytest

from cfs_filesystem import (
    TABLE,
    AccessDeniedError,
    ConflictError,
    FileSystemError,
    InvalidArgumentError,
    InvalidPathError,
    NotFoundError,
    _errors,
    error_for_status,
)

ALL = [kind for kind in vars(_errors).values() if isinstance(kind, type) and issubclass(kind, FileSystemError)]


def test_the_table_has_every_error_and_no_other() -> None:
    assert set(TABLE) == set(ALL) - {FileSystemError}
    assert len(TABLE) == 5


@pytest.mark.parametrize("kind", TABLE)
def test_each_error_has_three_faces_and_comes_back_from_its_status(kind: type[FileSystemError]) -> None:
    error = kind("what was wrong", "/a")
    assert (error.errno, error.status, error.dav_status) == TABLE[kind]
    assert error.errno in errno.errorcode
    assert error_for_status(error.status) is kind
    assert (str(error), error.detail, error.path) == ("what was wrong", "what was wrong", "/a")
    assert kind.__name__ in (_errors.__doc__ or ""), "the tree at the top of the module names every class"


def test_what_the_faces_say() -> None:
    """As in the row of errors of the design."""
    said = {kind: (errno.errorcode[row.errno], row.status) for kind, row in TABLE.items()}
    assert said == {
        InvalidPathError: ("EINVAL", 400),
        InvalidArgumentError: ("EINVAL", 422),
        AccessDeniedError: ("EACCES", 403),
        NotFoundError: ("ENOENT", 404),
        ConflictError: ("EPERM", 409),
    }


def test_an_error_of_ones_own_looks_like_its_parent() -> None:
    class LockedError(ConflictError):
        """Somebody holds a lock."""

    assert LockedError("held").status == 409


def test_a_status_that_is_none_of_ours() -> None:
    assert error_for_status(500) is None
