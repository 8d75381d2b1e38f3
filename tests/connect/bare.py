"""A bare machine: a network, processes and mounts of its own, so that the usual ports of model servers are free.

As a program it serves the stubs at the ports of Ollama and llama-server, and runs a command beside them.
"""

import subprocess
import sys
from pathlib import Path

from tests.connect.support import OLLAMA_PORT, OllamaStub
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import served_aside

ROOT = Path(__file__).parents[2]
LLAMA_SERVER_PORT = 8080
OTHER_MODEL = "small-2"
_ALONE = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_LOOPBACK = ("ip", "link", "set", "lo", "up")


def obstacle() -> str | None:
    """Why this machine cannot make a bare one, or None."""
    try:
        probe = subprocess.run([*_ALONE, *_LOOPBACK], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return None if probe.returncode == 0 else probe.stderr.strip()


def run(script: str, home: Path, folder: Path, **env: str) -> str:
    """Run lines of a shell in a folder of the bare machine, with an empty home and no other variables; its output.

    The Python of the tests is on the path, and nothing of CFS. All processes end with the last line.
    """
    own = {"HOME": str(home), "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    alone = [*_ALONE, sys.executable, "-m", "tests.connect.bare", str(folder), script]
    done = subprocess.run(
        alone, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=own | env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _main(folder: str, script: str) -> int:
    subprocess.run(_LOOPBACK, check=True)
    with (
        served_aside(OllamaStub(), OLLAMA_PORT),
        served_aside(OpenAIStub(key=None, models=(OTHER_MODEL,)), LLAMA_SERVER_PORT),
    ):
        return subprocess.run(["bash", "-euc", script], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
