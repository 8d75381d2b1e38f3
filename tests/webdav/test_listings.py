"""Listings of named properties are written by ourselves for speed: nobody can tell them from the library's."""

import pytest

from tests.server.support import ServerHarness, running_server
from tests.webdav.wire import Dav, propfind, taken_apart

NAMES = {
    "what clients ask for": ["{DAV:}getetag", "{DAV:}getcontentlength", "{DAV:}getlastmodified", "{DAV:}resourcetype"],
    "with what is not there": [
        *("{DAV:}resourcetype", "{DAV:}creationdate", "{DAV:}quota-used-bytes"),
        *("{urn:apache}executable", "{urn:a&b}näme"),
    ],
    "nothing that is there": ["{urn:x}one", "{urn:x}two"],
    "a setting": ["{DAV:}getetag", "{cfs:}temperature"],
    "what takes the library": ["{DAV:}displayname", "{DAV:}supportedlock", "{DAV:}getcontenttype"],
}


async def filled(server: ServerHarness) -> Dav:
    """Odd names of every kind."""
    dav = Dav(server.client)
    for name in ("plain", "a b", "ü&<>'\"", "100%"):
        await server.create(name)
        await server.create(f"{name}/child")
    for path in ("/workspaces/main", "/workspaces/main/empty", "/workspaces/main/ü & ä"):
        assert (await dav("MKCOL", path)).status_code == 201
    assert (await dav("PUT", "/workspaces/main/a<b>.html", b"x")).status_code == 201
    return dav


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("path", ["/", "/sessions/", "/sub_sessions/", "/sub_sessions/plain/", "/workspaces/main"])
async def test_they_are_what_the_library_would_answer(path: str, names: list[str]) -> None:
    """A condition that holds makes no difference to the answer, but leads past our own writing."""
    async with running_server() as server:
        dav = await filled(server)
        ours = await dav.find(path, *names)
        theirs = taken_apart(await dav("PROPFIND", path, propfind(*names), depth="1", if_none_match='"x"'))
        assert len(ours) > 1
        assert ours == theirs


async def test_a_dead_property_is_found_among_them() -> None:
    async with running_server() as server:
        dav = await filled(server)
        await dav.set("/sessions/plain", "{urn:x}one", "1")
        found = await dav.find("/sessions/", "{urn:x}one", "{DAV:}resourcetype")
        assert found["/dav/sessions/plain"].values["{urn:x}one"] == "1"
        assert found["/dav/sessions/100%25"].statuses["{urn:x}one"] == 404


async def test_what_is_no_collection_or_not_there_is_told_as_ever() -> None:
    async with running_server() as server:
        dav = await filled(server)
        assert list(await dav.find("/sessions/plain", "{DAV:}getetag")) == ["/dav/sessions/plain"]
        assert (await dav("PROPFIND", "/sessions/none", propfind("{DAV:}getetag"), depth="1")).status_code == 404
