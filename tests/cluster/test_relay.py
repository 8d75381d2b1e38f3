"""What a replica passes on from another one."""

import pytest
from starlette.types import Message

from cfs_server.cluster.relay import Passing

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
PIECE: Message = {"type": "http.response.body", "body": b"x", "more_body": True}
LAST: Message = {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.parametrize("passed", [[START], [START, PIECE], [START, PIECE, LAST]])
async def test_a_response_ends_once(passed: list[Message]) -> None:
    """Also if the other replica leaves at the moment at which the last part was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    passing = Passing(send)
    for message in passed:
        await passing.send(message)
    await passing.end()
    assert [message for message in sent if not message.get("more_body") and message is not START] == [LAST]
    assert sent[-1] == LAST
