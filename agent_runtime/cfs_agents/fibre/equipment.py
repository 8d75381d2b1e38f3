"""What a strand is given for its work: its tools, its shell, its system prompt (B2, B6, B7)."""

from functools import partial
from typing import Any

from cfs_agents.fibre.config import FibreConfig
from cfs_agents.fibre.guards.guards import Guards
from cfs_agents.fibre.prompts import system_prompt
from cfs_agents.fibre.strand import FibreSubAgent
from cfs_agents.fibre.toolset import Conductor, FibreTools
from cfs_agents.tools import (
    AsyncShell,
    CommandMode,
    CommandRequest,
    CommandTools,
    Consent,
    FileTools,
    Sandbox,
    ShellSettings,
    Tool,
    Warden,
    tool,
    usual_limits,
)
from cfs_agents.tools.paths import WORKSPACE


def equipment(
    strand: FibreSubAgent,
    config: FibreConfig,
    guards: Guards,
    conductor: Conductor,
    warden: Warden,
    consent: Consent | None,
) -> tuple[list[Tool], AsyncShell | None]:
    """Make a strand's tools, and the shell that one of them uses; all files go through the guards' gate.

    With `consent` it is required before each command.
    """
    files = strand.context.files
    given = FibreTools(conductor).tools(may_spawn=leads(strand, config), may_finish=not strand.is_root)
    wanted: list[Tool] = FileTools(files, guards.gate(strand.agent_id)).tools()
    shell = None
    if config.commands is not CommandMode.NONE:
        shell = AsyncShell(_shell_settings(strand, config, warden))
        workspace = strand.context.agent_workspace
        require = partial(_require, strand, consent) if consent is not None else None
        commands = CommandTools(shell, workspace.parent, files, workspace=workspace, require=require).tools()
        wanted += [guards.watched(each, strand.agent_id) for each in commands]
    given += [each for each in wanted if each.name in config.file_tools]
    more = [each if isinstance(each, Tool) else tool()(each) for each in config.tools]
    return [*given, *more], shell


def system_text(strand: FibreSubAgent, config: FibreConfig) -> str:
    """Write a strand's system prompt: what it has of its session's system context stands in it, a line each."""
    notes = {"agent_name": strand.record.agent_name}
    for key, value in strand.context.system_context.items():
        notes[key] = _text(value)
    instruction = strand.record.system_instruction
    may_spawn = leads(strand, config)
    return system_prompt(config.language, instruction, may_spawn=may_spawn, notes=notes, common=config.common)


def leads(strand: FibreSubAgent, config: FibreConfig) -> bool:
    """Whether a strand may have children."""
    return strand.record.depth < config.max_depth


async def _require(strand: FibreSubAgent, consent: Consent, request: CommandRequest) -> None:
    async with strand.time_stopped():
        await consent.require(strand.agent_id, request)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shell_settings(strand: FibreSubAgent, config: FibreConfig, warden: Warden) -> ShellSettings:
    workspace = strand.context.agent_workspace
    box = (
        Sandbox(writable=(workspace,), places={WORKSPACE: workspace}) if config.commands is CommandMode.BWRAP else None
    )
    return ShellSettings(
        directory=workspace, sandbox=box, limits=usual_limits(), keep_variables=config.keep_variables, warden=warden
    )
