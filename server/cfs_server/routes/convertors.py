"""How a session's id is told apart from the route's words in a path (H1).

Importing this module makes `{id:session}` known to the router.
"""

from starlette.convertors import Convertor, register_url_convertor

from cfs.ids import ROUTE_WORDS


class SessionIdConvertor(Convertor[str]):
    """The longest run of components whose first may be anything and whose others are no route words.

    So `/v1/sessions/a/b/events` is the stream of `a/b`, and `/v1/sessions/events` is the session `events`, whatever
    the order of the routes.
    """

    regex = rf"[^/]*(?:/(?!(?:{'|'.join(sorted(ROUTE_WORDS))})(?:/|$))[^/]*)*"

    def convert(self, value: str) -> str:
        """Take the text as it stands; `check_id` judges it."""
        return value

    def to_string(self, value: str) -> str:
        """Write it as it stands; its slashes are separators."""
        return value


register_url_convertor("session", SessionIdConvertor())
