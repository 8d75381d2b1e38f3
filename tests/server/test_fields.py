"""Header fields have one reading, whoever looks at them, and no bytes in them break anything (H5; RFC 9110, 5)."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cfs.errors import InvalidRequest
from cfs_server.http.connections import one_reading
from tests.server.fields import HOSTILE, ONE_VALUE, TARGETS, ask
from tests.server.support import Process, run_cfs, serving


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, bytes]]:
    """A server that wants a token, and the field with one that may do everything."""
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    made = run_cfs("token", "create", "owner", "--grant", "/", "--tokens", str(file))
    flags = ("--engine", "scripted", "--tokens", str(file), "--workspaces", str(Path(file.parent, "files")))
    with serving(*flags) as process:
        yield process, b"Authorization: Bearer " + made.stdout.split()[-1].encode()


def test_a_name_stands_once_in_what_is_read() -> None:
    assert one_reading([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]) == [(b"a", b"1, 3"), (b"b", b"2")]
    assert one_reading([(b"cookie", b"a=1"), (b"cookie", b"b=2")]) == [(b"cookie", b"a=1; b=2")]
    assert one_reading([(b"depth", b"1"), (b"depth", b"1")]) == [(b"depth", b"1")], "the same twice is no question"
    assert one_reading([(b"if_match", b"x"), (b"if-match", b"y")]) == [(b"if-match", b"y")]
    for name in (b"host", b"authorization", b"x-cfs-session", b"x-cfs-anything"):
        with pytest.raises(InvalidRequest, match="twice"):
            one_reading([(name, b"1"), (name, b"2")])
    with pytest.raises(InvalidRequest, match="host"):
        one_reading([(b"host", b"1"), (b"host", b"1")])


@pytest.mark.parametrize("name", ONE_VALUE)
def test_a_field_with_two_values_is_refused(guarded: tuple[Process, bytes], name: bytes) -> None:
    process, owner = guarded
    for values in ((b"a", b"b"), (b"b", b"a")):
        assert ask(process.url, "GET", "/v1/whoami", owner, *(name + b": " + value for value in values)) == 400


def test_a_list_may_be_spread_over_lines(guarded: tuple[Process, bytes]) -> None:
    process, owner = guarded
    path = "/v1/files/workspaces/w/lists"
    headers = dict([owner.decode().split(": ")])
    etag = httpx.put(process.url + path, content=b"x", headers=headers, trust_env=False).headers["etag"].encode()
    for tags in ((etag, b'"x"'), (b'"x"', etag)):
        assert ask(process.url, "GET", path, owner, *(b"If-None-Match: " + tag for tag in tags)) == 304
    assert ask(process.url, "PUT", path, owner, b'If-Match: "x"', b"If-Match: " + etag, body=b"x") == 200


@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_of_a_field_is_a_defect(guarded: tuple[Process, bytes], value: bytes) -> None:
    process, owner = guarded
    for method, path, body in TARGETS:
        for name in ONE_VALUE:
            fields = [field for field in (owner, b"Host: localhost") if not field.lower().startswith(name + b":")]
            status = ask(process.url, method, path, *fields, name + b": " + value, body=body, host=False)
            assert status < 500 or (status, name) == (502, b"destination"), (method, path, name, value)
