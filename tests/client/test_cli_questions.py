"""`cfs questions`, `cfs answer` and the SDK: questions of agents from another terminal (A5, C10)."""

import json

import pytest

from cfs import Conflict, NotFound, Session, api
from cfs.transports.http import Client
from cfs.wire import Claim, NewMessage, SettingsPatch
from tests.client.harness import HttpHarness
from tests.client.terminal import cfs, ended


def held(client: Client, session: str) -> Claim:
    """Hold the turn of a session as its agent."""
    client.call(api.create(session, SettingsPatch(driver="agent")))
    client.call(api.post(session, NewMessage(content="build it")))
    claim = client.call(api.claim(session, lease=3_600))
    assert claim is not None
    return claim


def test_open_questions_are_listed_with_all_of_their_text(http_harness: HttpHarness) -> None:
    """Of all sessions, or of one and those below it; what cannot be seen is shown by its number."""
    url = http_harness.url
    assert ended(cfs(url, "questions")) == (0, "", "No question is open.\n")
    with Client(url) as client:
        names = ("main", "main/coder", "other")
        asked = [
            client.call(api.ask(name, held(client, name).claim, f"touch \u202e{name}\nls", directory="/srv"))
            for name in names
        ]
    shown = [
        f"{name} {each.id[:8]}: run this command in /srv?\n  | touch <U+202E>{name}\n  | ls\n  allow, always, deny\n"
        for name, each in zip(names, asked, strict=True)
    ]
    assert ended(cfs(url, "questions")) == (0, "".join(shown), "")
    assert ended(cfs(url, "questions", "main")) == (0, "".join(shown[:2]), "")
    listed = json.loads(cfs(url, "questions", "main/coder", "--json").stdout)
    assert [(each["session"], each["question"]["id"]) for each in listed] == [("main/coder", asked[1].id)]


def test_a_question_is_answered_and_the_second_answer_is_refused(http_harness: HttpHarness) -> None:
    url = http_harness.url
    assert ended(cfs(url, "answer", "none", "allow"))[0] != 0
    with Client(url) as client:
        claim = held(client, "a").claim
        first, second = (client.call(api.ask("a", claim, text)) for text in ("make one", "make two"))
        code, _, errors = ended(cfs(url, "answer", "a", "allow"))
        assert (code != 0, first.id[:8] in errors) == (True, True)
        assert "allow, always, deny" in ended(cfs(url, "answer", "a", first.id[:8], "perhaps"))[2]
        assert ended(cfs(url, "answer", "a", first.id[:8], "allow")) == (0, "", "")
        assert client.call(api.question("a", first.id)).answer == "allow"
        assert ended(cfs(url, "answer", "a", "deny")) == (0, "", "")
        assert client.call(api.question("a", second.id)).answer == "deny"
        assert "no question is open" in ended(cfs(url, "answer", "a", "deny"))[2]


def test_a_session_object_answers(http_harness: HttpHarness) -> None:
    with Client(http_harness.url) as client, Session("a", url=http_harness.url) as session:
        claim = held(client, "b").claim
        with pytest.raises(NotFound):
            session.answer("allow")
        with Session("b", url=http_harness.url) as asked:
            first, second = (client.call(api.ask("b", claim, text)) for text in ("make one", "make two"))
            assert [each.id for each in asked.questions()] == [first.id, second.id]
            with pytest.raises(Conflict):
                asked.answer("allow")
            asked.answer("allow", first.id)
            with pytest.raises(Conflict, match="answered already"):
                asked.answer("deny", first.id)
            asked.answer("deny")
            assert asked.questions() == ()
