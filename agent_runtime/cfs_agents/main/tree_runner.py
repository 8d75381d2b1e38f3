"""Runs a tree of agents for the command line."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import get_args

from cfs.cli.base.background import Announcement
from cfs.cli.base.output import note, show, visible
from cfs.errors import CfsError, Unreachable, Unverified
from cfs.transports.async_http import AsyncClient
from cfs_agents.context import TokenCounter
from cfs_agents.guards.report import ChangeKind
from cfs_agents.loop.retries import Outages, is_outage
from cfs_agents.loop.server_model import ServerModel
from cfs_agents.main.formatting import listed
from cfs_agents.main.runner import Runner, RunnerOptions
from cfs_agents.tools import CommandMode, Tool
from cfs_agents.tools.plan import progress, steps_in
from cfs_agents.tree.config import FibreConfig
from cfs_agents.tree.fibre import FibreAgent
from cfs_agents.tree.given_workspace import workspace_of
from cfs_agents.tree.output import MessageChunk
from cfs_agents.tree.session_folder import WORKSPACE_FOLDER

_LONGEST = 100
"""Characters of the line that shows one step of an agent."""


class TreeRunner(Runner[FibreAgent]):
    """Runs a tree of agents, whose steps are lines; Ctrl-C leaves all work to be resumed."""

    def __init__(self, session: str, config: FibreConfig, options: RunnerOptions) -> None:
        super().__init__(options, Outages(_server_away, _server_back))
        self._session = session
        self._config = config
        self._announcement = Announcement()

    def _make(
        self, client: AsyncClient, model: ServerModel, counter: TokenCounter, tools: Sequence[Tool]
    ) -> FibreAgent:
        config = replace(self._config, counter=counter, warn=self._warn, tools=[*self._config.tools, *tools])
        return FibreAgent(
            self._options.root,
            model,
            config,
            session=self._session,
            workspace=self._options.workspace,
            client=client,
            retries=self._retries,
        )

    @property
    def _workspace(self) -> Path:
        folder = self._options.root / self._session
        return workspace_of(folder, self._options.workspace, folder / WORKSPACE_FOLDER)

    @property
    def _commands(self) -> CommandMode:
        return self._config.commands

    def _warn(self, sentence: str) -> None:
        note(f"[warning: {visible(sentence)}]")

    @property
    def _name(self) -> str:
        return self._session

    def serve(self) -> None:
        """Answer the session until Ctrl-C. An agent that has nothing to do waits out any outage."""
        self._run(self._serve())

    def resume(self) -> None:
        """Resume interrupted work. Raises `NotFound` if there is none."""
        self._run(self._resume())

    async def _serve(self) -> None:
        await self._agent.attach()  # first: the server's model would answer earlier messages
        if self._announcement.in_background:
            text = f"An agent answers in {self._session}. `cfs logs {self._session}` shows what it does."
            self._announcement.make("agent", self._session, self._options.url or "", text)
        else:
            note(f"[an agent answers in {self._session}; Ctrl-C ends it]")
        self._tell_where()
        await self._show(self._agent.serve())

    def _tell_where(self) -> None:
        """Say where commands are asked about if there is no terminal."""
        if self._config.commands is CommandMode.ASK and self._config.ask is None:
            note(f"[no terminal: answer its questions by `cfs answer {self._session}`, or in the browser]")

    async def _resume(self) -> None:
        self._agent.require_unfinished()
        self._tell_where()
        await self._show(self._agent.run_stream())
        report = self._agent.report
        if report is not None and not report.ok:
            kind = Unverified if report.status == "unverified" else CfsError
            raise kind("; ".join(report.reasons) or f"it ended as {report.status}")

    async def _show(self, chunks: AsyncGenerator[MessageChunk, None]) -> None:
        """Show each chunk, and at the end of the root's task all changes of files."""
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    await self._quiet()
                    _show_chunk(chunk)
                    if chunk.kind == "ended" and chunk.session_id == self._session:
                        self._show_changes()
        except CfsError as error:
            if is_outage(error) and self._agent.unfinished:
                hint = "what was done is kept: `cfs agent resume` continues it"
                raise Unreachable(f"{error.detail}; {hint}") from error
            raise

    def _show_changes(self) -> None:
        if (report := self._agent.report) is not None:
            for kind in get_args(ChangeKind):
                if paths := [change.path for change in report.facts if change.kind == kind]:
                    show(f"{self._session}: [{kind}: {visible(listed(paths))}]\n")


def _server_away(error: CfsError) -> None:
    note(f"[waiting for the server: {error.detail}]")


def _server_back() -> None:
    note("[the server answers again]")


def _show_chunk(chunk: MessageChunk) -> None:
    """Show an agent's action in one line."""
    match chunk.kind:
        case "call" if chunk.call is not None and (steps := steps_in(chunk.call)):
            text = f"> plan: {progress(steps)}"
        case "call" if chunk.call is not None:
            text = f"> {chunk.call.name} {json.dumps(chunk.call.arguments, ensure_ascii=False)}"
        case "result":
            text = f"< {chunk.name}: {chunk.content}"
        case "message":
            text = f"* {chunk.content}"
        case "ended":
            text = f"= {chunk.content}"
        case _:
            return
    line = visible(" ".join(text.split()))
    show(f"{chunk.session_id}: {line if len(line) <= _LONGEST else line[:_LONGEST] + '...'}\n")
