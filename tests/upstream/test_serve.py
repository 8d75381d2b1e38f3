"""`cfs serve --upstream`: a real server with a real upstream, and what happens when that is not well (E2, E4)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from cfs_server.config.settings import ConfigurationError, ServerSettings
from cfs_server.connect.engines import KEY_VARIABLE, make_engine, read_key
from cfs_server.main.checks import _upstream
from tests.server.support import Process, run_cfs, serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.process import upstream
from tests.upstream.stub import KEY, MODEL, Refusal, Speech, Stub, served_aside
from tests.upstream.support import STUBS

TEXT = {"Accept": "text/plain"}
QUICK = ("--upstream-retries", "1", "--upstream-retry-pause", "0.01")


@contextmanager
def in_front_of(stub: Stub, *flags: str, **env: str) -> Iterator[tuple[Process, httpx.Client]]:
    """Run `cfs serve` before a stub, with the right key."""
    with (
        served_aside(stub) as url,
        serving("--upstream", url, *QUICK, *flags, **{KEY_VARIABLE: KEY} | env) as process,
        httpx.Client(base_url=process.url, timeout=30, trust_env=False) as client,
    ):
        yield process, client


def say(client: httpx.Client, text: str) -> str:
    """Send a message and wait for the transcript."""
    client.post("/v1/sessions/chat/messages", content=text.encode()).raise_for_status()
    return client.get("/v1/sessions/chat", params={"wait": 30}, headers=TEXT).text


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_session_is_answered_by_the_upstream(kind: str) -> None:
    stub = STUBS[kind]()  # type: ignore[index]
    with in_front_of(stub, "--upstream-kind", kind, "--upstream-model", MODEL) as (process, client):
        sent = run_cfs("send", "chat", "hello there", CFS_URL=process.url)
        assert (sent.returncode, sent.stdout.strip()) == (0, "hello there")
        assert say(client, "and again") == (
            "User: hello there\nAssistant: hello there\nUser: and again\nAssistant: and again\n"
        )
        ready = client.get("/readyz").json()
        assert (ready["status"], ready["model"]["name"], ready["model"]["context_tokens"]) == ("ready", MODEL, 4096)
        assert "cfs_engine_tokens_generated_total 4.0" in client.get("/metrics").text
        assert stub.refused == []


def test_a_reply_beyond_the_limit_fails_its_turn() -> None:
    """The flag counts, and the session goes on."""
    flood = 'data: {"choices": [{"index": 0, "delta": {"content": "and on "}}]}\n\n'
    stub = STUBS["openai"](Speech(words=["on "], cut=2, how="flood", flood=flood))
    with in_front_of(stub, "--max-reply-bytes", "1000") as (_, client):
        text = say(client, "hello")
        assert text.endswith("Assistant: [Error: the upstream's reply has more than 1000 bytes (--max-reply-bytes)]\n")
        assert say(client, "and again").endswith("User: and again\nAssistant: and again\n")


def test_an_upstream_that_is_killed_fails_its_turn_and_answers_again_when_it_is_back() -> None:
    """S5: the session goes idle and later turns work."""
    with upstream("openai") as (first, url):
        port = int(url.split(":")[2].split("/")[0])
        flags = ("--upstream", url, "--upstream-model", MODEL, *QUICK)
        with (
            serving(*flags, CFS_UPSTREAM_KEY=KEY) as process,
            httpx.Client(base_url=process.url, timeout=30, trust_env=False) as client,
        ):
            client.patch("/v1/sessions/chat/settings", json={"max_tokens": 100_000})
            client.post("/v1/sessions/chat/messages", content=b"endless").raise_for_status()
            with client.stream("GET", "/v1/sessions/chat/events", params={"after": 0}) as events:
                next(line for line in events.iter_lines() if line == "event: token")
            first.kill()
            killed = client.get("/v1/sessions/chat", params={"wait": 30}, headers=TEXT).text
            assert killed == "User: endless\nAssistant: [Error: the connection to the upstream was lost]\n"
            gone = say(client, "anybody?")
            assert gone.startswith(killed + "User: anybody?\nAssistant: [Error: the upstream cannot be reached: ")
            assert client.get("/readyz").status_code == 503
            with upstream("openai", port):
                assert say(client, "welcome back") == f"{gone}User: welcome back\nAssistant: welcome back\n"
                assert client.get("/readyz").status_code == 200


def test_the_key_is_told_to_nobody_but_the_upstream() -> None:
    """Not even when the upstream says it aloud, and the log is as talkative as it can be."""
    echo = Refusal(401, "invalid_api_key", f"the key {KEY} is not good", extra={"code": KEY})
    with in_front_of(OpenAIStub(echo, echo), "--log-level", "debug") as (process, client):
        transcript = say(client, "hello")
        assert "the upstream refuses the key that this server has for it: the key *** is not good" in transcript
        failed = client.post("/v1/sessions/chat/messages", content=b"hello", params={"wait": "true"}).text
        seen = [client.get(path).text for path in ("/readyz", "/metrics", "/v1/sessions/chat")]
        process.signal()
        _, log = process.ended()
        assert "upstream" in log
        assert all(KEY not in text for text in (transcript, failed, log, *seen))


def refused(*flags: str, **env: str) -> str:
    """The one line with which `cfs serve` ends, log lines left out."""
    ended = run_cfs("serve", "--port", "0", *QUICK, *flags, **env)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("20")]
    assert (ended.returncode, ended.stdout, len(lines)) == (2, "", 1), ended.stderr
    assert KEY not in ended.stderr
    return lines[0]


def test_what_is_wrong_at_the_start_is_told_in_one_line_before_anything_listens() -> None:
    with served_aside(OpenAIStub()) as url:
        assert refused("--upstream", url, CFS_UPSTREAM_KEY="wrong").startswith(
            f"cfs: upstream {url}: the upstream refuses"
        )


def test_an_upstream_need_not_be_there_at_the_start_if_it_is_not_asked() -> None:
    flags = ("--upstream", "http://127.0.0.1:9", "--no-upstream-check", "--upstream-model", "m")
    with serving(*flags, *QUICK) as process, httpx.Client(base_url=process.url, trust_env=False, timeout=60) as client:
        assert client.get("/readyz").json()["model"]["name"] == "m"
        assert "cannot be reached" in say(client, "hello")
    assert "--upstream-model" in refused("--upstream", "127.0.0.1:9", "--no-upstream-check")


def test_the_key_comes_from_a_file_or_the_environment_and_never_from_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(f" {KEY}\n")
    monkeypatch.setenv(KEY_VARIABLE, "another")
    found = read_key(file)
    assert found is not None
    assert found.get_secret_value() == KEY
    assert KEY not in repr(found)
    other = read_key(None)
    assert other is not None
    assert other.get_secret_value() == "another"
    monkeypatch.setenv(KEY_VARIABLE, "")
    assert read_key(None) is None
    with served_aside(OpenAIStub()) as url, serving("--upstream", url, "--upstream-key-file", str(file)) as process:
        assert httpx.get(f"{process.url}/readyz", timeout=60).status_code == 200
    assert "No such option" in run_cfs("serve", "--upstream-key", KEY).stderr


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_a_file_without_a_key_is_told_without_showing_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="key") as told:
        read_key(file)
    assert "words" not in str(told.value)
    with pytest.raises(ConfigurationError, match="no such file"):
        read_key(tmp_path / "missing")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "x.gguf"}, "combined with --model or --engine"),
        ({"engine": "scripted"}, "combined with --model or --engine"),
        ({"upstream": "ftp://llm.example"}, "no URL of an upstream"),
        ({"upstream_sampling": "colour"}, "'colour'"),
        ({"upstream_thinking_tokens": 2048}, "kind openai take no thinking budget"),
        ({"upstream_thinking_tokens": 5, "upstream_kind": "anthropic"}, "at least 1024"),
    ],
)
def test_settings_that_cannot_be_used_together_are_told(changes: dict[str, object], told: str) -> None:
    settings = ServerSettings.model_validate({"upstream": "http://127.0.0.1:9"} | changes)
    with pytest.raises(ConfigurationError, match=told):
        make_engine(settings)


def test_the_doctor_asks_a_configured_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    with served_aside(OpenAIStub()) as url:
        examined = run_cfs("doctor", "--json", CFS_UPSTREAM=url, CFS_UPSTREAM_KEY=KEY, CFS_PORT="0")
        (check,) = [each for each in json.loads(examined.stdout)["checks"] if each["name"] == "upstream"]
        assert (check["status"], check["found"]) == ("ok", f"{url} has {MODEL}, context of 4096 tokens")
        monkeypatch.setenv(KEY_VARIABLE, "wrong")
        told = _upstream(ServerSettings(upstream=url, upstream_check=False))
        assert (told.status, "refuses the key" in told.found, "CFS_UPSTREAM" in told.advice) == ("error", True, True)
        told = _upstream(ServerSettings(upstream="ftp://llm.example"))
        assert (told.status, "no URL" in told.found) == ("error", True)
