"""Pydantic models of the REST interface, shared by the server and its clients.

Times are seconds since the epoch (UTC), sizes are bytes of the transcript in UTF-8, durations are seconds.
"""

from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    WithJsonSchema,
)

from cfs.transcript import PREFIXES

Role = Literal["system", "user", "assistant", "tool"]
State = Literal["idle", "generating", "waiting_for_agent"]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "error"]
EventType = Literal[
    "session.created",
    "message.added",
    "turn.started",
    "turn.interrupted",
    "token",
    "turn.finished",
    "turn.failed",
    "question.asked",
    "question.answered",
    "history.replaced",
    "context.shifted",
    "settings.changed",
    "state.changed",
    "session.deleted",
    "stale",
    "goodbye",
]

Overflow = Literal["shift", "error", "summarize"]
"""What becomes of a conversation that is longer than the model's context (S8)."""

_SPAN_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}

Keep = Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]{0,5}[mhdwy]|forever)$")]
"""How long to keep what does not change: a number of minutes, hours, days, weeks or years, such as `90d`."""


def seconds_of(span: str) -> float:
    """Return a time that is written as a number and a unit, such as `12h`, in seconds; `forever` is infinite."""
    return inf if span == "forever" else float(int(span[:-1]) * _SPAN_SECONDS[span[-1]])


ROUTE_WORDS = frozenset(
    {
        "messages",
        "settings",
        "transcript",
        "cancel",
        "fork",
        "rename",
        "wait",
        "sub_sessions",
        "events",
        "claim",
        "turns",
        "questions",
    }
)
"""The words after the id in the paths of session routes; no component of a sub-session may be one of them (H1)."""

MAX_SESSION_ID_BYTES = 255
"""Longest component of a session id, as for a file name (S1)."""

ID_PATTERN = r"^[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,62}(/[A-Za-z0-9_-]{1,64}){0,15}$"
"""What every session id may look like that has 63 characters at most; the server judges longer ones by their bytes."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Integral = BeforeValidator(_whole)
"""Lets 5.0 pass as an integer, as JSON has only one kind of number."""

TRANSCRIPT_PATTERN = f"^($|{'|'.join(PREFIXES.values())})"
"""How a transcript begins (S6)."""

_NewId = Field(json_schema_extra={"pattern": ID_PATTERN})


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolCall(_Wire):
    """A call that an assistant's message makes: the name of the tool and its arguments."""

    id: str
    name: str
    arguments: dict[str, Any]


class Message(_Wire):
    """One message of a history; `content` never carries a role prefix."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    thinking: str | None = None

    @property
    def offloaded(self) -> bool:
        """Whether an agent's context has moved the content to disk; `content` is its placeholder."""
        return self.offload_path is not None

    @property
    def offload_path(self) -> str | None:
        """Where the off-loaded content is."""
        return None

    def offloaded_to(self, path: str | None) -> "Message":
        """Return a copy that says where its content is; None takes that back."""
        values = {name: getattr(self, name) for name in Message.model_fields}
        if path is None:
            return Message.model_construct(self.model_fields_set, **values)
        copy = _OffloadedMessage.model_construct(self.model_fields_set, **values)
        copy._offload_path = path  # noqa: SLF001 - an attribute of a class of this module
        return copy


class _OffloadedMessage(Message):
    """A message whose content is on disk. A class of its own: a private attribute takes 100 bytes of each message."""

    _offload_path: str | None = PrivateAttr(default=None)
    """Never sent or stored: only the context of an agent knows it."""

    @property
    def offload_path(self) -> str | None:
        """Where the off-loaded content is."""
        return self._offload_path


Title = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A title: one line."""

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x20\x7f]+$")]
"""The name of a model: without spaces."""

StopString = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class TurnSettings(_Wire):
    """Settings for one turn only: a key that is absent is the session's, a key that is null is the default."""  # S9

    max_tokens: Annotated[int, Field(ge=1, le=1_000_000), _Integral] | None = None
    temperature: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000), _Integral] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32), _Integral] | None = None
    stop: Annotated[tuple[StopString, ...], Field(max_length=16)] | None = None
    system: Annotated[str, StringConstraints(max_length=262_144)] | None = None
    prompt_style: Literal["auto", "chat", "transcript"] | None = None
    reproducible: bool | None = None
    overflow: Overflow | None = None
    model: ModelName | None = None


class SettingsPatch(TurnSettings):
    """A change of settings: a key that is absent stays, a key that is null goes back to its default."""  # S9

    driver: Literal["model", "agent"] | None = None
    paused: bool | None = None
    keep: Keep | None = None
    title: Title | None = None


def _is_text(annotation: Any) -> bool:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_text(parts[0])
    if origin in (Union, UnionType):
        return all(_is_text(part) for part in parts if part is not NoneType)
    return annotation is str or (origin is Literal and all(isinstance(part, str) for part in parts))


TEXT_SETTINGS = frozenset(name for name, field in SettingsPatch.model_fields.items() if _is_text(field.annotation))
"""Settings whose values are texts: attributes and command lines have them without quotation marks."""


class Settings(_Wire):
    """How a session's turns are made.

    `stop` left at null means the style's own: `["User:"]` for transcripts, none for chats, whose template ends turns
    by a token. In transcripts the prefix of any role at the beginning of a line ends a reply, too. `seed` left at
    null means a new one each turn. A seed alone gives nearly always the same text: rounding depends on who else
    computes. With `reproducible` a turn that has a seed, or a temperature of 0, is computed by itself and from its
    first token on: the same model, machine and options then give the same text, but more slowly.
    A history that the context does not hold is cut from its oldest messages on in the prompt (`overflow`), never in the
    transcript. An agent in whose session, or in one above it, `paused` is set waits before its next step.
    A session that has not changed for as long as `keep` says (`90d`, `12h`, or `forever`) is deleted with all below it;
    null is what the session above says, or the server (`--keep`). `title` is what listings show; null means the first
    line of the first message of a user. `model` names one of the server's models, which answers the turns that begin
    from now on; null means the server's default.
    """  # S8, S9

    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    system: str | None = None
    prompt_style: Literal["auto", "chat", "transcript"] = "auto"
    driver: Literal["model", "agent"] = "model"
    paused: bool = False
    reproducible: bool = False
    overflow: Overflow = "shift"
    keep: Keep | None = None
    title: Title | None = None
    model: str | None = None

    def patched(self, patch: SettingsPatch) -> "Settings":
        """Apply a change: keys set to null go back to their defaults."""
        changes = {key: getattr(patch, key) for key in patch.model_fields_set}
        kept = {key: value for key, value in self.model_dump().items() if changes.get(key, value) is not None}
        return Settings(**kept | {key: value for key, value in changes.items() if value is not None})


class Usage(_Wire):
    """What one turn cost. `cached_tokens` of the `prompt_tokens` were computed before, for this turn or another.

    Seconds count from the moment at which the engine got the turn; `tokens_per_second` from the first text on.
    """

    prompt_tokens: Annotated[int, _Integral] = 0
    cached_tokens: Annotated[int, _Integral] = 0
    completion_tokens: Annotated[int, _Integral] = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    tokens_per_second: float = 0.0


class Origin(_Wire):
    """Where a copy comes from: the id that the session had then, and how many of its messages were taken."""

    session: str
    messages: int


class SessionInfo(_Wire):
    """A session without its messages: a line of a listing."""  # H1

    id: str
    state: State
    queued: int = Field(description="Turns that wait behind the running one.")
    messages: int
    tokens: int = Field(0, description="Of the turns that have ended, read and written ones.")
    turn_since: float | None = Field(None, description="When the message that is being answered was accepted.")
    size: int = Field(description="Bytes of the transcript in UTF-8.")
    created_at: float
    updated_at: float
    sub_sessions: int = Field(description="Number of direct children.")
    event: int = Field(description="Number of the session's last event.")
    etag: str
    open_questions: int = Field(0, description="Questions of its agent that wait for an answer.")
    failed: bool = Field(False, description="Whether the newest message is the error of a failed turn.")
    title: str | None = Field(
        None, description="The setting `title`, or what a user wrote first. Null without a right to read."
    )
    origin: Origin | None = Field(None, description="What it is a copy of; null unless that may be read, too.")


MAX_QUESTION = 65_536
"""Longest text of a question, in characters."""

QuestionId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Choice = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class NewQuestion(_Wire):
    """Body of `POST .../questions`: what an agent asks about the turn that it holds with the secret `claim`.

    A question of the kind `command` is whether the command `text` may run, in a directory and maybe in the background.
    """  # A5

    claim: str
    kind: Literal["command"] = "command"
    text: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUESTION)]
    choices: Annotated[tuple[Choice, ...], Field(min_length=1, max_length=8)] = ("allow", "always", "deny")
    directory: Annotated[str, StringConstraints(max_length=4_096)] | None = None
    background: bool = False


class Question(_Wire):
    """A question of an agent. `text` is exactly what would run: escape what cannot be seen before you show it.

    `answer` is one of the `choices` if it is `answered`. `by` names the principal that answered or withdrew it, null
    for the server; `terminal` says that the answer was given at the agent's own terminal. The principal `asker` cannot
    answer its own question where the server requires tokens.
    """  # A5

    id: str
    turn: str
    kind: Literal["command"]
    text: str
    choices: tuple[str, ...]
    directory: str | None = None
    background: bool = False
    asker: str
    asked_at: float
    state: Literal["open", "answered", "withdrawn"]
    answer: str | None = None
    by: str | None = None
    terminal: bool = False


class QuestionList(_Wire):
    """Questions of one session, oldest first."""

    questions: tuple[Question, ...]


class QuestionAnswer(_Wire):
    """Body of `POST .../questions/{question}`: one of its choices.

    With the secret `claim` of its turn the agent itself notes what was answered at its terminal, or withdraws the
    question: `answer` is null then.
    """

    answer: Choice | None
    claim: str | None = None


class SessionDetail(SessionInfo):
    """A session with its history, the messages that wait, and its settings."""

    history: tuple[Message, ...]
    times: tuple[float, ...] = Field((), description="When each message of the history was added.")
    queue: tuple[Message, ...]
    partial: str | None = Field(description="What the running turn has generated so far.")
    settings: Settings
    questions: tuple[Question, ...] = Field((), description="Questions of its agent that wait for an answer.")


class SessionPage(_Wire):
    """A page of sessions in the order of their ids; `next` is the `after` of the next page."""

    sessions: tuple[SessionInfo, ...]
    next: str | None = None


class SessionTree(SessionInfo):
    """A session and everything below it."""

    children: tuple["SessionTree", ...] = ()


class NewSession(_Wire):
    """Body of `POST /v1/sessions`. Its history is a `transcript`, or `messages` with all that a transcript lacks.

    `tokens` are those that the session has used on another server.
    """

    id: Annotated[str | None, _NewId] = None
    settings: SettingsPatch = SettingsPatch()
    transcript: Annotated[str | None, Field(json_schema_extra={"pattern": TRANSCRIPT_PATTERN})] = None
    messages: tuple[Message, ...] = ()
    tokens: Annotated[int, Field(ge=0, lt=2**53), _Integral] = 0


class Import(_Wire):
    """Body of `POST /v1/imports`: named sessions, parents first. With `check` nothing is created."""

    sessions: Annotated[tuple[NewSession, ...], Field(max_length=1_000)]
    check: bool = False


class Imported(_Wire):
    """What became of one session of an import.

    `created`; with `check` `absent`, as it can be created; `same`, as it exists and begins with the same messages;
    `other`, as another conversation has the name; `elsewhere`, as another replica has to create it, by
    `POST /v1/sessions`; `refused`, for the reason in `error`.
    """

    id: str
    outcome: Literal["created", "absent", "same", "other", "elsewhere", "refused"]
    error: str | None = None


class ImportResult(_Wire):
    """What became of each session of an import, in their order."""

    results: tuple[Imported, ...]


RESPONSE_FORMAT = {
    "anyOf": [
        {"type": "null"},
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {"schema": {"type": "object"}},
                    "required": ["schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
    ]
}
"""What a reply's form may be, as OpenAPI says it."""


class TokenAlternative(_Wire):
    """A token that could stand at some place: its text, its bytes (a character may take several tokens), and the
    natural logarithm of its probability (-9999 for none).
    """

    token: str
    bytes: tuple[int, ...]
    logprob: float


class TokenLogprob(TokenAlternative):
    """A token of a reply, and the most probable ones at its place, as many as were asked for.

    Probabilities are the model's own, before temperature, `top_k`, `top_p`, `min_p` and grammar.
    """

    top: tuple[TokenAlternative, ...] = ()


class _Open(BaseModel):
    """A part of the OpenAI API's protocol, which grows: members that are not known are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class FunctionSpec(_Open):
    """What a model is told of a tool; `parameters` is a JSON schema of an object."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolSpec(_Open):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionSpec


class FunctionName(_Open):
    """A tool, by its name."""

    name: str


class NamedTool(_Open):
    """The one tool that must be called."""

    type: Literal["function"] = "function"
    function: FunctionName


class NewMessage(_Wire):
    """Body of `POST /v1/sessions/{id}/messages`. `generate` is true for a user's message unless set.

    `tools` may be called by the reply, in the form of the OpenAI API, as `tool_choice` says; they are for this turn
    only. Its calls come with the reply. A message of the role `tool` is the result of the call `tool_call_id`; the
    last result of a reply is posted with `generate`, and with the tools again. A message of the role `assistant` may
    have `tool_calls` and `thinking`: programs that keep a conversation here post what another model has said.

    `response_format` is `{"type": "json_schema", "json_schema": {"schema": ...}}` or `{"type": "json_object"}` and
    makes the model's reply follow that schema, by grammar. `logprobs` asks for the log-probability of each token of the
    reply, and of so many alternatives; they come with the reply (`wait=true`), not with events.
    """

    content: str
    role: Role = "user"
    settings: TurnSettings = TurnSettings()
    generate: bool | None = None
    response_format: Annotated[dict[str, Any] | None, WithJsonSchema(RESPONSE_FORMAT)] = None
    logprobs: Annotated[int, Field(ge=0, le=20), _Integral] | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    tool_call_id: Annotated[str, StringConstraints(max_length=256)] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str | None = None
    name: str | None = None


class Accepted(_Wire):
    """Answer to a message that was stored: its turn and the number of the event that announces it."""

    session: str
    turn: str | None = Field(description="The turn that will answer; null when none was asked for.")
    event: int
    accepted_bytes: int


class Reply(_Wire):
    """Answer to a message with `wait=true`: the finished turn, and the transcript up to it if that was asked for."""

    session: str
    turn: str
    event: int
    reply: str
    tool_calls: tuple[ToolCall, ...] = ()
    transcript: str | None = None
    finish_reason: FinishReason
    error: str | None = None
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = Field(
        default=None, description="For each token of the reply, if they were asked for and the engine knows them."
    )


class CancelRequest(_Wire):
    """Body of `POST .../cancel`: also the turns that wait, also the sub-sessions."""

    queued: bool = False
    cascade: bool = False


class Cancelled(_Wire):
    """How many turns were cancelled, running and waiting."""

    running: int
    queued: int


class ForkRequest(_Wire):
    """Body of `POST .../fork`: the copy's id, and how many messages of the history it takes (all unless set).

    Without an `id` it is that of the original with `-2`, or the next number. `at` is an older name of `messages`.
    """

    id: Annotated[str | None, _NewId] = None
    messages: Annotated[int, Field(ge=0), _Integral] | None = Field(
        None, validation_alias=AliasChoices("messages", "at")
    )


class Fork(SessionInfo):
    """A copy of a session. `warnings` say what is not in it: a sentence each for the agent, sub-sessions and files."""

    warnings: tuple[str, ...] = ()


class RenameRequest(_Wire):
    """Body of `POST .../rename`."""

    id: Annotated[str, _NewId]


LEASE_SECONDS = 30.0
"""Default time for which an agent owns a turn that it has claimed or updated."""


class ClaimRequest(_Wire):
    """Body of `POST .../claim`: the lease in seconds, and how long to wait for a message."""  # S10

    lease: Annotated[float, Field(gt=0, le=3600)] = LEASE_SECONDS
    wait: Annotated[float, Field(ge=0, le=60)] = 0.0


class Claim(_Wire):
    """A queued message that an agent may now answer, and the secret that its calls for this turn carry.

    `traceparent` is the turn's trace (W3C Trace Context) if the server records one.
    """  # S10

    session: str
    turn: str
    claim: str
    message: Message
    expires_at: float
    traceparent: str | None = None


class AgentUpdate(_Wire):
    """What an agent adds to the turn it holds: text as it comes, or whole messages (tool calls and results)."""

    claim: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    lease: Annotated[float, Field(gt=0, le=3600)] = LEASE_SECONDS


class AgentFinish(_Wire):
    """How an agent ends its turn: with a reply (or else the text it streamed) or an error."""

    claim: str
    reply: str | None = None
    error: str | None = None
    usage: Usage = Usage()


class Event(_Wire):
    """Something that happened to a session. `number` counts within the session, `position` over all of them."""  # S11

    type: EventType
    session: str
    number: int
    position: int
    time: float
    data: dict[str, Any]


class FileInfo(_Wire):
    """What is known of a file without reading it; `size` is in bytes, `version` changes with every write."""  # G2

    path: str
    size: int
    updated_at: float
    version: str | None = None


class FilePage(_Wire):
    """A page of files in the order of their paths; `next` is the `after` of the next page."""

    files: tuple[FileInfo, ...]
    next: str | None = None


class Matches(_Wire):
    """What a regular expression matched in a file, in its order."""

    matches: tuple[str, ...]


class GrantInfo(_Wire):
    """A right: some operations at and below a prefix."""  # G2

    prefix: str
    ops: tuple[str, ...]


class Taken(_Wire):
    """How much a principal may take, and how much it has taken; null is no bound of its own."""  # H7

    sessions: int | None
    bytes: int | None
    streams: int | None
    requests: float | None = None


class Price(_Wire):
    """What a million tokens cost: those of prompts, and those of replies."""

    prompt: float
    completion: float
    currency: str


class Connection(_Wire):
    """A model of the server's file of models. `reason` is why it is not `usable`, or empty.

    `where` is the URL of its server, or its file. `key_variable` names the variable that holds its key.
    """

    name: str
    where: str
    default: bool
    usable: bool
    reason: str = ""
    context: int | None = None
    key_variable: str | None = None


class ConnectionList(_Wire):
    """The models of the server's file, the name of the default, and why the file is not used as it is, if so."""

    file: str
    default: str
    problem: str = ""
    connections: tuple[Connection, ...]


class ConnectionCandidate(_Wire):
    """A model that the server has tried with one short request. `reason` is why it does not work, or empty.

    `first_token_seconds` and `tokens_per_second` are those of that request.
    """

    name: str
    where: str
    works: bool
    reason: str = ""
    context: int | None = None
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    key_variable: str | None = None
    connected: bool = False


class CandidateList(_Wire):
    """All models that a search has found, also those that do not work."""

    candidates: tuple[ConnectionCandidate, ...]


class NewConnections(_Wire):
    """Which models of the last search to connect, by their names, and which of all is to be the default."""

    names: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=100)]
    default: ModelName | None = None


class ModelShown(_Wire):
    """A model that answers: whether it is the small one that CFS contains, its context in tokens, and its price.

    `notes` are remarks for the user, a sentence each: that the model is a toy, or has no chat template. A model that is
    not `loaded` is loaded for the first turn that needs it; what is not known before that is null.
    """

    name: str
    embedded: bool
    context: int | None = None
    price: Price | None = None
    notes: tuple[str, ...] = ()
    loaded: bool = True


class WhoAmI(_Wire):
    """The caller as the server knows it, the model that answers by default, and all models, that one first."""  # G9

    name: str
    grants: tuple[GrantInfo, ...]
    limits: Taken
    usage: Taken
    model: ModelShown | None = None
    models: tuple[ModelShown, ...] = ()


class SearchResult(_Wire):
    """A message that contains the words: its session, its index in the history, and a part of its text.

    `ranges` are the places of the words in `text`, in characters.
    """

    session: str
    title: str | None
    index: int
    role: Role
    time: float
    text: str
    ranges: tuple[tuple[int, int], ...]


class SearchResults(_Wire):
    """The newest messages that contain some words; `truncated` says whether there may be more."""

    results: tuple[SearchResult, ...]
    truncated: bool


class NewShare(_Wire):
    """Body of `POST /v1/shares`: the session, what the link allows, and the seconds until it ends (null: never)."""

    session: Annotated[str, _NewId]
    access: Literal["read", "write"] = "read"
    expires: Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)] | None = None


class ShareInfo(_Wire):
    """A share of a session. `expires` is a time in seconds since the epoch."""

    id: str
    session: str
    access: Literal["read", "write"]
    created_at: float
    expires: float | None = None


class NewlyShared(_Wire):
    """A new share: the path of the page that opens it, and its token, which is never shown again.

    On a server without tokens there is nothing to allow: `id` and `token` are null, and the path opens the session.
    """

    id: str | None
    token: str | None
    path: str


class ShareList(_Wire):
    """The caller's shares of a session, oldest first."""

    shares: tuple[ShareInfo, ...]


class RenderItem(_Wire):
    """A text to render: `markdown`, code of a language or of a file with this name, or plain text (null)."""

    text: str
    language: Annotated[str, StringConstraints(max_length=255)] | None = None


class RenderRequest(_Wire):
    """Body of `POST /v1/render`."""

    items: Annotated[tuple[RenderItem, ...], Field(max_length=256)]


class RenderedItem(_Wire):
    """A rendered text. Its HTML is safe to insert into a page."""

    html: str


class Rendered(_Wire):
    """The rendered texts, in the order of the request."""

    items: tuple[RenderedItem, ...]


class Problem(BaseModel):
    """An error, in the one shape that every route uses (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    retry_after: float | None = None
