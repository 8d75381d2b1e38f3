"""A server that was installed without the packages for WebDAV serves everything else."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
for name in ("wsgidav", "a2wsgi", "lxml"):
    sys.modules[name] = None
from tests.server.support import running_server

async def main():
    async with running_server(may_block=True) as server:
        answer = await server.client.request("PROPFIND", "/dav/sessions/")
        print(answer.status_code, answer.json()["detail"])
        print((await server.say("chat1", "hi", wait="true")).status_code)

asyncio.run(main())
"""


def test_the_rest_is_served_and_the_reason_told() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stdout.splitlines() if "[info" not in line]
    assert lines == [
        "501 this server was installed without WebDAV: pip install 'cfs-local[webdav]'",
        "200",
    ], done.stderr
