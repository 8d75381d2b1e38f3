"""The file of tokens: made by the program, edited by people, and never half of it (G9)."""

import os
import resource
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cfs_server.access.tokens import PREFIX, TokenLimits, TokensError, create, digest, load, masked, revoke
from tests.access.support import granted, make

HASH = "sha256:" + "0" * 64
OTHER = "sha256:" + "1" * 64
BY_HAND = f"""\
# Who may come in. Ask Alice before you change something.

[tokens.alice]   # since spring
hash = '{HASH}'
grants = [
    {{ prefix = "/sessions/alice", ops = ["read"] }},  # nothing else
]

# Bob's laptop; the other one was lost
[tokens."bob.laptop"]
hash = "{OTHER}"
expires = 2031-02-03T04:05:06+02:00

    [tokens."bob.laptop".limits]
    sessions = 3
# the end
"""


def test_what_was_made_is_what_is_read(file: Path) -> None:
    expires = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    grants = [granted("/sessions/alice"), granted("/workspaces/=list,file,read_binary")]
    limits = TokenLimits(sessions=3, bytes=10_000, streams=0, requests=0.5)
    secret = create(file, "alice", grants, expires=expires, limits=limits)
    plain = create(file, "bob", [granted("/")])
    alice, bob = load(file).values()
    assert (alice.hash, alice.grants, alice.expires, alice.limits) == (digest(secret), tuple(grants), expires, limits)
    assert (bob.hash, bob.expires, bob.limits) == (digest(plain), None, TokenLimits())
    assert alice.created is not None
    assert abs((datetime.now(UTC) - alice.created).total_seconds()) < 3600
    revoke(file, "alice")
    assert load(file) == {"bob": bob}


def test_secrets_are_long_begin_alike_never_repeat_and_are_nowhere_in_the_file(file: Path) -> None:
    made = [make(file, f"t{n}", "/") for n in range(20)]
    assert len(set(made)) == 20
    text = file.read_text()
    for secret in made:
        assert secret.startswith(PREFIX)
        assert len(secret) >= len(PREFIX) + 43, "256 bits"
        assert secret.removeprefix(PREFIX)[:16] not in text


def test_a_file_that_was_edited_by_hand_keeps_what_is_in_it(file: Path) -> None:
    file.write_text(BY_HAND)
    before = load(file)
    make(file, "carol", "/")
    assert file.read_text().startswith(BY_HAND)
    assert {name: token for name, token in load(file).items() if name != "carol"} == before
    revoke(file, "carol")
    assert file.read_text().rstrip() == BY_HAND.rstrip()


def test_revoking_takes_one_entry_and_leaves_the_comments_of_the_next(file: Path) -> None:
    file.write_text(BY_HAND)
    left = load(file)
    revoke(file, "alice")
    del left["alice"]
    assert load(file) == left
    assert "# Bob's laptop; the other one was lost\n[tokens." in file.read_text()
    revoke(file, "bob.laptop")
    assert load(file) == {}
    assert file.read_text().startswith("# Who may come in.")
    assert file.read_text().endswith("# the end\n")
    assert "hash" not in file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        f"tokens = {{ alice = {{ hash = '{HASH}' }}, bob = {{ hash = '{OTHER}' }} }}\n",
        f"tokens.alice.hash = '{HASH}'\ntokens.bob.hash = '{OTHER}'",
        f"[tokens]\nalice = {{ hash = '{HASH}' }}\nbob.hash = '{OTHER}'\n",
        f"[tokens.alice]\nhash = '{HASH}'\n[tokens.bob]\nhash = '{OTHER}'\n[tokens.alice.limits]\nsessions = 1\n",
        f"[tokens.alice]\nhash = '{HASH}'\n[tokens.bob]\nhash = '{OTHER}'\ngrants = [\n['list'][0]\n]\n".replace(
            "['list'][0]", "{ prefix = '/', ops = [\n'list'] }"
        ),
    ],
)
def test_entries_may_be_written_in_any_way_that_toml_has(file: Path, text: str) -> None:
    file.write_text(text)
    bob = load(file)["bob"]
    revoke(file, "alice")
    assert load(file) == {"bob": bob}


def test_more_cannot_be_added_to_entries_on_one_line_and_that_is_told(file: Path) -> None:
    text = f"tokens = {{ alice = {{ hash = '{HASH}' }} }}\n"
    file.write_text(text)
    with pytest.raises(TokensError, match=r"write \[tokens\.NAME\]"):
        make(file, "bob", "/")
    assert file.read_text() == text


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_only_the_owner_may_read_a_new_file_and_an_old_one_keeps_its_mode(file: Path) -> None:
    with umask(0):
        make(file, "alice", "/")
        assert mode_of(file) == 0o600
        file.chmod(0o640)
        make(file, "bob", "/")
        assert mode_of(file) == 0o640
        revoke(file, "bob")
        assert mode_of(file) == 0o640


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "tokens.toml"
    link.symlink_to(tmp_path / "real" / "tokens.toml")
    make(link, "alice", "/")
    revoke(link, "alice")
    make(link, "bob", "/")
    assert link.is_symlink()
    assert set(load(tmp_path / "real" / "tokens.toml")) == {"bob"}


def test_a_reader_sees_the_old_file_or_the_new_one(file: Path) -> None:
    make(file, "always", "/")
    ended = threading.Event()

    def read() -> set[frozenset[str]]:
        seen = set()
        while not ended.is_set():
            seen.add(frozenset(load(file)))
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for _ in range(30):
            make(file, "sometimes", "/")
            revoke(file, "sometimes")
        ended.set()
        for reader in readers:
            assert reader.result() <= {frozenset({"always"}), frozenset({"always", "sometimes"})}


def test_changes_at_the_same_time_are_all_made(file: Path) -> None:
    make(file, "first", "/")
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda n: make(file, f"t{n}", "/"), range(24)))
        list(pool.map(lambda n: revoke(file, f"t{n}"), range(0, 24, 2)))
    left = load(file)
    assert set(left) == {"first", *(f"t{n}" for n in range(1, 24, 2))}
    assert left["t3"].hash == digest(secrets[3])


def test_a_change_that_fails_leaves_the_file_and_nothing_beside_it(file: Path) -> None:
    file.write_text(BY_HAND)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # the disk takes no more
    try:
        with pytest.raises(TokensError, match="too large"):
            make(file, "carol", "/")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_text() == BY_HAND
    assert list(file.parent.iterdir()) == [file]


def test_a_name_is_given_once(file: Path) -> None:
    make(file, "alice", "/")
    before = file.read_text()
    with pytest.raises(TokensError, match=r"tokens\.toml: there is a token 'alice' already; revoke it first"):
        make(file, "alice", "/")
    assert file.read_text() == before
    with pytest.raises(TokensError, match="there is no token 'bob'"):
        revoke(file, "bob")
    assert file.read_text() == before


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n", "a" * 65, '"', "#"])
def test_names_are_short_and_plain(file: Path, name: str) -> None:
    with pytest.raises(TokensError, match="a token's name has 1 to 64 letters"):
        make(file, name, "/")
    assert not file.exists()


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "a" * 64, "local", "tokens", "1", "."])
def test_what_may_be_a_name_is_one(file: Path, name: str) -> None:
    make(file, "other", "/")
    make(file, name, "/")
    assert set(load(file)) == {"other", name}
    revoke(file, name)
    assert set(load(file)) == {"other"}


def entry(more: str = "", value: str = HASH) -> str:
    return f'[tokens.alice]\nhash = "{value}"\n{more}\n'


def grants(prefix: str = "/", ops: str = '["list"]', more: str = "") -> str:
    return entry(f'grants = [{{ prefix = "{prefix}", ops = {ops}{more} }}]')


BROKEN = {
    "no TOML": ("[tokens.alice", "no TOML file"),
    "too deep": ("a = " + "[" * 5000, "no TOML file"),
    "a name twice": (entry() + entry(), "no TOML file"),
    "unknown key": ("colour = 1", "colour: "),
    "unknown key of a token": (entry("colour = 1"), "tokens.alice.colour: "),
    "unknown key of a grant": (grants(more=", colour = 1"), "tokens.alice.grants.0.colour: "),
    "unknown key of the limits": (entry("limits = { sesions = 1 }"), "tokens.alice.limits.sesions: "),
    "no table": ("tokens = 1", "tokens: "),
    "no hash": ("[tokens.alice]", "tokens.alice.hash: "),
    "short hash": (entry(value=HASH[:-1]), "tokens.alice.hash: "),
    "hash with a line break": (entry(value=HASH + "\\n"), "tokens.alice.hash: "),
    "capital hash": (entry(value="sha256:" + "A" * 64), "tokens.alice.hash: "),
    "hash of another kind": (entry(value="md5:" + "0" * 32), "tokens.alice.hash: "),
    "same hash": (entry() + f'[tokens.bob]\nhash = "{HASH}"\n', "tokens.bob.hash: 'alice' has the same"),
    "bad name": (f'[tokens."a b"]\nhash = "{HASH}"', "tokens.a b."),
    "relative prefix": (grants("sessions/a"), "tokens.alice.grants.0.prefix: 'sessions/a'"),
    "prefix with dots": (grants("/sessions/../x"), "tokens.alice.grants.0.prefix: "),
    "prefix with a wildcard": (grants("/sessions/*"), "tokens.alice.grants.0.prefix: "),
    "prefix of nothing": (grants("/Sessions/A"), "tokens.alice.grants.0.prefix: '/Sessions/A' is neither '/' nor"),
    "half a prefix": (grants("/sess"), "tokens.alice.grants.0.prefix: '/sess' is neither"),
    "unknown operation": (grants(ops='["list", "lst"]'), "tokens.alice.grants.0.ops: there is no operation 'lst'"),
    "no operations": (grants(ops="[]"), "tokens.alice.grants.0.ops: "),
    "operations as text": (grants(ops='"list"'), "tokens.alice.grants.0.ops: "),
    "local time": (entry("expires = 2031-02-03T04:05:06"), "tokens.alice.expires: "),
    "negative limit": (entry("limits = { sessions = -1 }"), "tokens.alice.limits.sessions: "),
    "no requests": (entry("limits = { requests = 0 }"), "tokens.alice.limits.requests: "),
    "endless requests": (entry("limits = { requests = inf }"), "tokens.alice.limits.requests: "),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_used_is_told_in_one_line_that_names_the_place(file: Path, kind: str) -> None:
    text, said = BROKEN[kind]
    file.write_text(text)
    with pytest.raises(TokensError) as refused:
        load(file)
    told = str(refused.value)
    assert told.startswith(f"{file}: ")
    assert said in told
    assert "\n" not in told
    with pytest.raises(TokensError) as again:
        make(file, "bob", "/")
    assert str(again.value) == told, "and nothing is added to it"
    with pytest.raises(TokensError):
        revoke(file, "alice")
    assert file.read_text() == text


def test_a_file_that_is_not_utf_8_is_told(file: Path) -> None:
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(TokensError, match="no TOML file"):
        load(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match="make a token with: cfs token create"):
        load(tmp_path / "none.toml")
    with pytest.raises(TokensError, match="no such file"):
        revoke(tmp_path / "none.toml", "alice")
    for place in (tmp_path / "none" / "tokens.toml", tmp_path):
        with pytest.raises(TokensError, match=str(place)):
            make(place, "alice", "/")
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_was_written_into_the_file_is_not_told_on(file: Path) -> None:
    """Somebody will take the secret for the hash; the error ends up on a screen, or in a log."""
    secret = make(file, "alice", "/")
    file.unlink()
    for text in (
        entry(value=secret),
        entry(f'{secret} = "x"'),
        entry(f'secret = "{secret}"'),
        grants(prefix=secret),
        grants(prefix="/" + secret),
        grants(ops=f'["{secret}"]'),
        f'{secret} = "{secret}"',
        f'[tokens.alice]\nhash = "{secret}',
    ):
        file.write_text(text)
        with pytest.raises(TokensError) as refused:
            load(file)
        assert secret[8:24] not in str(refused.value), text


def test_what_is_masked_are_secrets_and_nothing_that_looks_a_little_like_one(file: Path) -> None:
    secret = make(file, "alice", "/")
    assert masked(f"a {secret}, b={secret}/c") == "a cfs_***, b=cfs_***/c"
    assert masked("cfs_server.access.tokens cfs_sessions_2026-07-01 " + "x" * 50) == (
        "cfs_server.access.tokens cfs_sessions_2026-07-01 " + "x" * 50
    )
