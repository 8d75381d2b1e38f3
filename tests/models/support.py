"""`cfs serve --models` in front of stubs of upstreams, and the file that says so."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.server.support import TEXT, Process, serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, Stub, served_aside

KEY_VARIABLE = "CFS_TEST_UPSTREAM_KEY"


def table(name: str, **keys: Any) -> str:
    """Write one model of a file of models."""
    return "\n".join(["[[models]]", *(f"{key} = {_toml(value)}" for key, value in {"name": name, **keys}.items())])


def _toml(value: Any) -> str:
    """Write a value in TOML: other values are as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def upstream(name: str, url: str | list[Any], **keys: Any) -> str:
    """Write a model of stubs, which is quick to give up."""
    return table(name, upstream=url, **{"key_variable": KEY_VARIABLE, "retries": 1} | keys)


def models_file(folder: Path, *tables: str, default: str | None = None) -> Path:
    """Write a file of models."""
    file = folder / "models.toml"
    head = "" if default is None else f"default = {json.dumps(default)}\n"
    file.write_text(head + "\n".join(tables) + "\n")
    return file


@dataclass(frozen=True)
class Models:
    """A server with several models: its process, a client, and the stubs of its upstreams by the model's name."""

    process: Process
    client: httpx.Client
    stubs: dict[str, Stub]

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.process.url

    def say(self, session: str, text: str, **settings: Any) -> str:
        """Send a message and wait for the transcript."""
        body = {"content": text, "settings": settings}
        self.client.post(f"/v1/sessions/{session}/messages", json=body).raise_for_status()
        return self.text(session)

    def text(self, session: str) -> str:
        """Wait until a session is idle; return its transcript."""
        return self.client.get(f"/v1/sessions/{session}", params={"wait": 60}, headers=TEXT).text

    def choose(self, session: str, model: str | None) -> httpx.Response:
        """Set the model of a session."""
        return self.client.patch(f"/v1/sessions/{session}/settings", json={"model": model})

    def asked(self) -> dict[str, int]:
        """Count the turns that each upstream has got."""
        return {name: len(stub.bodies) for name, stub in self.stubs.items()}


@contextmanager
def models_server(
    folder: Path, *flags: str, tables: tuple[str, ...] = (), names: tuple[str, ...] = ("one", "two"), **env: str
) -> Iterator[Models]:
    """Run a server with a stub behind each of these models, after the models of other tables."""
    with ExitStack() as stack:
        stubs: dict[str, Stub] = {name: OpenAIStub() for name in names}
        mine = [upstream(name, stack.enter_context(served_aside(stub))) for name, stub in stubs.items()]
        file = models_file(folder, *tables, *mine)
        quick = ("--upstream-retry-pause", "0.01")
        process = stack.enter_context(serving("--models", str(file), *quick, *flags, **{KEY_VARIABLE: KEY} | env))
        client = stack.enter_context(httpx.Client(base_url=process.url, timeout=60, trust_env=False))
        yield Models(process, client, stubs)
