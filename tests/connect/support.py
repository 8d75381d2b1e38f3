"""What a newcomer's machine has: model servers, keys in the environment, files in the usual folders."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cfs_server.connect.providers import SERVICES
from tests.server.support import Process, run_cfs, serving
from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import KEY, MODEL, Message, Receive, Send, Stub, served_aside

OLLAMA_PORT = 11434
NOTHING = "http://127.0.0.1:9"
"""An address at which nothing listens."""


class OllamaStub(OpenAIStub):
    """Speaks Ollama's protocol, as far as it is not OpenAI's: the models in memory, and how much they take."""

    def __init__(self, *models: str, context: int = 8192) -> None:
        super().__init__(key=None, models=models or (MODEL, "nomic-embed-text"))
        self.context = context

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"] == "/api/ps":
            running = [{"name": name, "context_length": self.context} for name in self.models or ()]
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
            )
            await send({"type": "http.response.body", "body": json.dumps({"models": running}).encode()})
            return
        await super().__call__(scope, receive, send)

    def model(self, name: str) -> dict[str, Any]:
        """Its list does not say how long a context is."""
        return {"id": name, "object": "model", "created": 1, "owned_by": "library"}


@dataclass
class Machine:
    """A machine of a user: a home, and the variables of the shell."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        services = {name: "" for provider in SERVICES for name in (*provider.key_variables, "OPENAI_BASE_URL")}
        folders = {f"XDG_{name}_HOME": str(self.home / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
        others = {"LLAMA_CACHE": "", "HF_HOME": "", "HF_HUB_CACHE": "", "OLLAMA_MODELS": "", "OLLAMA_HOST": NOTHING}
        own = {"HOME": str(self.home), "CFS_CONNECTIONS": str(self.file)}
        self.env = {**services, **folders, **others, **own, **self.env}

    @property
    def file(self) -> Path:
        """The file of connected models."""
        return self.home / "config/cfs/models.toml"

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `cfs` to its end."""
        return run_cfs(*arguments, **self.env | env)

    def connect(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `cfs connect`, with success."""
        done = self.run("connect", *arguments, **env)
        assert done.returncode == 0, done.stderr
        return done

    def rows(self, *arguments: str, **env: str) -> dict[str, dict[str, Any]]:
        """Connect all that works; what was found, by name."""
        done = self.run("connect", "--json", *arguments, **env)
        return {row["name"]: row for row in json.loads(done.stdout)}

    @contextmanager
    def serving(self, *flags: str, **env: str) -> Iterator["Server"]:
        """Run a server of this user."""
        with serving(*flags, **self.env | env) as process:
            self.env["CFS_URL"] = process.url
            with httpx.Client(base_url=process.url, timeout=60, trust_env=False) as client:
                yield Server(process, client)


@dataclass(frozen=True)
class Server:
    """A server, and a client of it."""

    process: Process
    client: httpx.Client

    def names(self) -> list[str]:
        """The names of its models, the default first."""
        return [card["id"] for card in self.client.get("/v1/models").raise_for_status().json()["data"]]

    def connections(self) -> dict[str, Any]:
        """What it says of its file."""
        listed: dict[str, Any] = self.client.get("/v1/connections").raise_for_status().json()
        return listed

    def reply(self, session: str, text: str, **settings: Any) -> str:
        """Send a message and return the reply."""
        body = {"content": text, "settings": settings}
        answer = self.client.post(f"/v1/sessions/{session}/messages", params={"wait": "true"}, json=body)
        return str(answer.raise_for_status().json()["reply"])


@contextmanager
def ollama(machine: Machine, stub: Stub) -> Iterator[str]:
    """Serve a stub where Ollama is: at its usual port if that is free, else where its variable says."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(served_aside(stub, OLLAMA_PORT))
        except OSError:  # this machine has one
            url = stack.enter_context(served_aside(stub))
        machine.env["OLLAMA_HOST"] = url.removeprefix("http://").removesuffix("/v1")
        if url.endswith(f":{OLLAMA_PORT}/v1"):
            machine.env["OLLAMA_HOST"] = ""
        yield url


@contextmanager
def service(machine: Machine, key: str = KEY) -> Iterator[OpenAIStub]:
    """Serve a stub where OpenAI's clients look for their service, with a key in the environment."""
    stub = OpenAIStub()
    with served_aside(stub) as url:
        machine.env |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}
        yield stub


def copy_to(model: Path, *targets: Path) -> None:
    """Copy a file to some paths."""
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(model, target)
