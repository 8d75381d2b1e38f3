"""A worker that says something odd in its first life, and is the real one from then on.

    python odd_worker.py ODDITY MARK FD

ODDITY is one of those below; MARK is a file that the first life leaves.
"""

import socket
import sys
from pathlib import Path

from cfs_server.engine.contract import protocol
from cfs_server.engine.contract.interface import EnginePlan
from cfs_server.engine.worker import worker

LIMIT = protocol.HEADER.pack(0x7FFFFFFF)
PLAN = EnginePlan("none", "ranges", "none", False, 2048, 1, 1, 1, False)
READY = protocol.Ready(2048, 2048, has_chat_template=True, parameters=1, plan=PLAN)
COUNTERS = protocol.Counters()
STRANGERS = protocol.Step(
    COUNTERS,
    [protocol.TurnDequeued("stranger", 1, 0)],
    [protocol.TextDelta("stranger", "boo", 1)],
    [protocol.Ended("stranger", "stop", 1)],
)


def framed(body: bytes) -> bytes:
    """Put bytes into a frame, whatever they are."""
    return protocol.HEADER.pack(len(body)) + body


ODDITIES = {
    "far too long": LIMIT + b"x" * 1000,
    "no json": framed(b"\x00\xff not json"),
    "json, but no frame": framed(b"17"),
    "unknown kind": framed(b'["Surprise",1]'),
    "too few fields": framed(b'["Log","error"]'),
    "fields of no sense": framed(b'["Step",[1,2,3,4],[5],[],[],0.0]'),
    "cut off": framed(b'["Log","error","never ends')[:12],
}


def main() -> None:
    """Be odd once."""
    oddity, mark, descriptor = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if mark.exists():
        sys.argv = [sys.argv[0], descriptor]
        worker.main()
        return
    mark.touch()
    with socket.socket(fileno=int(descriptor)) as server, server.makefile("rb") as orders:
        assert isinstance(protocol.read(orders), protocol.Load)
        if oddity.startswith("at once: "):
            server.sendall(ODDITIES[oddity.removeprefix("at once: ")])
            orders.read()
            return
        protocol.send(server, READY)
        order = protocol.read(orders)
        assert isinstance(order, protocol.Generate)
        if oddity == "strangers":
            protocol.send(server, STRANGERS)
            said, over = [protocol.TextDelta(order.id, "hello", 1)], [protocol.Ended(order.id, "stop", 1)]
            protocol.send(server, protocol.Step(COUNTERS, [protocol.TurnDequeued(order.id, 3, 0)], said, over))
        else:
            server.sendall(ODDITIES[oddity])
        if oddity != "cut off":
            orders.read()


if __name__ == "__main__":
    main()
