"""A part of a prompt whose tokens do not depend on what stands beside it."""

from dataclasses import dataclass

from cfs_server.engine.llama.ffi import Tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """A text and its tokens; `reply` when the model wrote it."""

    text: str
    trusted: bool
    tokens: Tokens
    reply: bool = False
