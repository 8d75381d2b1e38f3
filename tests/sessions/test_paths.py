"""Every session has one logical path, and every such path one session (S1, G1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.ids import check_id
from cfs.contract.route_words import ROUTE_WORDS
from cfs.errors import InvalidIdentifier
from cfs_filesystem import FsHandle, InMemoryFileSystem, InvalidPathError, validate_path
from cfs_server.domain.ids import SESSIONS, id_of, path_of
from tests.filesystem.hostile_paths import LITERAL, REFUSED
from tests.filesystem.support import grant

LOOK_ALIKES = "\u2044\u2215\u2571\u27cb\u29f8\uff0f\u2216\u2572\u27cd\u29f5\u29f9\ufe68\uff3c\u2024\u2025\ufe52\uff0e"
SPECIAL = "%*?\\" + "".join(map(chr, range(0x80, 0xA0))) + LOOK_ALIKES
LONGEST = 255

CHARACTERS = st.one_of(
    st.sampled_from(SPECIAL + ".aA2e5C "),
    st.characters(exclude_characters="/\x7f", exclude_categories=["Cs"], min_codepoint=0x20),
)
ROOTS = st.text(CHARACTERS, min_size=1).filter(lambda text: not text.startswith(".") and len(text.encode()) <= LONGEST)
COMPONENTS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True).filter(lambda name: name not in ROUTE_WORDS)
IDS = st.builds(lambda root, below: "/".join([root, *below]), ROOTS, st.lists(COMPONENTS, max_size=15))


def escaped_size(session_id: str) -> int:
    """Bytes of the first component of the path, counted without the code that makes it."""
    root = session_id.split("/")[0]
    return sum(len(character.encode()) * (3 if character in SPECIAL else 1) for character in root)


@given(IDS)
def test_each_id_has_a_path_that_leads_back_to_it_unless_that_is_too_long(session_id: str) -> None:
    assert check_id(session_id) == session_id
    if escaped_size(session_id) > LONGEST:
        with pytest.raises(InvalidIdentifier, match="too long"):
            path_of(session_id)
        return
    path = path_of(session_id)
    assert path.startswith(SESSIONS)
    assert validate_path(path, [SESSIONS]) == path
    assert id_of(path) == session_id
    assert path.count("/") - SESSIONS.count("/") == session_id.count("/"), "a family of sessions is one of paths"


@given(st.text(CHARACTERS | st.sampled_from("/%"), max_size=40))
def test_each_path_names_one_session_in_one_spelling_or_none(text: str) -> None:
    try:
        path = validate_path(SESSIONS + text)
    except InvalidPathError:
        return
    try:
        session_id = id_of(path)
    except InvalidPathError:
        return
    assert path_of(session_id) == path


@given(IDS, IDS)
def test_different_ids_have_different_paths_and_families_stay_apart(one: str, other: str) -> None:
    if max(escaped_size(one), escaped_size(other)) > LONGEST:
        return
    assert (path_of(one) == path_of(other)) == (one == other)
    assert path_of(other).startswith(path_of(one) + "/") == other.startswith(one + "/")


def test_every_character_that_an_id_may_hold_has_a_path() -> None:
    """All of the plane that has the look-alikes: what the gate refuses in a path must be escaped, and nothing else."""
    for code in [*range(0x20, 0x7F), *range(0x80, 0xD800), *range(0xE000, 0x10000)]:
        character = chr(code)
        if character == "/":
            continue
        for session_id in (f"a{character}b", character):
            if session_id == ".":
                continue
            path = path_of(session_id)
            assert id_of(path) == session_id
            assert (path == SESSIONS + session_id) == (character not in SPECIAL), hex(code)


@pytest.mark.parametrize(
    ("session_id", "path"),
    [
        ("main/coder", "/sessions/main/coder"),
        ("中文 é", "/sessions/中文 é"),
        ("a*b?", "/sessions/a%2Ab%3F"),
        ("a\\b", "/sessions/a%5Cb"),
        ("100%", "/sessions/100%25"),
        ("%2A", "/sessions/%252A"),
        ("a\x85", "/sessions/a%C2%85"),
        ("a\uff0fb/c", "/sessions/a%EF%BC%8Fb/c"),
        ("\u2024\u2024", "/sessions/%E2%80%A4%E2%80%A4"),
        ("a..", "/sessions/a.."),
    ],
)
def test_what_a_path_may_not_hold_is_escaped(session_id: str, path: str) -> None:
    assert path_of(session_id) == path
    assert id_of(path) == session_id


@pytest.mark.parametrize(
    "path",
    [
        "/sessions/a%2ab",  # small letters
        "/sessions/%61",  # need not be escaped
        "/sessions/a%2Fb",  # no id has a slash within a component
        "/sessions/a%00",
        "/sessions/a%",
        "/sessions/a%zz",
        "/sessions/%FF",
        "/sessions/%C0%AF",
        "/sessions/%ED%A0%80",
        "/sessions/%2E%2E",
        "/sessions/.hidden",
        "/sessions/a/b c",
        "/sessions/a/b%2A",
        "/sessions/a/messages",
        "/sessions/" + "/".join("a" * 17),
    ],
)
def test_a_path_that_is_no_sessions_own_spelling_names_none(path: str) -> None:
    with pytest.raises(InvalidPathError):
        id_of(path)


def test_the_hostile_paths_name_no_session_but_literally() -> None:
    for text in [*(hostile.path for hostile in REFUSED), *LITERAL]:
        try:
            session_id = check_id(text.removeprefix("/"))
        except InvalidIdentifier:
            continue
        if escaped_size(session_id) <= LONGEST:
            assert id_of(path_of(session_id)) == session_id


def test_a_grant_on_an_id_with_wildcards_is_for_that_one_only() -> None:
    memory = InMemoryFileSystem([SESSIONS])
    others = ("a", "ab", "axb", "a**b", "a?b", "a%2Ab", "a\\*b", "a＊b")
    handle: FsHandle = memory.create_handle([grant(path_of("a*b"))])
    assert handle.allows("write", path_of("a*b"))
    assert handle.allows("write", path_of("a*b/child"))
    assert not any(handle.allows("write", path_of(other)) for other in others)
