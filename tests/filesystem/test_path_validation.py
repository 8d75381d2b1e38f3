"""Which strings are paths, and that every operation says so first (G1)."""

import string
import unicodedata
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_filesystem import (
    OPERATIONS,
    InMemoryFileSystem,
    InvalidPathError,
    Operation,
    validate_path,
    validate_prefix,
)
from cfs_filesystem._paths import covers, narrower
from cfs_filesystem.testing import invoke
from tests.filesystem.hostile_paths import LITERAL, REFUSED, Hostile
from tests.filesystem.support import everything, grant, paths


def test_the_corpus_is_large_and_has_no_doubles() -> None:
    assert len({hostile.path for hostile in REFUSED}) == len(REFUSED) >= 200
    assert len(set(LITERAL)) == len(LITERAL) >= 100


@pytest.mark.parametrize("hostile", REFUSED, ids=lambda hostile: ascii(hostile.path[:40]))
def test_hostile_path_is_refused_with_its_reason(hostile: Hostile) -> None:
    with pytest.raises(InvalidPathError) as caught:
        validate_path(hostile.path)
    assert hostile.reason in caught.value.detail
    assert caught.value.detail.isascii(), "an error must be printable anywhere"
    assert len(caught.value.detail) < 2000
    assert caught.value.path == hostile.path


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_refuses_every_hostile_path(operation: Operation) -> None:
    memory = InMemoryFileSystem()
    handle = everything(memory)
    for hostile in REFUSED:
        if operation == "list" and hostile.reason == "ends in":
            continue  # a prefix
        with pytest.raises(InvalidPathError):
            invoke(handle, operation, hostile.path)
    assert handle.list() == []
    memory.check_integrity()


@pytest.mark.parametrize("path", LITERAL, ids=lambda path: ascii(path[:40]))
def test_literal_path_is_kept_as_it_stands(path: str) -> None:
    assert validate_path(path) is path
    handle = everything(InMemoryFileSystem())
    handle.write(path, "x")
    assert paths(handle.list()) == [path]


def test_literal_paths_are_all_different_entries() -> None:
    handle = everything(InMemoryFileSystem())
    wanted = [path for path in LITERAL if not any(covers(path, other) and path != other for other in LITERAL)]
    for path in wanted:
        handle.write(path, path)
    assert paths(handle.list()) == sorted(wanted)
    assert all(handle.read_file(path) == path for path in wanted)


@pytest.mark.parametrize("value", [None, 1, b"/a", ["/a"], type("Text", (str,), {})("/a")])
def test_a_path_is_a_plain_string(value: object) -> None:
    for check in (validate_path, validate_prefix):
        with pytest.raises(InvalidPathError, match="plain string"):
            check(cast("str", value))


def test_a_path_is_below_a_registered_prefix() -> None:
    handle = everything(InMemoryFileSystem(["/internal/", "/work/space/"]))
    handle.write("/internal/a", "x")
    handle.write("/work/space/a", "x")
    for path in ("/a", "/internal", "/internalx/a", "/Internal/a", "/work/a", "/work/space", "/work/spacey"):
        with pytest.raises(InvalidPathError, match="/internal/"):
            handle.write(path, "x")
        with pytest.raises(InvalidPathError):
            handle.file(path)
    assert paths(handle.list("/")) == paths(handle.list()) == ["/internal/a", "/work/space/a"]
    assert paths(handle.list("/work")) == paths(handle.list("/work/space")) == ["/work/space/a"]
    for prefix in ("/other", "/other/", "/inter", "/work/spac/"):
        with pytest.raises(InvalidPathError):
            handle.list(prefix)


def test_a_registered_prefix_ends_in_a_slash() -> None:
    for prefix in ("/internal", "internal/", "//", "/../", ""):
        with pytest.raises(InvalidPathError):
            InMemoryFileSystem([prefix])


def test_a_bad_path_is_told_before_a_missing_right() -> None:
    handle = InMemoryFileSystem().create_handle([])
    for operation in OPERATIONS:
        with pytest.raises(InvalidPathError):
            invoke(handle, operation, "/a/../b")


@given(st.text(alphabet=string.printable + "./.\\/.\u2024\uff0f é中\ud800", max_size=30))
def test_what_is_accepted_is_safe_to_take_apart(text: str) -> None:
    """The one property that all the rules are for, checked without the rules."""
    try:
        path = validate_path("/" + text)
    except InvalidPathError:
        return
    assert path == "/" + text
    first, *components = path.split("/")
    assert first == ""
    for component in components:
        assert component not in ("", ".", "..")
        assert unicodedata.normalize("NFKC", component) not in (".", "..")
        assert not set(component) & set("\\*?/\uff0f")
        assert all(unicodedata.category(character) not in ("Cc", "Cs") for character in component)
        assert 1 <= len(component.encode()) <= 255


_COMPONENTS = st.lists(st.sampled_from(["a", "b", "ab", "a b"]), max_size=3)


@given(_COMPONENTS, st.booleans(), _COMPONENTS, st.booleans())
def test_prefixes_are_compared_by_whole_components(
    one: list[str], one_ends: bool, other: list[str], other_ends: bool
) -> None:
    def text(parts: list[str], ends: bool) -> str:
        return "/" + "/".join(parts) + ("/" if parts and ends else "")

    a, b = text(one, one_ends), text(other, other_ends)
    inside = other[: len(one)] == one
    strictly = inside and (len(other) > len(one) or other_ends or not other)
    assert covers(a, b) == (strictly if one_ends or not one else inside)
    assert narrower(a, b) == (b if covers(a, b) else a if covers(b, a) else None)


def test_grants_do_not_reach_siblings_that_share_letters() -> None:
    memory = InMemoryFileSystem()
    for path in ("/a/x", "/ab", "/a b", "/a.txt"):
        everything(memory).write(path, "x")
    handle = memory.create_handle([grant("/a")])
    assert paths(handle.list()) == ["/a/x"]
