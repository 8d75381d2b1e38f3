"""Keeps the chat history of LangChain in sessions."""

from cfs_langchain.history import CFSChatMessageHistory
from cfs_langchain.messages import from_session, to_session

__all__ = ["CFSChatMessageHistory", "from_session", "to_session"]
