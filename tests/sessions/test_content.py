"""From written bytes to a message (S3) and from names to ids (S1)."""

import re

import pytest

from cfs.contract.ids import check_id
from cfs.contract.random_names import ADJECTIVES, ANIMALS
from cfs.contract.route_words import ROUTE_WORDS
from cfs.errors import InvalidIdentifier, TooLarge, UnsupportedMedia
from cfs_server.domain.ids import ancestors_of, is_within, new_id, parent_of
from cfs_server.domain.message_sizes import check_content, decode_message


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"hi\n", "hi"),
        (b"hi", "hi"),
        (b"hi\n\n", "hi\n"),
        (b"User: hi\n", "hi"),
        (b"User: User: hi\n", "User: hi"),
        (b"Assistant: hi", "Assistant: hi"),
        ("你好\n".encode(), "你好"),
        (b"a\0b", "a\0b"),
        (b"", None),
        (b"\n", None),
        (b" \n\t\n", None),
        (b"User: \n", None),
    ],
)
def test_a_write_becomes_one_message(data: bytes, content: str | None) -> None:
    assert decode_message(data, limit=100) == content


@pytest.mark.parametrize("data", [b"\xff", b"ok \xc3", b"\xed\xa0\x80", "你".encode()[:2]])
def test_bytes_that_are_not_utf_8_are_refused_with_their_place(data: bytes) -> None:
    with pytest.raises(UnsupportedMedia, match="at byte"):
        decode_message(data, limit=100)


def test_a_message_over_the_limit_is_refused() -> None:
    assert decode_message(b"x" * 10, limit=10) == "x" * 10
    with pytest.raises(TooLarge, match="10 bytes at most"):
        decode_message(b"x" * 11, limit=10)
    with pytest.raises(TooLarge):
        check_content("你" * 4, limit=10)


def test_a_lone_surrogate_is_no_content() -> None:
    with pytest.raises(UnsupportedMedia, match="surrogate"):
        check_content("\ud800", limit=10)


@pytest.mark.parametrize(
    "name", ["a", "chat 1", "你好", "a" * 255, "é" * 127, "a.b", "~", "a\\b", "events", "*", "main/a/b-c/D_9"]
)
def test_legal_ids(name: str) -> None:
    assert check_id(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a" * 256,
        "é" * 128,
        "a\0",
        "a\nb",
        "\x7f",
        "\ud800",
        "/",
        "/a",
        "a/",
        "a//b",
        "a/..",
        "a/.b",
        "a/b c",
        "a/é",
        "a/" + "b" * 65,
        "a" + "/b" * 16,
        *(f"a/{word}" for word in sorted(ROUTE_WORDS)),
    ],
)
def test_illegal_ids_are_refused(name: str) -> None:
    with pytest.raises(InvalidIdentifier):
        check_id(name)


def test_architectures_of_ids() -> None:
    assert parent_of("a") is None
    assert parent_of("a/b/c") == "a/b"
    assert ancestors_of("a/b/c") == ["a", "a/b"]
    assert is_within("a/b", "a")
    assert is_within("a", "a")
    assert not is_within("ab", "a")


def test_a_session_without_a_name_gets_one_that_can_be_read() -> None:
    """However many there are: the numbers grow until a name is free."""
    taken: set[str] = set()
    for _ in range(2000):
        name = new_id(lambda name: name not in taken)
        assert check_id(name) not in taken
        assert re.fullmatch(r"[a-z]+-[a-z]+-[1-9][0-9]*", name)
        taken.add(name)
    few = {f"{adjective}-{animal}-{number}" for adjective in ADJECTIVES for animal in ANIMALS for number in range(10)}
    assert int(new_id(lambda name: name not in few).rpartition("-")[2]) >= 10


def test_words_of_names_are_many_and_different() -> None:
    for words in (ADJECTIVES, ANIMALS):
        assert len(words) >= 80
        assert len(set(words)) == len(words)
        assert all(re.fullmatch(r"[a-z]{2,8}", word) for word in words)
