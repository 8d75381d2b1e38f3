"""One table maps each error to its face (H5; one vocabulary on every face)."""

import errno

import pytest

from cfs import errors
from cfs.contract import errors as definitions
from cfs.errors import TABLE, CfsError, InvalidReply, TooManyRounds, Unverified, from_errno, from_problem, to_problem

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CfsError)]


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not CfsError])
def test_every_error_survives_the_way_through_a_problem_document(kind: type[CfsError]) -> None:
    error = kind("what and what to do", retry_after=2.5, limit=7)
    again = from_problem(error.status, to_problem(error))
    assert type(again) is kind
    assert (again.detail, again.retry_after, again.extra) == ("what and what to do", 2.5, {"limit": 7})
    assert again.errno in errno.errorcode
    assert kind.__doc__
    assert kind.__name__ in (definitions.__doc__ or ""), "the tree at the top of the module names every class"


@pytest.mark.parametrize("kind", TABLE)
def test_the_table_is_walked_both_ways(kind: type[CfsError]) -> None:
    """A status or an errno alone gives back a class with that same number, where no `type` says which one exactly."""
    error = kind("what was wrong")
    assert (error.slug, error.status, error.errno) == TABLE[kind]
    if error.status != 502:  # without a `type` that is a gateway's, whose server is not available
        assert from_problem(error.status, {}).status == error.status
    if kind not in (InvalidReply, TooManyRounds, Unverified):  # these never come from a file
        assert TABLE[from_errno(error.errno)].errno == error.errno


def test_an_errno_without_a_row_is_a_server_error() -> None:
    assert from_errno(errno.EXDEV) is from_errno(None) is errors.ServerError


def test_a_class_without_a_row_takes_that_of_its_base() -> None:
    class Sleeping(errors.Busy):
        """Nobody answers at night."""

    assert (Sleeping("z").slug, Sleeping("z").status) == ("busy", 409)


def test_slugs_are_unique() -> None:
    assert len({row.slug for row in TABLE.values()}) == len(TABLE)


@pytest.mark.parametrize(
    ("status", "number"),
    [
        (404, "ENOENT"),
        (401, "EACCES"),
        (403, "EACCES"),
        (412, "ESTALE"),
        (413, "EFBIG"),
        (429, "EAGAIN"),
        (507, "ENOSPC"),
        (504, "ETIMEDOUT"),
        (415, "EILSEQ"),
        (500, "EIO"),
    ],
)
def test_a_status_without_a_known_type_still_becomes_the_right_errno(status: int, number: str) -> None:
    error = from_problem(status, {"title": "from some proxy"})
    assert errno.errorcode[error.errno] == number
    assert error.detail == "from some proxy"


@pytest.mark.parametrize("kind", ALL)
def test_users_see_the_public_path_of_an_error(kind: type[CfsError]) -> None:
    assert f"{kind.__module__}.{kind.__name__}" == f"cfs.errors.{kind.__name__}"
