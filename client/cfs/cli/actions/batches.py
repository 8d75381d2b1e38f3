"""Creates many sessions by few requests, as imports do."""

from collections.abc import Callable, Iterator, Sequence

from cfs import api
from cfs.contract.errors import CfsError, MethodNotAllowed, NotFound, TooLarge, Unreachable
from cfs.contract.wire import Imported, NamedSession, SessionDetail
from cfs.transports.http import Client

_BATCH = 500
"""Maximum number of sessions that one request imports."""

_BATCH_CHARACTERS = 1 << 20

_OVERHEAD = 200
"""Estimated characters of a session or a message besides its content."""


def outcomes(
    client: Client, sessions: Sequence[NamedSession], advance: Callable[[int], object], *, check: bool = False
) -> Iterator[tuple[str, Imported]]:
    """Create sessions in batches, or only check them, and yield what became of each by its name."""
    for batch in _batches(sessions):
        for result in _batch(client, batch, check=check):
            yield result.id, result
        advance(len(batch))


def _batches(sessions: Sequence[NamedSession]) -> Iterator[list[NamedSession]]:
    batch: list[NamedSession] = []
    size = 0
    for session in sessions:
        length = sum(len(message.content) for message in session.messages) + _OVERHEAD * (len(session.messages) + 1)
        if batch and (len(batch) == _BATCH or size + length > _BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(session)
        size += length
    if batch:
        yield batch


def _batch(client: Client, batch: list[NamedSession], *, check: bool) -> Iterator[Imported]:
    try:
        results = client.call(api.import_sessions(batch, check=check)).results
    except TooLarge:  # the limit of this server is smaller
        if len(batch) > 1:
            half = len(batch) // 2
            yield from _batch(client, batch[:half], check=check)
            yield from _batch(client, batch[half:], check=check)
            return
        results = (Imported(id=batch[0].id or "", outcome="elsewhere"),)
    except (NotFound, MethodNotAllowed):  # a server of before
        results = tuple(Imported(id=session.id or "", outcome="elsewhere") for session in batch)
    for session, result in zip(batch, results, strict=True):
        yield _single(client, session, check=check) if result.outcome == "elsewhere" else result


def _single(client: Client, session: NamedSession, *, check: bool) -> Imported:
    """Create or check one session, without a batch."""
    name = session.id or ""
    existing = _find(client, name)
    if existing is not None:
        same = existing.history[: len(session.messages)] == session.messages
        return Imported(id=name, outcome="same" if same else "other")
    if check:
        return Imported(id=name, outcome="absent")
    try:
        client.call(api.create_from(session))
    except Unreachable:
        raise
    except TooLarge as error:
        advice = "the settings max_body_bytes and max_messages of this server must be larger for the import"
        return Imported(id=name, outcome="refused", error=f"{error.detail}; {advice}")
    except CfsError as error:
        return Imported(id=name, outcome="refused", error=error.detail)
    return Imported(id=name, outcome="created")


def _find(client: Client, name: str) -> SessionDetail | None:
    try:
        return client.call(api.read(name))
    except NotFound:
        return None
