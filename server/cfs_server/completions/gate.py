"""Completions as one caller may have them: the only way from a route to the engine (G9).

Whoever may write to some session may have the model answer: it could do so there. A completion that a session records
needs the rights of that session besides.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from cfs.completions import ModelCard, Recorded, TokenCounts
from cfs.completions.models import MESSAGE_TOKENS, estimate_tokens
from cfs.errors import TooLarge
from cfs.transcript import shown
from cfs.wire import Message
from cfs_server.completions import recorded
from cfs_server.completions.direct import Direct, Items
from cfs_server.completions.orders import Order
from cfs_server.engine.interface import CountsTokens, Engine
from cfs_server.sessions.gate import SessionGate
from cfs_server.sessions.limits import Limits

_MOST_TEXTS = 10_000


class CompletionGate:
    """What one caller may do with the engine; what it computes is shared among the caller's own work only."""

    def __init__(self, model: ModelCard, engine: Engine, direct: Direct, sessions: SessionGate, owner: str) -> None:
        self.model = model
        self._engine = engine
        self._direct = direct
        self._sessions = sessions
        self._owner = owner

    @property
    def limits(self) -> Limits:
        """What a conversation may take."""
        return self._sessions.limits

    def begin(self, order: Order, session_id: str | None) -> tuple[Items, Recorded | None]:
        """Begin a completion, in a session if one is named; returns its pieces, and where it is kept."""
        if session_id is None:
            self._sessions.require_somewhere("write")
            self._direct.check(self._owner)
            return self._direct.make(order, self._owner), None
        session, turn = recorded.submit(self._sessions, session_id, order)
        items = recorded.follow(session, turn, lambda: self._sessions.require_still(session, session_id, "read_binary"))
        return items, Recorded(session=session.id, turn=turn.id)

    def counting(self) -> AbstractContextManager[None]:
        """Hold one of the caller's places for counting tokens; raises `TooMany` where they are taken."""
        return self._direct.counting(self._owner)

    async def count(
        self, texts: Sequence[str], messages: Sequence[Message] | None, tools: Sequence[dict[str, object]]
    ) -> TokenCounts:
        """Count tokens by the model's tokenizer, or guess where there is none; raises `EngineError`.

        Raises `TooLarge` for more text than one message may have.
        """
        self._sessions.require_somewhere("write")
        if len(texts) > _MOST_TEXTS:
            raise TooLarge(f"the tokens of {_MOST_TEXTS} texts are counted at a time; these are {len(texts)}")
        size = sum(map(len, texts)) + sum(len(message.content) for message in messages or ())
        if size > self._sessions.limits.message_bytes:
            most = self._sessions.limits.message_bytes
            raise TooLarge(f"the tokens of {most} characters are counted at a time; these are {size}")
        if isinstance(self._engine, CountsTokens):
            found = await self._engine.count_tokens(texts, messages, tools)
            return TokenCounts(counts=found.texts, prompt_tokens=found.prompt, exact=True)
        prompt = None
        if messages is not None:
            said = sum(MESSAGE_TOKENS + estimate_tokens(shown(message)) for message in messages or ())
            prompt = said + sum(estimate_tokens(str(tool)) for tool in tools)
        return TokenCounts(counts=tuple(map(estimate_tokens, texts)), prompt_tokens=prompt, exact=False)
