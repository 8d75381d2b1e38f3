"""The stored form of records: everything comes back as it was written, in this version and in all earlier ones."""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs.wire import (
    AgentJob,
    AgentWork,
    BudgetUse,
    CallDecision,
    Message,
    PlanStep,
    Settings,
    SettingsPatch,
    TokenAlternative,
    TokenLogprob,
    ToolCall,
    TurnSettings,
    Usage,
)
from cfs_server.domain import changes
from cfs_server.domain.authors import Author
from cfs_server.domain.changes import Record, SessionChange
from cfs_server.domain.events import LoggedEvent
from cfs_server.domain.history import HistoryHead, Window
from cfs_server.domain.questions import Question, QuestionState
from cfs_server.domain.state import Head
from cfs_server.domain.transcripts import SizedMessages
from cfs_server.domain.turns import Lease, TurnHead, TurnRequest, TurnState
from cfs_server.engine.contract.interface import CallDelta, Delta
from cfs_server.engine.contract.reply_options import ReplyOptions
from cfs_server.journal.journal import Batch, StoredDocument
from cfs_server.journal.records import (
    HISTORY,
    KINDS,
    VERSION,
    Row,
    UnknownRecord,
    decode,
    decode_head,
    decode_messages,
    encode,
    encode_head,
)
from cfs_server.journal.sqlite import SqliteBackend

GOLDEN = Path(__file__).parent / "golden"

# -- any record -------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(), max_size=20)
"""Also lone surrogates: an upstream may split a character of two surrogates between two tokens."""
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
PATCHED = {
    "max_tokens": st.none() | st.integers(1, 1_000_000),
    "temperature": st.none() | st.floats(0, 5),
    "stop": st.none() | st.tuples(st.text(min_size=1, max_size=9)),
    "system": st.none() | st.text(max_size=20),
    "overflow": st.sampled_from([None, "shift", "error", "summarize"]),
}
MODELS: Mapping[Any, st.SearchStrategy[Any]] = {
    Settings: st.builds(
        Settings,
        seed=st.none() | st.integers(0, 9),
        stop=PATCHED["stop"],
        system=PATCHED["system"],
        keep=st.just("90d"),
    ),
    SettingsPatch: st.fixed_dictionaries({}, optional=PATCHED).map(lambda values: SettingsPatch(**values)),
    TurnSettings: st.fixed_dictionaries({}, optional=PATCHED).map(lambda values: TurnSettings(**values)),
    ToolCall: st.builds(ToolCall, id=TEXT, name=TEXT, arguments=st.dictionaries(TEXT, JSON, max_size=3)),
    Usage: st.builds(Usage, prompt_tokens=st.integers(0), completion_tokens=st.integers(0)),
    AgentWork: st.builds(
        AgentWork,
        plan=st.lists(st.builds(PlanStep, text=st.text(min_size=1, max_size=20)), max_size=2).map(tuple),
        jobs=st.lists(st.builds(AgentJob, id=st.integers(1, 9), command=st.text(max_size=20)), max_size=2).map(tuple),
        budget=st.none() | st.builds(BudgetUse, limit=st.just("$0.50"), cost=st.floats(0, 9)),
        folder=st.none() | TEXT,
    ),
    TokenAlternative: st.builds(TokenAlternative, token=TEXT, bytes=st.just((1, 2)), logprob=NUMBER),
    str: TEXT,
    float: NUMBER,
    int: st.integers(),
    bool: st.booleans(),
    type(None): st.none(),
    dict[str, Any]: st.dictionaries(TEXT, JSON, max_size=3),
    TurnState: st.sampled_from(TurnState),
    QuestionState: st.sampled_from(QuestionState),
}


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type, as the fields of changes and heads have them."""
    if kind in MODELS:
        return MODELS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:  # pydantic takes no lone surrogates in a string whose length it checks
        return st.text(max_size=20) if arguments[0] is str else any_of(arguments[0])
    if origin in (Union, types.UnionType):
        return st.one_of([any_of(each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(any_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(any_of, arguments))
    if origin is frozenset:
        return st.frozensets(any_of(arguments[0]), max_size=3)
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind.model_fields)
    make: Callable[..., Any] = kind
    return st.builds(make, **{name: any_of(hints[name]) for name in names})


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Return any record. Its events contain parts of the change, as those of a session do."""
    change = draw(any_of(KINDS[draw(st.sampled_from(list(KINDS)))]))
    data: dict[str, Any] = draw(st.dictionaries(st.sampled_from(["index", "usage", "settings", "calls"]), JSON))
    data |= {name: getattr(change, name) for name in ("turn", "reply") if hasattr(change, name)}
    if isinstance(change, changes.MessageAdded):
        data["message"] = change.message.model_dump(exclude_defaults=True)
    if isinstance(change, changes.ReplyExtended):
        data["text"] = change.delta.text
    if isinstance(change, changes.QuestionAsked):
        data |= {"text": change.question.text, "turn": change.question.turn}
    drafts = draw(st.lists(st.just(("token", data)) | st.just(("state.changed", {"state": "idle"})), max_size=3))
    number, position = draw(st.integers(10, 1 << 40)), draw(st.integers(10, 1 << 40))
    key, at = draw(st.uuids()).hex, draw(st.floats(0, 1 << 33))
    last = len(drafts) - 1
    events = tuple(
        LoggedEvent(kind, "main", number - last + n, position - last + n, at, dict(data))  # type: ignore[arg-type]
        for n, (kind, data) in enumerate(drafts)
    )
    return Record(key, at, change, events, draw(st.none() | any_of(Author)), number, position)


def shown(record: Record) -> object:
    """Return a record with its events as their readers see them."""
    return record._replace(events=()), [json.loads(event.json) for event in record.events]


@given(record=records())
def test_any_record_comes_back(record: Record) -> None:
    """S11: its events have the same bytes."""
    row = encode(7, record)
    assert all(isinstance(value, str | int | float) for value in row)
    assert row.body.encode()
    assert row.events.encode() is not None
    assert shown(decode(row)) == shown(record)
    if row.kind in HISTORY:
        change = decode(row).change
        history = getattr(change, "history", None)
        found = decode_messages(row)
        assert tuple(message for message, _ in found) == (history.messages if history else (change.message,))  # type: ignore[attr-defined]
        times = history.times[: len(history.messages)] if history else ()
        assert [at for _, at in found] == [*times, *[record.at] * (len(found) - len(times))]


@given(head=any_of(Head))
def test_any_head_comes_back(head: Head) -> None:
    assert decode_head(encode_head(head)) == head


@given(record=records())
def test_texts_of_the_change_are_stored_once(record: Record) -> None:
    """Half of the bytes of a store would be copies: an event shows what its change contains."""
    row = encode(7, record)
    for event in json.loads(row.events or "[]"):
        assert "turn" not in event[2] or event[2]["turn"] == {"$": "turn"} or row.kind not in HISTORY


def test_a_number_that_json_does_not_have_stays_one() -> None:
    """Agents' calls may contain it. Most programs refuse it, but a store must not change what it keeps."""
    call = ToolCall(id="1", name="f", arguments={"a": float("inf"), "b": [float("-inf")]})
    message = Message(role="assistant", content="", tool_calls=(call,))
    record = Record("k", 1.5, changes.MessageAdded(message, "t"))
    assert decode(encode(1, record)) == record


def test_a_newer_record_is_refused_with_a_reason() -> None:
    row = encode(3, Record("k", 1.5, changes.Deleted()))
    with pytest.raises(UnknownRecord, match=r"record 3 is a 'session\.deleted' of version 9, which a newer CFS"):
        decode(row._replace(version=9))
    with pytest.raises(UnknownRecord, match=r"record 3 is a 'session\.dreamt'"):
        decode(row._replace(kind="session.dreamt"))
    with pytest.raises(UnknownRecord, match="a newer CFS"):
        decode_head(encode_head(HEAD).replace(f'"version":{VERSION}', '"version":9'))


@pytest.mark.parametrize("body", ["", "{", "[]", '{"turn": 3}', '{"colour": "red"}'])
def test_a_damaged_record_is_a_value_error(body: str) -> None:
    row = encode(3, Record("k", 1.5, changes.TurnStarted("t")))
    with pytest.raises(ValueError, match=r".+"):
        decode(row._replace(body=body))


# -- golden files -----------------------------------------------------------------------------------------------------

CALL = ToolCall(id="call_1", name="write_file", arguments={"path": "a.txt", "lines": [1, 2.5, None, "四"]})
MESSAGES = (
    Message(role="system", content="Be brief."),
    Message(role="user", content='hello\n"四"', name="alice"),
    Message(role="assistant", content="", tool_calls=(CALL,), thinking="hm"),
    Message(role="tool", content="done", tool_call_id="call_1"),
)
SETTINGS = Settings(system="Be brief.", temperature=0.0, stop=("User:", "\n"), seed=7, driver="agent", keep="90d")
REQUEST = TurnRequest(
    MESSAGES[1],
    settings=SettingsPatch(max_tokens=5, seed=None),
    options=ReplyOptions(
        json_schema={"type": "object"},
        logprobs=2,
        tools=({"type": "function", "function": {"name": "f"}},),
        tool_choice="required",
        parallel_calls=False,
    ),
    view=SizedMessages.of(MESSAGES[:1]),
    may_replace=True,
    id="0f" * 16,
    accepted_at=1_700_000_000.25,
)
TOP = TokenAlternative.model_validate({"token": "he", "bytes": (104, 101), "logprob": -0.5})
LOGPROB = TokenLogprob.model_validate({"token": " hello", "bytes": (32,), "logprob": -0.25, "top": (TOP,)})
DELTA = Delta(
    " hello",
    2,
    thinking="hm",
    calls=(CallDelta(0, "call_1", "f", '{"a"'), CallDelta(0, arguments=": 1}")),
    logprobs=(LOGPROB,),
)
LEASE = Lease("s3cret", 1_700_000_030.5)
TURN = REQUEST.id
HEAD = Head(
    seq=9,
    key="1a" * 16,
    id="main/coder",
    life="5eed1234",
    owner="alice",
    settings=SETTINGS,
    created_at=1_700_000_000.0,
    updated_at=1_700_000_001.5,
    tokens=42,
    number=12,
    history=HistoryHead(4, 99, 3_000, 5, 1_700_000_001.0, (2, 1), Window(1, "They met.", frozenset({2})), 3, 1, True),
    running=TurnHead(REQUEST, 3, TurnState.LEASED, (DELTA,), LEASE),
    queue=(TurnHead(TurnRequest(MESSAGES[1], id="1f" * 16, accepted_at=1_700_000_002.0)),),
)
QUESTION = Question(
    "4d" * 16,
    TURN,
    "make test",
    ("allow", "deny"),
    "command",
    "/srv/demo",
    background=True,
    asker="agent",
    asked_at=1.5,
)
WORK = AgentWork(
    plan=(PlanStep(text="write it", status="completed"), PlanStep(text="test it")),
    jobs=(AgentJob(id=1, command="make", state="exit status 0"), AgentJob(id=2, command="sleep 9")),
    budget=BudgetUse(limit="$0.50", tokens=42, cost=0.25),
)
DECISION = CallDecision(
    call="call_1",
    tool="execute_command",
    subject="git push",
    verdict="denied",
    asked=True,
    by="bob",
    rule="execute_command(git push:*)",
    source="rules.toml:3",
    digest=f"sha256:{'5f' * 32}",
)
ASKING = replace(HEAD, questions=(QUESTION.closed("deny", "bob", terminal=True), replace(QUESTION, id="5e" * 16)))
CHANGES: Mapping[str, SessionChange] = {
    "session.created": changes.Created(
        "main/coder",
        "1a" * 16,
        "5eed1234",
        "alice",
        SETTINGS,
        SizedMessages.of(MESSAGES),
        Window(1, "They met."),
        "main",
    ),
    "session.renamed": changes.Renamed("main/tester"),
    "session.deleted": changes.Deleted(),
    "settings.changed": changes.SettingsChanged(SETTINGS),
    "state.announced": changes.StateAnnounced(TURN),
    "tokens.spent": changes.TokensSpent(Usage(prompt_tokens=3, completion_tokens=4)),
    "message.added": changes.MessageAdded(MESSAGES[2], TURN, opens=True),
    "history.replaced": changes.HistoryReplaced(SizedMessages.of(MESSAGES[:2]), Window(1)),
    "context.shifted": changes.ContextShifted(TURN, Window(2, "They met.", frozenset({1})), 40),
    "message.excluded": changes.MessageExcluded(3),
    "turn.queued": changes.TurnQueued(REQUEST, base=3),
    "turn.started": changes.TurnStarted(TURN, LEASE),
    "turn.interrupted": changes.TurnInterrupted(TURN),
    "reply.extended": changes.ReplyExtended(TURN, DELTA),
    "lease.renewed": changes.LeaseRenewed(TURN, LEASE),
    "lease.expired": changes.LeaseExpired(TURN),
    "cancel.requested": changes.CancelRequested(TURN),
    "turn.ended": changes.TurnEnded(
        TURN, "error", "half", Usage(prompt_tokens=3, completion_tokens=4), "it broke", announced=False
    ),
    "call.decided": changes.CallDecided(TURN, "agent", DECISION),
    "question.asked": changes.QuestionAsked(QUESTION),
    "question.closed": changes.QuestionClosed(QUESTION.id, "deny", "bob", terminal=True),
    "work.reported": changes.WorkReported(TURN, WORK),
}
HEADS = {"head": HEAD, "head.asking": ASKING, "head.working": replace(HEAD, work=WORK)}
YOUNGER = {"call.decided", "question.asked", "question.closed", "work.reported"}
"""Kinds of change that the first schema's file lacks: it was published before them."""
EVENTS: Mapping[str, dict[str, Any]] = {
    "message.added": {
        "turn": TURN,
        "index": 2,
        "message": MESSAGES[2].model_dump(exclude_defaults=True, mode="json"),
        "size": 99,
    },
    "reply.extended": {"turn": TURN, "text": " hello", "tokens": 2, "thinking": "hm"},
    "question.asked": {"turn": TURN, "id": QUESTION.id, "kind": "command", "text": "make test"},
    "turn.ended": {"turn": TURN, "reply": "half", "finish_reason": "error", "usage": {"prompt_tokens": 3}},
}


def golden_record(kind: str) -> Record:
    """Return the record of a golden file: all fields of the change differ from their defaults."""
    at = 1_700_000_003.125
    events = (LoggedEvent("token", "main/coder", 12, 77, at, EVENTS[kind]),) if kind in EVENTS else ()
    return Record("1a" * 16, at, CHANGES[kind], events, Author("alice", "coder", "call_9"), 12, 77)


def test_every_kind_has_a_golden_file() -> None:
    """Add the new kind to `CHANGES`, and run this module with `python -m` to write its file."""
    names = {path.stem for path in (GOLDEN / f"v{VERSION}").glob("*.json")}
    assert names == {*KINDS, *HEADS}
    assert CHANGES.keys() == KINDS.keys()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("v*/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_records_of_every_version_can_be_read(path: Path) -> None:
    """A file that has been published never changes."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if path.stem in HEADS:
        assert decode_head(json.dumps(stored)) == HEADS[path.stem]
        return
    row = Row(**stored | {"body": json.dumps(stored["body"]), "events": json.dumps(stored["events"] or "")})
    row = row._replace(author=json.dumps(stored["author"]), events="" if not stored["events"] else row.events)
    assert shown(decode(row)) == shown(golden_record(path.stem))


@pytest.mark.parametrize("kind", [*KINDS, *HEADS])
def test_the_current_version_is_written_as_in_its_golden_files(kind: str) -> None:
    """A change of the stored form needs a new version, and a reader for the old one."""
    path = GOLDEN / f"v{VERSION}" / f"{kind}.json"
    assert json.loads(path.read_text(encoding="utf-8")) == golden_form(kind)


def golden_form(kind: str) -> dict[str, Any]:
    """Return the content of a golden file of the current version."""
    if kind in HEADS:
        found: dict[str, Any] = json.loads(encode_head(HEADS[kind]))
        return found
    row = encode(9, golden_record(kind))._asdict()
    return {
        name: json.loads(row[name]) if name in ("author", "body", "events") and row[name] else row[name] for name in row
    }


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.db")), ids=lambda path: path.stem)
def test_files_of_every_schema_open(tmp_path: Path, path: Path) -> None:
    """Every store that a published CFS has written opens, with all that is in it."""
    copy = tmp_path / "sessions.db"
    copy.write_bytes(path.read_bytes())
    backend = SqliteBackend(copy)
    opened = backend.open()
    assert opened.heads == [HEAD]
    assert {row.kind for row in opened.rows} == KINDS.keys() - {"session.created", "session.deleted"} - YOUNGER
    assert [shown(decode(row)) for row in opened.rows] == [
        shown(golden_record(row.kind)._replace(number=row.number, position=row.position)) for row in opened.rows
    ]
    assert opened.kept == {"locks": {"/main": '{"token":"四"}'}}
    assert [len(decode_messages(row)) for row in backend.rows(HEAD.key, 0, HISTORY)] == [4, 1, 2]
    backend.close()


def write_golden_files() -> None:
    """Write the files of the current version that do not exist yet."""
    for kind in (*KINDS, *HEADS):
        path = GOLDEN / f"v{VERSION}" / f"{kind}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(f"{json.dumps(golden_form(kind), indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    path = GOLDEN / "schema1.db"
    if not path.exists():
        backend = SqliteBackend(path)
        backend.open()
        kinds = ["session.created", *(kind for kind in KINDS if kind not in ("session.created", "session.deleted"))]
        rows = [encode(9 + n, golden_record(kind)) for n, kind in enumerate(kinds)]
        backend.commit(
            Batch(rows, [StoredDocument("locks", "/main", '{"token":"四"}')], [(HEAD.key, HEAD.seq, encode_head(HEAD))])
        )
        gone = [encode(50 + n, golden_record(kind)._replace(key="2b" * 16)) for n, kind in enumerate(KINDS)]
        backend.commit(Batch([row for row in gone if row.kind in ("session.created", "session.deleted")]))
        backend.close()


if __name__ == "__main__":
    write_golden_files()
