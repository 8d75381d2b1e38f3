"""No page of another site talks to the server, and none that points its own name at it."""

import httpx
import pytest

from cfs.errors import Forbidden
from cfs_server.config.settings import ServerSettings
from cfs_server.http.middleware import check_caller
from tests.server.support import running_server

OURS = frozenset({"cfs.example"})


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.9.9.9", "CFS.example:1"]
)
def test_loopback_names_and_allowed_ones_are_ours(host: str) -> None:
    check_caller({b"host": host.encode()}, OURS)
    check_caller({b"host": host.encode(), b"origin": f"http://{host}".encode()}, OURS)


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "localhost.evil.example", "10.0.0.1:8000", "xlocalhost", "[::2]:80"]
)
def test_any_other_name_is_refused_unless_all_are_allowed(host: str) -> None:
    with pytest.raises(Forbidden, match="not called"):
        check_caller({b"host": host.encode()}, OURS)
    check_caller({b"host": host.encode()}, None)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:9000", "http://localhost", "file://"]
)
def test_a_page_of_another_site_is_refused_even_where_any_name_is_allowed(origin: str) -> None:
    with pytest.raises(Forbidden, match="another site"):
        check_caller({b"host": b"localhost:8000", b"origin": origin.encode()}, None)


def test_programs_send_no_origin() -> None:
    check_caller({b"host": b"localhost:8000"}, frozenset())
    check_caller({}, frozenset())


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "odd"])
def test_what_a_page_of_another_site_loads_is_refused_without_an_origin(site: str) -> None:
    """An image, a script, a frame: the browser sends no `Origin` with them."""
    headers = {b"host": b"localhost:8000", b"sec-fetch-site": site.encode()}
    for mode, destination in (("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty"), ("", "")):
        fetch = headers | {b"sec-fetch-mode": mode.encode(), b"sec-fetch-dest": destination.encode()}
        for is_page in (False, True):
            with pytest.raises(Forbidden, match="another site"):
                check_caller(fetch, None, is_page=is_page)
    link = headers | {b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"document"}
    check_caller(link, None, is_page=True)
    with pytest.raises(Forbidden, match="dashboard only"):
        check_caller(link, None)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_and_the_user_are_no_other_site(site: str) -> None:
    check_caller({b"host": b"localhost:8000", b"sec-fetch-site": site.encode()}, frozenset())


async def test_a_link_of_another_site_opens_the_dashboard_and_nothing_else() -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with running_server() as h:
        await h.create("a")
        for path in ("/", "/dashboard/index.html"):
            page = await h.client.get(path, headers=link | {"Accept": "text/html"}, follow_redirects=True)
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for path in ("/v1/sessions/a", "/v1/files", "/dav/sessions/", "/metrics", "/v1/events"):
            assert (await h.client.get(path, headers=link)).status_code == 403, path
        for path in ("/", "/v1/sessions/a", "/v1/sessions/a/messages"):
            refused = await h.client.post(path, content="hi", headers={"Sec-Fetch-Site": "cross-site"})
            assert refused.status_code == 403, path
            refused = await h.client.get(path, headers={"Sec-Fetch-Site": "cross-site"})
            assert refused.status_code == 403, path
        assert len(h.store.get("a").history) == 0


def test_the_names_come_from_the_settings() -> None:
    assert ServerSettings().host_names == frozenset()
    assert ServerSettings(allowed_hosts=" A.example, b.example ").host_names == frozenset({"a.example", "b.example"})
    assert ServerSettings(allow_remote_without_tokens=True).host_names is None
    assert ServerSettings(allow_remote_without_tokens=True, allowed_hosts="a").host_names == frozenset({"a"})


async def test_a_cross_site_message_is_refused_and_stored_nowhere() -> None:
    async with running_server() as h:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            refused = await h.client.post("/v1/sessions/a/messages", content="hi", headers=headers)
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:cfs:error:forbidden")
        assert (await h.client.get("/v1/sessions/a")).status_code == httpx.codes.NOT_FOUND
        own = f"http://{h.client.base_url.netloc.decode()}"
        assert (
            await h.client.post("/v1/sessions/a/messages", content="hi", headers={"Origin": own})
        ).status_code == 202
