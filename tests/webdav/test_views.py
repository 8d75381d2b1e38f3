"""Names of texts by themselves (W2)."""

from hypothesis import given
from hypothesis import strategies as st

from cfs_server.dav import put
from cfs_server.dav.put import SentBytes, TranscriptVersion


@given(st.binary(max_size=20), st.integers(0, 99), st.binary(max_size=20))
def test_a_name_says_which_bytes_were_sent(data: bytes, version: int, tail: bytes) -> None:
    name = put.name_of_sent("0a1b2c3d", version, len(data), put.digest(data))
    sent = put.read(f'"{name}"', "0a1b2c3d", version)
    assert sent == SentBytes(version, len(data), put.digest(data))
    assert sent.begins(data + tail)
    assert not sent.begins(data[:-1] if data else b"") or not data
    assert not sent.begins(b"\x00" + data) or data == b"\x00" * len(data)


def test_a_version_is_named_as_everywhere() -> None:
    assert put.read('"0a1b2c3d-7"', "0a1b2c3d", 7) == TranscriptVersion(7)
    assert put.read('"0a1b2c3d-7"', "0a1b2c3d", 8) == TranscriptVersion(7)
    for tag, nonce in (('"0a1b2c3d-7"', "other"), ('"0a1b2c3d-9"', "0a1b2c3d"), ("0a1b2c3d-7", "0a1b2c3d"), ("", "")):
        assert put.read(tag, nonce, 8) is None


def test_weak_names_and_very_many_are_not_read() -> None:
    assert put.named('W/"a", "b",  "c"') == ['"b"', '"c"']
    assert put.named(None) == put.named("a, b") == put.named("*") == []
    assert len(put.named(", ".join(f'"{number}"' for number in range(1000)))) == 16
