"""A question outlives the death of everything, and is answered once, wherever the answers come from (A5, F5, W3)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from cfs import api
from tests.agents.fibre.test_questions import asked, ready, run, serve, settled, workspace
from tests.client.terminal import cfs
from tests.fuse.support import mounting, reason_to_skip, unmount, until
from tests.server.restarting import Restarting


def test_everything_is_killed_and_of_many_answers_one_counts(tmp_path: Path) -> None:
    """Server, agent and mount get SIGKILL while a question is open; then mount, shell, WebDAV and REST answer."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with ExitStack() as stack:
        server = Restarting(tmp_path / "data", stack)
        ready(server.direct, "all", run("echo x >> log"))
        with (
            serve(server.process.url, "all", tmp_path) as agent,
            mounting(server.process.url, tmp_path / "first") as mount,
        ):
            question = asked(server.direct, "all")
            until((mount / ".questions" / "all" / question.id).exists)
            agent.process.kill()
            agent.process.wait()
            server.kill()
            mount.process.kill()
            mount.process.wait()
            unmount(mount.path)
        server.start()
        url, client = server.process.url, server.direct
        stack.enter_context(serve(url, "all", tmp_path))
        mount = stack.enter_context(mounting(url, tmp_path / "second"))
        path = mount / ".questions" / "all" / question.id
        until(path.exists)
        assert "  | echo x >> log\n" in path.read_text(encoding="utf-8")
        dav = f"{url}/dav/questions/all/{question.id}"
        rest = f"{url}/v1/sessions/all/questions/{question.id}"
        answers: list[Callable[[], bool]] = [
            lambda: mount.shell(f"echo allow > {path}").returncode == 0,
            lambda: cfs(url, "answer", "all", question.id, "allow").returncode == 0,
            lambda: httpx.put(dav, content=b"allow", trust_env=False, timeout=60).is_success,
            lambda: httpx.post(rest, json={"answer": "allow"}, trust_env=False, timeout=60).is_success,
        ]
        start = threading.Barrier(len(answers))

        def give(answer: Callable[[], bool]) -> bool:
            start.wait(60)
            return answer()

        with ThreadPoolExecutor(len(answers)) as pool:
            counted = list(pool.map(give, answers))
        assert counted.count(True) == 1
        assert "may or may not" not in settled(client, "all")
        assert (workspace(tmp_path, "all") / "log").read_text() == "x\n"
        detail = client.call(api.read("all"))
        assert [message.role for message in detail.history].count("tool") == 1
