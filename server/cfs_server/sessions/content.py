"""From the bytes that somebody writes to the content of one message (S3)."""

from cfs.errors import TooLarge, UnsupportedMedia
from cfs.transcript import PREFIXES


def decode_message(data: bytes, *, limit: int) -> str | None:
    """Read bytes as one user message: strict UTF-8, one final newline and a leading `User: ` dropped.

    Returns None where there is nothing but blanks: an empty write is a no-op.
    Raises `TooLarge` over `limit` bytes and `UnsupportedMedia` for bytes that are not UTF-8.
    """
    if len(data) > limit:
        raise TooLarge(f"a message has {limit} bytes at most; this one has {len(data)}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedMedia(f"a message must be UTF-8: {error.reason} at byte {error.start}") from None
    text = text.removesuffix("\n").removeprefix(PREFIXES["user"])
    return text if text.strip() else None


def check_content(content: str, *, limit: int) -> str:
    """Check the content of a structured message, which is taken as it stands."""
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise UnsupportedMedia("the content holds a lone surrogate, which is no text in UTF-8") from None
    if size > limit:
        raise TooLarge(f"a message has {limit} bytes at most; this one has {size}")
    return content
