"""The commands of the README do what they say, with the embedded model (C10)."""

import os
import re
import subprocess
from pathlib import Path

from tests.server.support import CFS, environment, serving

README = Path(__file__).parent.parent.parent / "README.md"


def test_the_tour_works() -> None:
    """Each line in its order; the model remembers the name, and the session is gone in the end."""
    block = re.search(r"<!-- tested: cfs -->\n```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    said = {}
    with serving() as server:
        env = environment(CFS_URL=server.url, PATH=f"{CFS.parent}{os.pathsep}{os.environ['PATH']}")
        for line in [*block[1].splitlines(), "cfs ls"]:
            done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), line
            said[line] = done.stdout
    assert "Alice" in said["cfs send tour 'What is my name?' --set temperature=0"]
    assert said["cfs cat tour"].startswith("User: My name is Alice.\nAssistant: ")
    assert "\nUser: Tell me a joke.\nAssistant: " in said["cfs cat tour"]
    assert said["cfs ls"] == ""
