#!/usr/bin/env python3
"""Print three commands to try as soon as the server answers: announce.py SERVER_PID [arguments of cfs serve]."""

import argparse
import os
import sys
import time
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("pid", type=int)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, required=True)
options = parser.parse_known_args()[0]
everywhere = {"127.0.0.1", "0.0.0.0", "::1", "::"}  # noqa: S104 - names to replace, not to bind
base = f"http://{'localhost' if options.host in everywhere else options.host}:{options.port}"


def ready() -> bool:
    """Whether something answers there that has its model loaded."""
    try:
        with urllib.request.urlopen(f"{base}/readyz", timeout=5) as answer:  # noqa: S310 - an address of ours
            return bool(answer.status == 200)
    except OSError:
        return False


if ready():  # at once: that is another server on the same port, and ours is about to say so
    sys.exit()
while not ready():
    try:
        os.kill(options.pid, 0)
    except ProcessLookupError:
        sys.exit()
    time.sleep(0.1)

print(
    f"""
CFS answers on {base} (Ctrl-C ends it). Try in another terminal:

  curl -N -H 'Accept: text/event-stream' -d 'My name is Alice.' {base}/v1/sessions/chat1/messages
  curl -d 'What is my name?' '{base}/v1/sessions/chat1/messages?wait=true'
  curl -H 'Accept: text/plain' {base}/v1/sessions/chat1
""",
    flush=True,
)
