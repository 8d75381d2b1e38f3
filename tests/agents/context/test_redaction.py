"""Secrets are taken out of what goes to disk, and little else (O1, A6)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cfs_agents.context import redact, redact_json

TAIL = "abcdefghijABCDEFGHIJ0123456789abcdefghij"
SECRETS = [
    ("sk-" + TAIL, "a key {} in prose"),
    ("sk-ant-api03-" + TAIL, "{}"),
    ("sk-proj-" + TAIL, "use {}."),
    ("AKIA" + "ABCDEFGHIJ012345", "id {}"),
    ("ghp_" + TAIL[:36], "git clone with {}\n"),
    ("github_pat_" + TAIL, '"{}"'),
    ("glpat-" + TAIL[:20], "{}"),
    ("xoxb-" + TAIL[:24], "slack {}"),
    ("AIza" + TAIL[:35], "map?key={}"),
    ("hf_" + TAIL[:34], "{}"),
    ("cfs_" + TAIL + "xyz", "token {}"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "jwt {}"),
    ("abcdef0123456789", "Authorization: Bearer {}"),
    ("abcdef0123456789", "curl -H 'authorization: bearer {}'"),
    ("dXNlcjpwYXNz", "Authorization: Basic {}"),
    ("hunter2", "postgres://joe:{}@db.example/app"),
    ("hunter2", "password=hunter2".replace("hunter2", "{}")),
    ("hunter2", "PASSWORD = {}"),
    ("correcthorse", "password: {}\nuser: joe"),
    ("correct horse", 'passphrase = "{}"'),
    ("pa55", "export DB_PASS={}"),
    ("päss wörd", '"password": "{}"'),
    ("a1b2c3d4e5", "api_key={}&page=2"),
    ("a1b2c3d4e5", "apiKey: '{}'"),
    ("a1b2c3d4e5", "client-secret={}"),
    ("a1b2c3d4e5", "run --token {} --fast"),
    ("a1b2c3d4e5", "run --api-key={}"),
    ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY={}"),
    ("a1b2c3d4e5", r"{{\"access_token\": \"{}\"}}"),
    ("MIIEowIBAAKCAQEA", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n"),
    ("b3BlbnNzaC1rZXk", "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\nAAAA"),
    ("MIIEowIBAAKCAQEA", r"-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----"),
    ("x" * 40 + "1" * 2000, "SECRET_KEY={}"),
    ("sk-" + TAIL, r"a line\n{}\nand more"),
    ("hunter2", r"a line\npassword={}\nand more"),
    (r"hun\"ter\\2", '"password": "{}", "user": "joe"'),
    ("hunter2", 'password="{}'),
    ("it's", 'password = "{}"'),
    ("x" * 9000 + "1", "api_key: '{}'"),
]
HARMLESS = [
    "max_tokens=512",
    "tokens: 4096",
    "token_count = 123456789",
    "pad_token=0",
    "next_token: abc12345678",
    "password=$PASSWORD",
    "password=${DB_PASSWORD}",
    "password = os.environ['PASSWORD']",
    "password = getpass()",
    "password: str",
    "password: Optional[str] = None",
    "api_key=None",
    "api_key=api_key",
    "token = next(tokens)",
    "token = item",
    "token: the first of a line",
    "key=value",
    "the key: a1b2c3d4e5f6",
    "public_key=a1b2c3d4e5f6",
    "primary-key: user_id_1",
    "PASSWORD=********",
    "secret: <your secret>",
    'help="the password must have at least eight characters"',
    '"password": "it must have at least eight characters"',
    "sk-toggleable__label-arrow",
    "task-management-system-1-component",
    "https://example.com:8080/a@b",
    "git@example.com:owner/repository.git",
    "Bearer authentication is used here",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "b2f5ff47-4366-4ac2-9c3d-0f2b0a4d1c11",
    "tests_pass=12 tests_fail=3",
    "2026-01-01 12:00:00 INFO token handled in 12 ms",
    "",
]


@pytest.mark.parametrize(("secret", "frame"), SECRETS)
def test_a_secret_is_taken_out_and_the_rest_stays(secret: str, frame: str) -> None:
    """Where it stood a mark says what it was; what is around it is as before."""
    text = frame.format(secret)
    redacted = redact(text)
    assert secret not in redacted.text
    assert "[redacted: " in redacted.text
    assert sum(redacted.found.values()) == 1
    if "PRIVATE KEY" not in frame:
        before, after = frame.format("\0").split("\0")
        assert redacted.text.startswith(before)
        assert redacted.text.endswith(after)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    """Names of variables, types, calls, counts, hashes, public keys."""
    assert redact(text).text == text
    assert redact(text).found == {}


def test_every_secret_of_a_text_is_found() -> None:
    """Between other text, one after the other, and counted by kind."""
    text = "\n".join(f"line {number}\n{frame.format(secret)}" for number, (secret, frame) in enumerate(SECRETS))
    redacted = redact(text)
    assert [secret for secret, _ in SECRETS if secret in redacted.text] == []
    assert sum(redacted.found.values()) == len(SECRETS)


def test_values_of_json_are_judged_by_their_keys() -> None:
    """Arguments of a call: nested, in lists, beside harmless ones; other values stay as they are."""
    value = {"user": "joe", "password": "hunter2", "n": 1, "env": [{"API_KEY": "abc12"}, "TOKEN=a1b2c3d4e5"], "x": None}
    redacted = redact_json(value)
    assert redacted.value == {
        "user": "joe",
        "password": "[redacted: password]",
        "n": 1,
        "env": [{"API_KEY": "[redacted: key]"}, "TOKEN=[redacted: token]"],
        "x": None,
    }
    assert redacted.found == {"password": 1, "key": 1, "token": 1}


BEGINNINGS = ["password=", "token: ", "://a:", "@", '"', "'", "\n", " ", "Bearer ", "é", "--"]
HOSTILE = [
    "token=",
    'key="',
    "key='\"",
    'key="\\\\',
    'key=\\"',
    "password= ",
    "-----BEGIN PRIVATE KEY-----",
    "://",
    "Bearer aaaaaaa",
    "sk-",
    "eyJaaaaaaaaaa.",
]
pieces = st.sampled_from([secret for secret, _ in SECRETS] + BEGINNINGS)


@example("AIza" + TAIL[:35] + "sk-" + TAIL)
@example("-----BEGIN PRIVATE KEY-----AAAA-----END PRIVATE KEY-----sk-" + TAIL)
@given(st.lists(pieces | st.text(max_size=4), max_size=12).map("".join))
def test_a_redacted_text_has_nothing_left_to_take_out(text: str) -> None:
    """Doing it twice does nothing more, whatever stands beside what."""
    once = redact(text).text
    assert redact(once).text == once


@pytest.mark.parametrize("piece", [*HOSTILE, "a"])
def test_a_hostile_text_takes_no_more_than_its_length(piece: str) -> None:
    """Beginnings of secrets; a search that goes back again and again would take minutes."""
    text = piece * (131_072 // len(piece))
    assert len(redact(text).text) > 0
