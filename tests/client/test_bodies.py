"""The rules that tell a message, a whole file with a line added, an import and an edit apart (S3, S14)."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.contract.bodies import Append, ImportedHistory, Nothing, Replace, Verdict, has_turns, judge
from cfs.contract.transcript import PREFIXES, TranscriptMessage, render, render_one
from cfs.errors import CfsError, Conflict, TooLarge, UnsupportedMedia

T = b"User: hi\nAssistant: hello\n"
BOM = codecs.BOM_UTF8
DOS, OLD = T.replace(b"\n", b"\r\n"), T.replace(b"\n", b"\r")
GROWN = T + b"User: more\nAssistant: yes\n"

TABLE: list[tuple[str, bytes, bytes, bytes, Verdict | type[CfsError]]] = [
    # what, body, transcript, base, verdict
    ("1: nothing", b"", T, b"", Nothing()),
    ("1: blanks", b" \n\t\n", T, b"", Nothing()),
    ("1: nothing, into nothing", b"", b"", b"", Nothing()),
    ("2: the same", T, T, b"", Nothing()),
    ("2: the same, known", T, T, T, Nothing()),
    ("2: the same without the last line end", T[:-1], T, T, Nothing()),
    ("3: not UTF-8", b"\xff\xfe", T, b"", UnsupportedMedia),
    ("3: half a character", "你".encode()[:2], b"", b"", UnsupportedMedia),
    ("3: not UTF-8 behind the transcript", T + b"\xff", T, T, UnsupportedMedia),
    ("4: the tail behind what the writer had", T + b"more\n", T, T, Append("more\n")),
    ("4: also when the session has gone on", T + b"new\n", GROWN, T, Append("new\n")),
    ("4: nothing added to an old view", T, GROWN, T, Nothing()),
    ("4: a blank line added", T + b"\n", T, T, Nothing()),
    ("5: the tail, base unknown", T + b"more\n", T, b"", Append("more\n")),
    ("5: the tail with a prefix", T + b"User: more\n", T, b"", Append("User: more\n")),
    ("5: the tail, base another one", GROWN + b"x\n", GROWN, b"User: other\n", Append("x\n")),
    ("6: a conversation into an empty session", T, b"", b"", ImportedHistory(T.decode())),
    ("6: with a system message alone", b"System: be kind\n", b"", b"", ImportedHistory("System: be kind\n")),
    ("6: a user's prefix alone is a message", b"User: hi\n", b"", b"", Append("User: hi\n")),
    ("6: no conversation", b"hi\n", b"", b"", Append("hi\n")),
    ("6: a quoted conversation", b"look:\nAssistant: x\n", b"", b"", Append("look:\nAssistant: x\n")),
    ("7: plain text over a history", b"x\n", T, T, Append("x\n")),
    ("7: Chinese", "我叫Alice\n".encode(), T, T, Append("我叫Alice\n")),
    ("7: another user's turn", b"User: bye\n", T, T, Append("User: bye\n")),
    ("7: an escaped prefix is text", b"x\n\\Assistant: y\n", T, T, Append("x\n\\Assistant: y\n")),
    ("a byte order mark: the same", BOM + T, T, b"", Nothing()),
    ("a byte order mark: the tail", BOM + T + b"more\n", T, T, Append("more\n")),
    ("a byte order mark: a conversation", BOM + T, b"", b"", ImportedHistory(T.decode())),
    ("a byte order mark: a message", BOM + b"User: hi\n", b"", b"", Append("User: hi\n")),
    ("a byte order mark: nothing", BOM, T, b"", Nothing()),
    ("CRLF: the same", DOS, T, T, Nothing()),
    ("CRLF: the same without the last line end", DOS[:-2], T, T, Nothing()),
    ("CRLF: the tail", DOS + b"User: more\r\n", T, T, Append("User: more\n")),
    ("CRLF: the tail, base unknown", BOM + DOS + b"more\r\n", T, b"", Append("more\n")),
    ("CRLF: a conversation", DOS, b"", b"", ImportedHistory(T.decode())),
    ("CRLF: the past edited", DOS.replace(b"hello", b"HELLO"), T, T, Conflict),
    ("CRLF: a message keeps its bytes", b"a\r\nb\r\n", T, T, Append("a\r\nb\r\n")),
    ("CRLF: also with a prefix", b"User: a\r\nb\r\n", b"", b"", Append("User: a\r\nb\r\n")),
    (
        "CRLF in a message of the transcript",
        b"User: a\r\nAssistant: b\n",
        b"",
        b"",
        ImportedHistory("User: a\r\nAssistant: b\n"),
    ),
    ("CR: a conversation", OLD, b"", b"", ImportedHistory(T.decode())),
    ("CR: the tail", OLD + b"User: more\r", T, b"", Append("User: more\n")),
    ("CR: a message keeps its bytes", b"10%\r20%\r", T, T, Append("10%\r20%\r")),
    ("8: the past edited", b"User: hi\nAssistant: HELLO\n", T, T, Conflict),
    ("8: the first line edited", b"xUser: hi\nAssistant: hello\n", T, T, Conflict),
    ("8: cut", b"User: hi\n", T, T, Conflict),
    ("8: a turn removed", b"Assistant: hello\n", T, T, Conflict),
    ("8: out of date, base unknown", T + b"new\n", GROWN, b"", Conflict),
    ("8: another conversation", b"User: a\nAssistant: b\n", T, T, Conflict),
    ("8: the session was emptied meanwhile", b"User: hi\nAssistant: x\n", b"", T, Conflict),
]


@pytest.mark.parametrize(("body", "transcript", "base", "verdict"), [row[1:] for row in TABLE], ids=lambda _: "")
def test_rules(body: bytes, transcript: bytes, base: bytes, verdict: Verdict | type[CfsError]) -> None:
    """Each rule, with the cases beside its edges."""
    if isinstance(verdict, type):
        with pytest.raises(verdict):
            judge(body, transcript, base=base)
    else:
        assert judge(body, transcript, base=base) == verdict


def test_named_version_may_be_replaced() -> None:
    """What is refused without the present version's name replaces the history with it (rule 8); nothing else does."""
    edited = b"User: hi\nAssistant: HELLO\n"
    assert judge(edited, T, base=T, may_replace=True) == Replace(edited.decode())
    assert judge(T + b"x\n", T, base=T, may_replace=True) == Append("x\n")
    assert judge(b"x\n", T, may_replace=True) == Append("x\n")


def test_limit_is_that_of_the_message() -> None:
    """A long transcript may be sent again; only what is new is measured, in bytes."""
    assert judge(T + "你好".encode(), T, limit=6) == Append("你好")
    with pytest.raises(TooLarge):
        judge(T + "你好!".encode(), T, limit=6)
    with pytest.raises(TooLarge):
        judge(b"1234567", b"", limit=6)


turns = st.builds(
    TranscriptMessage, st.sampled_from(sorted(PREFIXES)), st.text().map(lambda text: text.replace("\r", ""))
)
histories = st.lists(turns, min_size=1, max_size=6)
lines = st.text().filter(lambda text: text.strip())


@given(histories, lines)
def test_text_added_to_the_whole_file_is_the_message(history: list[TranscriptMessage], added: str) -> None:
    """Whatever the history and whatever is added, the tail arrives, as it was written."""
    text = render(history).encode()
    assert judge(text + added.encode(), text) == Append(added)
    assert judge(text + added.encode(), text + b"User: later\n", base=text) in (Append(added), Nothing())


@given(histories)
def test_copy_into_an_empty_session_is_an_import(history: list[TranscriptMessage]) -> None:
    """`cp chat1 chat2` makes the same history, unless only users speak in it."""
    text = render(history)
    verdict = judge(text.encode(), b"")
    spoken = any(turn.role != "user" for turn in history)
    assert verdict == ImportedHistory(text) if spoken else isinstance(verdict, Append | Nothing)


@given(histories, lines)
def test_text_without_turns_is_a_message_for_any_session(history: list[TranscriptMessage], text: str) -> None:
    """`echo x > f` needs no look at what the session holds."""
    if has_turns(text.encode()):
        return
    assert judge(text.encode(), render(history).encode()) in (Append(text), Nothing())


@given(histories, st.data())
def test_no_edit_of_the_past_becomes_a_message(history: list[TranscriptMessage], data: st.DataObject) -> None:
    """Any turn but the last changed, removed or moved is refused: nothing is appended and nothing is lost."""
    spoken = [TranscriptMessage("user", "a"), TranscriptMessage("assistant", "b"), *history]
    place = data.draw(st.integers(0, len(spoken) - 2))
    edited = [*spoken[:place], *data.draw(st.lists(turns, max_size=2)), *spoken[place + 1 :]]
    before, after = render(spoken).encode(), render(edited).encode()
    if after.startswith(before) or before == after + b"\n" or not any(turn in edited for turn in spoken):
        return
    with pytest.raises(Conflict):
        judge(after, before, base=before)


@given(st.binary(), st.binary(), st.binary())
def test_every_body_has_a_verdict(body: bytes, transcript: bytes, base: bytes) -> None:
    """Bytes of any kind are judged or refused by an error of ours, and a message is never blank."""
    try:
        verdict = judge(body, transcript.decode(errors="replace").encode(), base=base.decode(errors="replace").encode())
    except (UnsupportedMedia, Conflict):
        return
    assert not isinstance(verdict, Append) or verdict.text.strip()


@given(turns)
def test_rendered_turns_are_seen(turn: TranscriptMessage) -> None:
    """Every message that a transcript shows is seen as a turn."""
    assert has_turns(render_one(turn).encode())
