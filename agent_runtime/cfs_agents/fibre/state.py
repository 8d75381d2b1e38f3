"""What has to be known of a strand to go on with it in another process (B8). Pure: no I/O."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from cfs.wire import Usage

VERSION = "1.0"

StrandState = Literal["new", "working", "done"]
"""Nothing asked yet; at work on a task, or broken off in it; reported, and ready for more."""


class Letter(BaseModel):
    """A message that waits for an agent: from its parent, from another agent, or the news that a child is done.

    `id` is that of the call which sent it, or of the report, so that a letter is never put in twice.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    sender: str
    content: str
    notice: bool = False


class Held(BaseModel):
    """A turn of the server that a strand answers, the secret by which it is held, and the message that began it.

    `life` tells in which session of the name it is, as that may be lost and made anew.
    """

    model_config = ConfigDict(frozen=True)

    turn: str
    claim: str
    content: str
    life: str | None = None


def _as_list(value: object) -> object:
    """Read what was written when calls were run one after the other."""
    return [] if value is None else [value] if isinstance(value, str) else value


class StrandRecord(BaseModel):
    """One strand as `session_status.json` has it: who it is, what it may do, and where it is in its task.

    `begun` are the ids of calls that were begun and have no result. `items` are those of the context: a whole one, or
    `{"at": n, ...}` for one whose message is the n-th of `messages.json`, which has `messages` of them. `doubted` is an
    answer of the root that did not agree with the files. `life` and `settings` are those of the session on the server.
    Times are in seconds since the epoch.
    """

    schema_version: str = VERSION
    session_id: str
    agent_id: str
    agent_name: str
    parent_id: str | None = None
    parent_session_id: str | None = None
    depth: int = 0
    role_description: str = ""
    system_instruction: str = ""
    task_goal: str = ""
    max_turns: int = 10
    timeout: float | None = None
    budget: int | None = None
    spawned_by: str | None = None
    tasks: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    state: StrandState = "new"
    seconds_used: float = 0.0
    rounds: int = 0
    usage: Usage = Usage()
    held: Held | None = None
    begun: Annotated[list[str], BeforeValidator(_as_list)] = []
    broken: dict[str, str] = Field(default_factory=dict)
    inbox: list[Letter] = Field(default_factory=list)
    seen: list[str] = Field(default_factory=list)
    asked: list[str] = Field(default_factory=list)
    doubted: str | None = None
    finish: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    heard: bool = True
    memory: dict[str, Any] = Field(default_factory=dict)
    messages: int = 0
    items: list[dict[str, Any]] = Field(default_factory=list)
    life: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    def put(self, letter: Letter) -> bool:
        """Put a letter into the inbox, unless it has been there before; tell whether it was new."""
        if letter.id in self.seen:
            return False
        self.seen.append(letter.id)
        self.inbox.append(letter)
        return True
