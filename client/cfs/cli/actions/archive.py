"""The format of exported sessions: a tar file that can be read without CFS.

The file has a folder for each session with its transcript and everything else as JSON. `cfs export` and `cfs import`
use the REST interface, so they work with any server, and with the rights of the caller.
"""

FORMAT = 1
ROOT = "cfs-export"
INDEX = f"{ROOT}/index.json"


def counted(count: int) -> str:
    """Write a number of sessions."""
    return f"{count} session" if count == 1 else f"{count} sessions"
