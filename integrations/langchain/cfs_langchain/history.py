"""The chat history of a LangChain program, kept in a session."""

from collections.abc import Iterable, Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from cfs import api
from cfs.contract.ids import check_id
from cfs.errors import NotFound
from cfs.transports.async_http import AsyncClient
from cfs.transports.http import Client
from cfs.wire import Accepted, Message
from cfs_langchain.messages import from_session, posted, to_session


class CFSChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session.

    `url` and `token` default to `CFS_URL` and `CFS_TOKEN`. The object holds no copy: whatever else is written to the
    session is a part of the history. A session that does not exist has no messages; the first ones create it. Messages
    that are added are only kept: the server's model does not answer them. Errors are those of `cfs.errors`.
    """

    def __init__(self, session_id: str, *, url: str | None = None, token: str | None = None) -> None:
        super().__init__()
        self.session_id = check_id(session_id)
        self._url = url
        self._token = token

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override] # the base class allows either
        """The messages of the session, oldest first."""
        with Client(self._url, self._token) as client:
            try:
                return _converted(client.call(api.read(self.session_id)).history)
            except NotFound:
                return []

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages of the session, oldest first."""
        async with AsyncClient(self._url, self._token) as client:
            try:
                return _converted((await client.call(api.read(self.session_id))).history)
            except NotFound:
                return []

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, in their order.

        All of them are converted before the first is sent: if one cannot be kept, none is.
        """
        calls = self._posts(messages)
        with Client(self._url, self._token) as client:
            for call in calls:
                client.call(call)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, in their order."""
        calls = self._posts(messages)
        async with AsyncClient(self._url, self._token) as client:
            for call in calls:
                await client.call(call)

    def clear(self) -> None:
        """Delete the session with everything below it."""
        with Client(self._url, self._token) as client:
            try:
                client.call(api.delete(self.session_id))
            except NotFound:
                return

    async def aclear(self) -> None:
        """Delete the session with everything below it."""
        async with AsyncClient(self._url, self._token) as client:
            try:
                await client.call(api.delete(self.session_id))
            except NotFound:
                return

    def _posts(self, messages: Sequence[BaseMessage]) -> list[api.Call[Accepted]]:
        return [api.post(self.session_id, posted(to_session(message))) for message in messages]


def _converted(history: Iterable[Message]) -> list[BaseMessage]:
    return list(map(from_session, history))
