"""A stub as a process of its own, which can be killed: `python -m tests.upstream.process KIND PORT`."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from cfs_server.engine.contract.interface import UpstreamKind
from tests.upstream.stub import served
from tests.upstream.support import STUBS

_PACE = 0.01
"""Seconds between two words."""


@contextmanager
def upstream(kind: UpstreamKind, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it; the value is the process and its address."""
    command = [sys.executable, "-m", "tests.upstream.process", kind, str(port)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def main(kind: UpstreamKind, port: int) -> None:
    """Serve until killed."""
    stub = STUBS[kind]()
    stub.pace = _PACE
    async with served(stub, port) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(cast("UpstreamKind", sys.argv[1]), int(sys.argv[2])))
