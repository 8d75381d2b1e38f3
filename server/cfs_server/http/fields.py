"""Reads the header fields of a request, once, for all who look at them (RFC 9110, 5.3). Pure: no I/O.

A list of fields has no meaning of its own when a name stands in it twice: some readers take the first value, others the
last one, and a replica may send a request on by one reading that its owner answers by another. After this there is one
line for each name.
"""

from cfs.errors import InvalidRequest

_SINGLE = frozenset(
    {
        *(b"authorization", b"x-api-key", b"host", b"origin", b"referer"),
        *(b"content-length", b"content-type", b"content-range", b"content-location"),
        *(b"range", b"if-range", b"if-modified-since", b"if-unmodified-since", b"last-event-id", b"expect"),
        *(b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-fetch-user"),
        *(b"destination", b"depth", b"overwrite", b"if", b"lock-token"),
        *(b"idempotency-key", b"anthropic-version", b"x-expected-entity-length"),
    }
)
"""Fields with one value. Different ones in one request are refused: it is not known which one the client means."""
_OWN = b"x-cfs-"
"""The beginning of fields of this server, which have one value, too."""

Fields = list[tuple[bytes, bytes]]


def one_reading(fields: Fields) -> Fields:
    """Return the fields with one line for each name; names are in lower case. Raises `InvalidRequest`.

    Lists that are spread over several lines are joined. Names with `_` are dropped, as proxies do: CGI, and with it
    WSGI, cannot tell them from those with `-`.
    """
    values: dict[bytes, bytes] = {}
    for name, value in fields:
        if b"_" in name:
            continue
        before, is_single = values.get(name), name in _SINGLE or name.startswith(_OWN)
        if before is None:
            values[name] = value
        elif is_single and (before != value or name == b"host"):  # two of `Host` are always wrong (RFC 9112, 3.2)
            raise InvalidRequest(f"the header field {name.decode('latin-1')!r} was sent twice; send it once")
        elif not is_single:
            values[name] = before + (b"; " if name == b"cookie" else b", ") + value
    return list(values.items())
