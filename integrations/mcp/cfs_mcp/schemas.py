"""Arguments and results of the tools, as pydantic models: their JSON schemas are what clients see. Pure: no I/O."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from cfs.wire import (
    FinishReason,
    ForeignChanges,
    MergeConflict,
    MergedFile,
    Origin,
    RewoundFile,
    RewoundSession,
    Role,
    SearchResult,
    SessionVersion,
    State,
    TurnSettings,
    Usage,
)

MAX_WAIT_SECONDS = 600.0
MAX_READ_BYTES = 1_000_000

Session = Annotated[
    str,
    StringConstraints(min_length=1),
    Field(description="Name of the session, such as `main`, or `main/coder` for a sub-session."),
]
Path = Annotated[
    str,
    StringConstraints(pattern=r"^/workspaces/[^/]+/"),
    Field(description="Path of a file in a workspace: `/workspaces/NAME/...`, where NAME is a session's name."),
]
Prefix = Annotated[str, Field(description="Only those whose name begins with this.")]


class _Schema(GenerateJsonSchema):
    """Schemas without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the signature is the library's
        """Return False for every field."""
        return False


class Arguments(BaseModel):
    """The arguments of a tool; unknown ones are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def schema_of(cls) -> JsonSchemaValue:
        """Return the JSON schema."""
        return _without_title(cls.model_json_schema(schema_generator=_Schema))


class Result(BaseModel):
    """The result of a tool."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def schema_of(cls) -> JsonSchemaValue:
        """Return the JSON schema."""
        return _without_title(cls.model_json_schema(schema_generator=_Schema, mode="serialization"))


def _without_title(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


class ListSessions(Arguments):
    """Arguments of `list_sessions`."""

    prefix: Prefix = ""
    active: bool = Field(False, description="Only sessions in which a turn runs or waits, at any depth.")
    after: str = Field("", description="The `next` of the page before.")
    limit: int = Field(50, ge=1, le=1000)


class SessionRow(Result):
    """A session in a list. Times are seconds since the epoch (UTC)."""

    session: str
    title: str | None = Field(description="What the session is about; null without a right to read it.")
    state: State
    queued: int = Field(description="Messages that wait behind the one that is being answered.")
    messages: int
    updated_at: float
    sub_sessions: int = Field(description="Number of direct children.")
    open_questions: int = Field(description="Questions of its agent that wait for a person.")


class SessionRows(Result):
    """Result of `list_sessions`."""

    sessions: list[SessionRow]
    next: str | None = Field(description="The `after` of the next page; null on the last one.")


class ReadSession(Arguments):
    """Arguments of `read_session`."""

    session: Session
    first: int = Field(0, ge=0, description="Index of the first message to return.")
    last: int | None = Field(None, ge=1, description="Return at most this many of the newest messages.")
    wait_seconds: float = Field(
        0, ge=0, le=MAX_WAIT_SECONDS, description="Wait so long until nothing is generating, in it and below it."
    )


class ReadMessage(Result):
    """A message of a session."""

    index: int
    role: Role
    content: str
    tool_calls: list[dict[str, Any]] = []
    name: str | None = None


class ReadSessionResult(Result):
    """Result of `read_session`."""

    session: str
    state: State
    total: int = Field(description="Number of messages of the whole history.")
    messages: list[ReadMessage]
    queue: list[str] = Field(description="Messages that have not been answered yet.")
    partial: str | None = Field(description="What the reply that is being generated says so far.")
    open_questions: int


class SendMessage(Arguments):
    """Arguments of `send_message`."""

    session: Session
    message: str = Field(min_length=1)
    wait_seconds: float = Field(
        50,
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="How long to wait for the reply. With 0 the call returns at once, and the turn runs by itself.",
    )
    settings: TurnSettings = Field(TurnSettings(), description="Settings of this turn only.")
    idempotency_key: str | None = Field(
        None, description="Calls with the same key send the message once.", min_length=1, max_length=255
    )


class OpenQuestion(Result):
    """A question of an agent that waits for a person."""

    session: str
    id: str
    text: str = Field(description="What the agent asks, exactly: show all of it to a person.")
    choices: list[str]
    how_to_answer: str


class Sent(Result):
    """Result of `send_message`. If `finished` is false the turn goes on: call `wait`, then `read_session`."""

    session: str
    turn: str | None
    finished: bool
    reply: str = Field(description="The reply, or what there is of it so far.")
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    questions: list[OpenQuestion] = Field([], description="What its agent asks, if the turn waits for a person.")


class Wait(Arguments):
    """Arguments of `wait`."""

    session: Session
    timeout_seconds: float = Field(50, gt=0, le=MAX_WAIT_SECONDS)


class Waited(Result):
    """Result of `wait`."""

    session: str
    settled: bool = Field(description="Whether nothing is generating or waiting, in it and below it.")
    state: State
    queued: int
    messages: int
    open_questions: int
    questions: list[OpenQuestion] = Field([], description="What agents ask in it and below it, if it is not settled.")


class ForkSession(Arguments):
    """Arguments of `fork`."""

    session: Session
    name: str | None = Field(None, description="Name of the copy; else that of the original with `-2`, `-3`, ...")
    messages: int | None = Field(None, ge=0, description="Copy only the first ones of the history.")


class Forked(Result):
    """Result of `fork`."""

    session: str = Field(description="Name of the copy.")
    messages: int
    origin: Origin | None


class MergeSession(Arguments):
    """Arguments of `merge`."""

    source: str = Field(description="Name of the session whose files are merged, such as that of a copy.")
    target: str = Field(description="Name of the session whose files get the changes.")
    dry_run: bool = Field(False, description="Change nothing, and return what would change.")


class Merged(Result):
    """Result of `merge`: what changes, what both have changed in different ways, and what stays as it is."""

    dry_run: bool
    number: int | None = Field(description="Number of the change in the target; null if nothing changes.")
    files: list[MergedFile]
    conflicts: list[MergeConflict]
    left: list[str]


class ListVersions(Arguments):
    """Arguments of `list_versions`."""

    session: Session
    before: int | None = Field(None, ge=0, description="Only versions before this one.")
    limit: int = Field(50, ge=1, le=1000)


class Versions(Result):
    """Result of `list_versions`: oldest first, and the `before` of the page with older ones."""

    versions: list[SessionVersion]
    before: int | None


class RewindSession(Arguments):
    """Arguments of `rewind`."""

    session: Session
    to: int | str = Field(description="The version's number, or a time such as 2027-01-31T12:00:00Z.")
    messages: bool = Field(True, description="Whether the messages go back.")
    files: bool = Field(True, description="Whether the files go back that the session's agent has changed since.")
    others: ForeignChanges = Field(
        "refuse", description="For files that others have changed since: refuse, leave `theirs`, or `ours` go back too."
    )
    sub_sessions: bool = Field(False, description="Whether sub-sessions go back to the same time.")
    dry_run: bool = Field(False, description="Change nothing, and return what would change.")


class Redo(Arguments):
    """Arguments of `redo`."""

    session: Session
    others: ForeignChanges = Field("refuse", description="As for `rewind`.")
    dry_run: bool = Field(False, description="Change nothing, and return what would change.")


class WentBack(Result):
    """Result of `rewind` and `redo`: what changes, and what stays all the same."""

    dry_run: bool
    sessions: list[RewoundSession]
    files: list[RewoundFile]
    left: list[str] = Field(description="Files that stay, because others have changed them.")
    lasting: list[str] = Field(description="What is not undone.")


class CancelTurns(Arguments):
    """Arguments of `cancel`."""

    session: Session
    queued: bool = Field(False, description="Also the turns that wait.")
    cascade: bool = Field(False, description="Also the turns of sub-sessions.")


class CancelledTurns(Result):
    """Result of `cancel`: how many turns were cancelled."""

    running: int
    queued: int


class Search(Arguments):
    """Arguments of `search`."""

    words: str = Field(min_length=1, description='Words that must all occur, "phrases" and beginnings (`word*`).')
    prefix: Prefix = ""
    limit: int = Field(20, ge=1, le=100)


class FoundMessages(Result):
    """Result of `search`: the best matches first."""

    results: list[SearchResult]
    truncated: bool = Field(description="Whether there may be more.")


class WatchTree(Arguments):
    """Arguments of `watch_tree`."""

    session: Session
    seen: str | None = Field(
        None, description="The `version` of the call before: the call returns when the tree differs from it."
    )
    wait_seconds: float = Field(50, ge=0, le=MAX_WAIT_SECONDS, description="How long to wait for a change.")


class WatchedTree(Result):
    """Result of `watch_tree`: the session itself, then what is below it, in the order of names."""

    version: str = Field(description="Identifies this state of the tree.")
    changed: bool = Field(description="Whether it differs from what was seen.")
    sessions: list[SessionRow]


class ListFiles(Arguments):
    """Arguments of `list_files`."""

    prefix: str = Field("/workspaces/", description="A file, or a directory that ends with `/`.")
    after: str = Field("", description="The `next` of the page before.")
    limit: int = Field(100, ge=1, le=1000)


class FileRow(Result):
    """A file in a list."""

    path: str
    size: int = Field(description="Bytes.")
    updated_at: float


class FileRows(Result):
    """Result of `list_files`."""

    files: list[FileRow]
    next: str | None


class ReadFile(Arguments):
    """Arguments of `read_file`."""

    path: Path
    offset: int = Field(0, ge=0, description="First byte to read.")
    size: int = Field(100_000, ge=1, le=MAX_READ_BYTES, description="Most bytes to read.")


class FileText(Result):
    """Result of `read_file`: `content` is text in UTF-8, or base64 if the file is none."""

    path: str
    content: str
    encoding: Literal["utf-8", "base64"]
    size: int = Field(description="Bytes of the whole file.")
    next: int | None = Field(description="The `offset` of the rest; null at the end.")
    version: str | None = Field(description="Give it to `write_file`, which then changes this version only.")


class WriteFile(Arguments):
    """Arguments of `write_file`."""

    path: Path
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    version: str | None = Field(
        None, description="Write only while the file has this version, as `read_file` returned it."
    )
    new: bool = Field(False, description="Write only if there is no file at the path.")


class FileWritten(Result):
    """Result of `write_file`."""

    path: str
    size: int
    version: str | None
    created: bool
