"""The setting `model` of sessions: which model answers the next turn, on a real server with real upstreams."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cfs import Session
from cfs.cli.base import settings
from cfs.errors import InvalidSettings
from cfs.transports import attributes
from cfs.wire import SettingsPatch, TurnSettings
from tests.models.support import Models, models_server, table
from tests.server.support import TEXT, run_cfs, serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, MODEL, served_aside

PROPPATCH = """<?xml version="1.0"?><propertyupdate xmlns="DAV:"><set><prop>
<model xmlns="cfs:">{}</model></prop></set></propertyupdate>"""
NAMES = "one, two"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Two upstreams; the first is the default."""
    with models_server(tmp_path_factory.mktemp("models")) as server:
        yield server


def test_the_next_turn_is_answered_by_the_model_of_the_settings(models: Models) -> None:
    """The other model gets the whole history; null is the default again."""
    one, two = models.stubs["one"], models.stubs["two"]
    before = models.asked()
    models.say("changes", "first words")
    models.choose("changes", "two").raise_for_status()
    models.say("changes", "second words")
    assert models.asked() == {"one": before["one"] + 1, "two": before["two"] + 1}
    assert [message["content"] for message in two.bodies[-1]["messages"]] == [
        "first words",
        "first words",
        "second words",
    ]
    assert models.client.get("/v1/sessions/changes/settings").json()["model"] == "two"
    models.choose("changes", None).raise_for_status()
    models.say("changes", "third words")
    assert len(one.bodies[-1]["messages"]) == 5
    assert len(two.bodies) == before["two"] + 1


def test_a_message_may_name_a_model_for_its_own_turn(models: Models) -> None:
    before = models.asked()
    models.say("once", "hello", model="two")
    models.say("once", "again")
    assert models.asked() == {"one": before["one"] + 1, "two": before["two"] + 1}


def test_an_unknown_model_is_refused_with_the_names_of_those_there_are(models: Models) -> None:
    """By every interface, and before anything is changed."""
    client = models.client
    refusals = [
        client.post("/v1/sessions", json={"id": "refused", "settings": {"model": "three"}}),
        client.post("/v1/sessions/refused/messages", json={"content": "hi", "settings": {"model": "three"}}),
    ]
    client.post("/v1/sessions", json={"id": "there"})
    refusals.append(models.choose("there", "three"))
    for answer in refusals:
        assert answer.status_code == 422
        problem = answer.json()
        assert problem["type"] == "urn:cfs:error:invalid-settings"
        assert problem["detail"].endswith(f"no model 'three' here; there are {NAMES}")
    assert client.get("/v1/sessions/refused").status_code == 404
    assert client.get("/v1/sessions/there/settings").json()["model"] is None
    with Session("there", url=models.url) as session, pytest.raises(InvalidSettings, match=NAMES):
        session.configure(model="three")
    told = run_cfs("send", "there", "--set", "model=three", "hello", CFS_URL=models.url)
    assert told.returncode != 0
    assert NAMES in told.stderr


def test_webdav_shows_and_sets_the_model(models: Models) -> None:
    client = models.client
    client.post("/v1/sessions", json={"id": "by-dav"})
    for name, status in (("two", "200 OK"), ("three", "409 Conflict")):
        answer = client.request("PROPPATCH", "/dav/sessions/by-dav", content=PROPPATCH.format(name))
        assert (answer.status_code, status in answer.text) == (207, True), answer.text
    assert client.get("/v1/sessions/by-dav/settings").json()["model"] == "two"


def test_a_name_is_a_text_wherever_settings_are_written() -> None:
    """Although it may look like a number; an empty one is none."""
    assert settings.read_settings(["model=7"], TurnSettings).model == "7"
    assert settings.read_settings(["model="], TurnSettings).model is None
    assert attributes.read_settings({"user.cfs.model": b"7"}).model == "7"
    assert attributes.write_settings(SettingsPatch(model="7")) == {"user.cfs.model": b"7"}


def test_a_summary_is_made_by_the_model_of_the_session(models: Models) -> None:
    """It would cost another model a reading of the whole conversation."""
    before = models.asked()
    models.client.post("/v1/sessions", json={"id": "long", "settings": {"model": "two", "overflow": "summarize"}})
    for _ in range(3):
        models.say("long", "word " * 1700)
    assert models.asked()["one"] == before["one"]
    assert any("Summarize" in body["messages"][-1]["content"] for body in models.stubs["two"].bodies)


def test_a_model_that_is_gone_fails_the_turn_and_the_session_goes_on(tmp_path: Path) -> None:
    """The operator has taken it out of the file; the session still names it."""
    data = ("--data-dir", str(tmp_path / "data"))
    with models_server(tmp_path, *data) as models:
        models.say("kept", "hello")
        models.choose("kept", "two").raise_for_status()
    with models_server(tmp_path, *data, names=("one",)) as models:
        shown = models.say("kept", "are you there?")
        assert shown.endswith("Assistant: [Error: there is no model 'two' here any more; there are one]\n")
        models.choose("kept", None).raise_for_status()
        assert models.say("kept", "and now?").endswith("Assistant: and now?\n")


def test_the_only_model_may_be_named_and_no_other() -> None:
    with serving("--engine", "scripted") as process, httpx.Client(base_url=process.url, trust_env=False) as client:
        client.post("/v1/sessions", json={"id": "chat"})
        name = client.get("/v1/models").json()["data"][0]["id"]
        assert client.patch("/v1/sessions/chat/settings", json={"model": name}).status_code == 200
        client.post("/v1/sessions/chat/messages", content=b"hello")
        assert client.get("/v1/sessions/chat", params={"wait": 30}, headers=TEXT).text.endswith("Assistant: hello\n")
        assert client.patch("/v1/sessions/chat/settings", json={"model": "other"}).status_code == 422


def test_an_upstream_that_is_away_does_not_touch_the_other_models(tmp_path: Path) -> None:
    away = table("away", upstream="http://127.0.0.1:9", upstream_model=MODEL, check=False, retries=0)
    with models_server(tmp_path, tables=(away,), names=("one",)) as models:
        assert "the upstream cannot be reached" in models.say("chat", "hello")
        models.choose("chat", "one").raise_for_status()
        assert models.say("chat", "hello again").endswith("Assistant: hello again\n")
        assert models.client.get("/readyz").status_code == 200


def test_no_key_reaches_an_upstream_that_was_not_given_one(tmp_path: Path) -> None:
    """Not even the key of `--upstream`."""
    keyless = OpenAIStub(key=None)
    with served_aside(keyless) as url:
        tables = (table("keyless", upstream=url),)
        with models_server(tmp_path, tables=tables, names=("one",), CFS_UPSTREAM_KEY=KEY) as models:
            models.say("chat", "hello", model="keyless")
            models.say("chat", "hello", model="one")
            assert "authorization" not in keyless.heads[-1]
            assert models.stubs["one"].heads[-1]["authorization"] == f"Bearer {KEY}"
