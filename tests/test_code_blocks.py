"""Every code block of the documentation is run, or says why not.

Pages have tests of their own; what these leave is run here.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cfs.contract.transcript import parse, render
from cfs.wire import Message
from cfs_server.access.tokens import load
from tests.documentation import BLOCKS, ROOT, block, blocks_of
from tests.fuse import support as fuse
from tests.server.support import CFS, Process, environment, serving
from tests.shell_programs import shell_path
from tests.test_guides import GUIDES

pytestmark = pytest.mark.timeout(300)  # trees of agents with the embedded model; other tests may have the processor

ELSEWHERE = {  # what the tests of single pages run
    ("README.md", ""): ("tests/test_readme.py",),
    ("README.md", "mount"): ("tests/test_readme.py",),
    ("README.md", "davfs2"): ("tests/test_readme.py",),
    ("README.md", "end"): ("tests/test_readme.py",),
    ("docs/access.md", "make"): ("tests/access/test_documentation.py",),
    ("docs/access.md", "use"): ("tests/access/test_documentation.py",),
    ("docs/acp.md", "zed"): ("integrations/acp/tests/test_acp.py",),
    ("docs/agents.md", ""): ("tests/agents/tools/test_documentation.py",),
    ("docs/api.md", "render"): ("tests/server/test_markup.py",),
    ("docs/completions.md", ""): ("tests/server/test_completions_documentation.py",),
    ("docs/completions.md", "tokens"): ("tests/server/test_completions_documentation.py",),
    ("docs/fuse.md", "past"): ("tests/fuse/test_past.py",),
    ("docs/fuse.md", "questions"): ("tests/fuse/test_questions.py",),
    ("docs/mcp.md", "mcp"): ("integrations/mcp/tests/test_mcp_documentation.py",),
    ("docs/models.md", "models"): ("tests/engine/test_downloads.py",),
    ("docs/models.md", "models file"): ("tests/models/test_file.py",),
    ("docs/protocols.md", "anthropic"): ("tests/protocols/test_documentation.py",),
    ("docs/protocols.md", "responses"): ("tests/protocols/test_documentation.py",),
    ("docs/protocols.md", "one conversation"): ("tests/protocols/test_one_conversation.py",),
    ("docs/protocols.md", "one conversation mount"): ("tests/protocols/test_one_conversation.py",),
    ("docs/protocols.md", "ollama"): ("tests/protocols/test_documentation.py",),
    ("docs/replicas.md", "database"): ("tests/sessions/journal/test_postgres.py",),
    ("docs/replicas.md", "dump"): ("tests/sessions/journal/test_postgres.py",),
    ("docs/replicas.md", "rights"): ("tests/sessions/journal/test_postgres.py",),
    ("docs/sdk.md", ""): ("tests/client/test_documentation.py",),
} | {
    ("docs/webdav.md", name): ("tests/webdav/test_documentation.py",)
    for name in ("davfs2", "davfs2 by hand", "curl", "rclone", "rclone mount", "cadaver")
}
HERE: set[tuple[str, str]] = set()


def test_every_block_is_run_or_says_why_not() -> None:
    """A block without a mark is a promise that no test keeps."""
    marks = re.compile(r"tested|tested: [\w ]+|not run: .{9,}")
    assert len(BLOCKS) > 60
    assert [block[:3] for block in BLOCKS if not marks.fullmatch(block.mark or "")] == []


def test_every_mark_names_a_test() -> None:
    """What is marked as tested is run by the test of its page, or below."""
    marked = {
        (block.page, block.mark.removeprefix("tested").removeprefix(": "))
        for block in BLOCKS
        if block.mark and block.mark.startswith("tested") and block.page not in GUIDES
    }
    assert marked == ELSEWHERE.keys() | HERE
    assert not ELSEWHERE.keys() & HERE
    for (page, _), tests in ELSEWHERE.items():
        assert all(Path(page).name in (ROOT / test).read_text(encoding="utf-8") for test in tests), page


def test_blocks_are_found_as_markdown_defines_them() -> None:
    """Indented and fenced ones, in lists, too; an indented line of a paragraph is none."""
    text = "<!-- tested: a -->\n\n    one\n\n- item\n\n  ```sh\n  two\n  ```\n\nwords\n    go on\n"
    assert [(block.text, block.mark) for block in blocks_of("x.md", text)] == [("one\n", "tested: a"), ("two\n", None)]


def runs(page: str, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Say of a test which blocks of a page it runs."""
    HERE.update((page, name) for name in names)
    return lambda test: test


class Shell:
    """A user's shell, whose home is a directory of the test; `cfs` and `curl` talk to one server."""

    prelude = 'curl() { command curl -sSf "$@"; }\n'

    def __init__(self, server: Path, url: str = "") -> None:
        """Work in a directory."""
        self.server = server
        self.url = url

    def run(self, script: str, *, cwd: Path | None = None, **env: str) -> str:
        """Run commands up to the first that fails, end what they leave behind, and return what they print."""
        script = script.replace("http://localhost:8000", self.url).replace("http://127.0.0.1:8000", self.url)
        script = script.replace("localhost:8000", self.url.removeprefix("http://"))
        path = os.pathsep.join([shell_path(), str(CFS.parent), os.environ["PATH"]])
        with (self.server / "stdout").open("w") as stdout:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.prelude + script],
                cwd=cwd or self.server,
                env=environment(PATH=path, HOME=str(self.server), LC_ALL="C.UTF-8", **{"CFS_URL": self.url} | env),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        status = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shown = (self.server / "stdout").read_text(encoding="utf-8")
        assert status == 0, f"{shown}\nends with {status}"
        return shown


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    """A server with the embedded model."""
    with serving() as process:
        yield process


@pytest.fixture
def shell(server: Process, tmp_path: Path) -> Iterator[Shell]:
    """A shell at that server; nothing stays mounted in its home."""
    try:
        yield Shell(tmp_path, server.url)
    finally:
        fuse.unmount(tmp_path / "cfs")


@pytest.fixture
def mounted(shell: Shell) -> Shell:
    """The same with the server mounted at ~/cfs."""
    needs_fuse()
    shell.run("mkdir cfs && cfs mount cfs --background")
    return shell


def needs_fuse() -> None:
    """Skip the test where nothing can be mounted."""
    if reason := fuse.reason_to_skip():
        pytest.skip(reason)


ATTACHED = "grep -qm1 answers <(tail -F -n +1 agent.log 2>/dev/null)\n"
"""Waits until the agent that runs in the background is attached."""

IDLE = "while cfs ps | grep -q main1; do sleep 0.1; done\n"
"""Waits until the agents of a tree have read what was sent to them."""


@runs("docs/fibre.md", "serve", "steer")
def test_a_tree_is_led_from_outside(mounted: Shell) -> None:
    """The server is there already, and the mount is not at the root; what is finished cannot be resumed."""
    served = block("docs/fibre.md", "serve").removeprefix("cfs serve &\n").replace("/cfs/main", "~/cfs/main")
    served = served.replace("session main", "session main1").replace("cfs/main", "cfs/main1")
    served = served.replace("--temperature 0 & ", "--temperature 0 >agent.log 2>&1 & ")
    steered = re.sub(r"\bmain\b", "main1", block("docs/fibre.md", "steer")).replace("main1/coder", "main1/writer_1")
    steered = steered.replace("cfs agent resume", f"{IDLE}kill %1; wait %1 || true\n! cfs agent resume")
    shown = mounted.run(served.replace("echo 'Make", f"{ATTACHED}echo 'Make") + steered)
    assert "User: Make a.txt" in shown
    assert re.search(r"^main1 .*\n    budget: .*\n  writer_1 .*\n  writer_2 ", shown, re.MULTILINE)


@runs("docs/fibre.md", "files")
def test_the_files_of_a_tree_are_read_and_written(shell: Shell) -> None:
    """What agents have to do with them is in tests/agents/fibre/test_published.py."""
    shell.run(f"echo hello >a.txt; echo more >b.txt; curl -fsT a.txt {shell.url}/v1/files/workspaces/main/")
    shown = shell.run(block("docs/fibre.md", "files").replace("localhost:8000", shell.url))
    assert '"path":"/workspaces/main/a.txt"' in shown
    assert "hello" in shown
    assert '"path":"/workspaces/main/b.txt"' in shown


EVERYWHERE = "0.0.0.0"  # noqa: S104 - as the page says
TOKENS = "cfs token create root --grant / --tokens tokens.toml >root.txt\n"


@runs("docs/sessions.md", "backup")
def test_the_commands_of_backups_work(tmp_path: Path) -> None:
    with serving("--engine", "scripted", "--data-dir", str(tmp_path / "data")) as server:
        httpx.post(
            f"{server.url}/v1/sessions/chat/messages",
            params={"wait": "true"},
            content=b"hi",
            trust_env=False,
            timeout=60,
        )
        shown = Shell(tmp_path, server.url).run(block("docs/sessions.md", "backup"))
    assert shown.count("1 session") == 4
    assert (tmp_path / "another-folder/sessions.db").is_file()


@runs("docs/access.md", "serve")
def test_a_server_with_tokens_listens(tmp_path: Path) -> None:
    Shell(tmp_path).run(TOKENS)
    for line in block("docs/access.md", "serve").splitlines():
        command, flags = line.split("#")[0].split()[:2], line.split("#")[0].split()[2:]
        assert command == ["cfs", "serve"]
        flags[flags.index("tokens.toml")] = str(tmp_path / "tokens.toml")
        with serving("--engine", "scripted", *flags) as process:
            port = process.url.rpartition(":")[2]
            assert httpx.get(f"http://127.0.0.1:{port}/v1/sessions", trust_env=False, timeout=60).status_code == 401


@runs("docs/access.md", "file")
def test_the_file_of_tokens_has_this_form(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(block("docs/access.md", "file").replace("sha256:...", f"sha256:{'0' * 64}"))
    path.chmod(0o600)
    token = load(path)["alice"]
    assert (token.limits.sessions, token.grants[0].prefix) == (100, "/sessions/alice")


@runs("docs/agents.md", "commands")
def test_commands_of_the_file_agent(shell: Shell) -> None:
    """The task is finished, so the second has nothing to resume and says so."""
    cold = block("docs/agents.md", "commands").replace("--root DIR", "--root DIR --temperature 0")
    run, resume, chat = cold.splitlines()
    shell.run(f"{run}\n! {resume}\n{chat}\n")
    assert (shell.server / "DIR/workspace/notes.txt").read_text() == "hello"


@runs("docs/agents.md", "folder")
def test_an_agent_works_in_a_folder_of_the_user(shell: Shell) -> None:
    """Nothing but the file is there afterwards."""
    (shell.server / "project").mkdir()
    commands = block("docs/agents.md", "folder").replace("--workspace .", "--workspace . --temperature 0")
    assert shell.run(commands).endswith("hello")
    assert [path.name for path in (shell.server / "project").iterdir()] == ["notes.txt"]


@runs("docs/agents.md", "demo")
def test_the_demonstration_is_the_recorded_one() -> None:
    """tests/model/test_demonstrations.py plays it and compares."""
    assert block("docs/agents.md", "demo").strip() == (ROOT / "examples/agent-demo.txt").read_text().strip()


@runs("docs/api.md", "keys")
def test_a_repeated_message_is_one(shell: Shell) -> None:
    shown = shell.run(block("docs/api.md", "keys").replace("uuidgen", "cat /proc/sys/kernel/random/uuid"))
    assert len(set(re.findall(r'"turn":"(.+?)"', shown))) == 1
    assert shown.lower().count("idempotency-replayed: true") == 1


@runs("docs/api.md", "files")
def test_files_by_rest(shell: Shell) -> None:
    (shell.server / "plan.md").write_text("# Plan\n")
    shown = shell.run(block("docs/api.md", "files"))
    assert "# Plan\n" in shown
    assert '"/workspaces/main/notes/plan.md"' in shown


@runs("docs/api.md", "edit")
def test_a_transcript_is_edited(shell: Shell) -> None:
    """The version goes from the first answer into the second request."""
    shell.run("cfs send chat1 'My name is Alice.'")
    read, *write = block("docs/api.md", "edit").splitlines(keepends=True)
    version = re.search(r'^etag: (".+")\r?$', shell.run(read), re.MULTILINE | re.IGNORECASE)
    assert version
    (shell.server / "edited.txt").write_text("User: My name is Bob.\nAssistant: Hello, Bob!\n")
    shell.run("".join(write).replace('"..."', version[1]))
    assert shell.run("cfs cat chat1") == "User: My name is Bob.\nAssistant: Hello, Bob!\n"


@runs("docs/api.md", "error")
def test_an_error_looks_like_this(server: Process) -> None:
    found = httpx.get(f"{server.url}/v1/sessions/chat9", trust_env=False, timeout=60).json()
    assert json.loads(block("docs/api.md", "error")).items() <= found.items()


@runs("docs/context.md", "use")
def test_a_context_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in a coroutine of a program that has a model to sum up."""
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = block("docs/context.md", "use").splitlines()
    code = "\n".join(["async def use():", *(f"    {line}" for line in lines), "    return messages"])
    namespace: dict[str, Any] = {"Message": Message, "summarise": None}
    exec(compile(code, "docs/context.md", "exec"), namespace)  # noqa: S102 - it is our own page
    assert [message.content for message in asyncio.run(namespace["use"]())] == ["Tidy up the reports."]


@runs("docs/filesystem.md", "use")
def test_a_handle_is_used(tmp_path: Path) -> None:
    code = block("docs/filesystem.md", "use").replace('"/srv/work"', repr(str(tmp_path)))
    *lines, last = code.strip().splitlines()
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(lines), "docs/filesystem.md", "exec"), namespace)  # noqa: S102 - it is our own page
    expression, comment = last.split("#")
    assert eval(expression, namespace) == json.loads(comment)  # noqa: S307 - it is our own page


METHODS = ("_snapshot_impl", "_read_binary_impl", "_write_impl", "_delete_impl")
TEST_OF_MINE = """
import pytest
from cfs_filesystem import FileSystemBase, InMemoryFileSystem
from cfs_filesystem.testing import FileSystemConformance

{mine}
    def __init__(self):
        super().__init__()
        self.memory = InMemoryFileSystem()

{kit}
    empty_directories = moves_directories = False
"""


@runs("docs/filesystem.md", "mine", "kit")
def test_a_file_system_of_ones_own_needs_four_methods(tmp_path: Path) -> None:
    """With the methods that the page shows, each handed on to a file system in memory, the public kit passes."""
    mine = block("docs/filesystem.md", "mine")
    for name in METHODS:
        mine, count = re.subn(rf"(def {name}\(self, (.*)\):) \.\.\.", rf"\1 return self.memory.{name}(\2)", mine)
        assert count == 1
    module = tmp_path / "test_mine.py"
    module.write_text(TEST_OF_MINE.format(mine=mine, kit=block("docs/filesystem.md", "kit")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(module)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@runs("docs/fuse.md", "mount", "live", "settings")
def test_the_mount_of_its_page(shell: Shell) -> None:
    needs_fuse()
    mount, live, settings = (block("docs/fuse.md", name) for name in ("mount", "live", "settings"))
    unmount = "fusermount3 -u ~/cfs\n"
    shown = shell.run("".join([mount, live, "wait\n", settings, unmount] * 2))
    assert "User: My name is Alice.\nAssistant: " in shown
    assert 'user.cfs.temperature="0.2"' in shown


@runs("docs/sessions.md", "transcript", "calls")
def test_transcripts_look_like_this() -> None:
    """They are read and written back as they stand."""
    for name, roles in (("transcript", "user assistant"), ("calls", "user assistant tool assistant")):
        text = block("docs/sessions.md", name)
        assert [message.role for message in parse(text)] == roles.split()
        assert render(parse(text)) == text
