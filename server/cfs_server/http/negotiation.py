"""Content negotiation: the media type of a response (RFC 9110, 12)."""

from cfs.errors import NotAcceptable

JSON = "application/json"
TEXT = "text/plain"
EVENTS = "text/event-stream"
HTML = "text/html"


def choose(accept: str | None, offered: tuple[str, ...]) -> str:
    """Return the offer that the client prefers. Ties go to the most exact match, then to our order.

    Raises `NotAcceptable` if the client accepts none of them.
    """
    if not accept or not accept.strip():
        return offered[0]
    ranges = [_parse(part) for part in accept.split(",") if part.strip()]
    ranked = [(*_rank(offer, ranges), -index, offer) for index, offer in enumerate(offered)]
    quality, _, _, best = max(ranked)
    if quality <= 0:
        raise NotAcceptable(f"this resource is available as {' or '.join(offered)}")
    return best


def _parse(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return media, _quality(value.strip())
    return media, 1.0


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def _rank(offer: str, ranges: list[tuple[str, float]]) -> tuple[float, int]:
    """Return the quality and exactness of the most exact range that matches an offer."""
    main = offer.partition("/")[0]
    exactness = {offer: 2, f"{main}/*": 1, "*/*": 0}
    covering = [(exactness[media], quality) for media, quality in ranges if media in exactness]
    exact, quality = max(covering, default=(0, 0.0))
    return quality, exact
