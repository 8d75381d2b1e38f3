"""Coding agents as their makers ship them: installed once, into a folder outside of the repository.

A program that cannot be had skips its test, and says why: there is no npm, or no package index.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cfs-test-programs"
SECONDS = 480
"""The longest installation; those of npm take less than ten seconds."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and the packages in fixed versions that it is in."""

    name: str
    by: Literal["npm", "pip"]
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it is installed: the name has the versions."""
        return CACHE / "+".join(self.packages).replace("/", "_")

    @property
    def executables(self) -> Path:
        """The folder with its commands."""
        return self.folder / ("node_modules/.bin" if self.by == "npm" else "bin")

    def install(self) -> None:
        """Install it, unless that was done before. Skips the test if it cannot be had."""
        complete = self.folder / ".complete"
        with _locked(self.folder):
            if complete.exists():
                return
            for command in self._commands():
                _run(self.name, command)
            complete.touch()

    def _commands(self) -> Iterator[list[str]]:
        if self.by == "npm":
            if shutil.which("npm") is None:
                pytest.skip(f"{self.name} needs npm")
            yield ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.folder), *self.packages]
        else:
            yield [sys.executable, "-m", "venv", str(self.folder)]
            yield [str(self.folder / "bin/pip"), "install", "--quiet", *self.packages]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one of the test processes install a program, and the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name} was not installed within {SECONDS} seconds")
    if done.returncode:
        pytest.skip(f"{name} cannot be installed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]}")


CODEX = Program("Codex", "npm", ("@openai/codex@0.171.0",))
CLAUDE_CODE = Program("Claude Code", "npm", ("@anthropic-ai/claude-code@2.1.197",))
OPENCODE = Program("opencode", "npm", ("opencode-ai@1.18.33",))
QWEN_CODE = Program("qwen-code", "npm", ("@qwen-code/qwen-code@0.15.10",))
PI = Program("pi", "npm", ("@mariozechner/pi-coding-agent@0.73.1",))
AI_SDK = Program("AI SDK", "npm", ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4.6.7"))
OPENAI_AGENTS = Program("openai-agents", "pip", ("openai-agents==0.24.0",))
AIDER = Program("aider", "pip", ("aider-chat==0.86.2",))
MCP_SERVERS = Program(
    "MCP servers",
    "npm",
    tuple(
        f"@modelcontextprotocol/server-{name}@2026.8.31"
        for name in ("everything", "filesystem", "memory", "sequential-thinking")
    ),
)
MCP_CONFORMANCE = Program("MCP conformance", "npm", ("@modelcontextprotocol/conformance@0.1.16", "node@22.23.3"))
