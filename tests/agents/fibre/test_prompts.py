"""The system prompt of Fibre's agents (B6): each point, in both languages, and short enough for the embedded model."""

import json
from pathlib import Path
from typing import get_args

import pytest

from cfs.transports.async_http import AsyncClient
from cfs_agents.fibre.config import DEFAULT_FILE_TOOLS
from cfs_agents.fibre.prompts import CAPABILITIES, ROLE, fixed_part, system_prompt
from cfs_agents.fibre.report import Change, Report
from cfs_agents.fibre.tools import FibreTools
from cfs_agents.messages import Language
from cfs_agents.model import ServerCounter
from cfs_agents.tools import AsyncPersistentShell, CommandTools, FileTools, ShellSettings, Tool, agent_grants
from cfs_filesystem import InMemoryFileSystem
from tests.agents.fibre.trees import ScriptedModels, tree
from tests.server.support import Process

LANGUAGES: tuple[Language, ...] = get_args(Language)

POINTS = {
    "autonomous, orchestrates others at run time": (("autonomous agent", "orchestrate"), ("自主的智能体", "编排")),
    "creates and manages a team": (("create a team and manage it",), ("创建团队并管理它",)),
    "parallel what can be parallel": (("parallel what can be parallel",), ("能并行的就并行",)),
    "one workspace for all": (("you and all sub-agents share one workspace",), ("共享一个工作区",)),
    "a file is readable by the others at once": (("readable by all at once",), ("其他立刻能读",)),
    "coordinate, do not overwrite": (("never overwrite", "say who writes what"), ("不要覆盖", "说好谁写什么")),
    "names that do not collide": (("{agent_name}_{filename}",), ("{agent_name}_{filename}",)),
    "the name is unique": (("agent_name: unique",), ("agent_name：唯一",)),
    "the role is one line for one's own tracking": (("one line, for your own tracking",), ("一行，供你自己记录",)),
    "the instruction matters most and is the system prompt": (
        ("system_instruction: the most important", "the child's system prompt"),
        ("system_instruction：最重要", "成为子智能体的系统提示"),
    ),
    "it defines persona, limits, abilities": (("persona, limits, abilities",), ("角色、限制、能力",)),
    "with an example": (("you are a tester",), ("你是测试员",)),
    "the goal is the first message": (("task_goal: its first message",), ("task_goal：它的第一条消息",)),
    "limits": (("max_turns, timeout (seconds), budget (tokens)",), ("max_turns、timeout（秒）、budget（token）",)),
    "message an agent to correct it or give it more": (("correct an agent, or give it more",), ("纠正", "更多任务")),
    "wait for a report": (("sys_wait_agent(agent_id): wait",), ("sys_wait_agent(agent_id)：等待",)),
    "a sub-agent reports by finishing": (("sys_finish_task: a sub-agent reports",), ("sys_finish_task：子智能体报告",)),
    "status, summary, details": (("- status", "- summary", "- details"), ("- status", "- summary", "- details")),
    "details hold paths of files made, and logs": (('"created_files": [paths]', "logs"), ("created_files", "logs")),
    "locks": (("sys_lock_file(path)", "sys_unlock_file(path)"), ("sys_lock_file(path)", "sys_unlock_file(path)")),
    "contexts are isolated, only the report is seen": (("isolated", "only its report"), ("隔离", "只看到它的报告")),
    "work flow": (("spawn, wait for the report, check it, then accept it or send feedback",), ("创建，等报告，检查",)),
    "golden rule": (("conduct, do not play", "complex, delegate"), ("指挥，不要亲自演奏", "复杂就委派")),
}

GOAL = "make a.txt with X and b.txt with Y in parallel"
NOTES = {"current_time": "2026-11-22 20:10 UTC", "file_workspace": "/workspace", "file_permission": "read, write"}
INSTRUCTIONS = {"en": "You help with files.", "zh": "你帮助处理文件。"}


def text(language: Language, *, may_spawn: bool = True, notes: dict[str, str] | None = None) -> str:
    return system_prompt(language, INSTRUCTIONS[language], may_spawn=may_spawn, notes=NOTES if notes is None else notes)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("point", POINTS)
def test_the_fixed_part_makes_each_point(language: Language, point: str) -> None:
    said = fixed_part(language, may_spawn=True).lower()
    for words in POINTS[point][LANGUAGES.index(language)]:
        assert words.lower() in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_fixed_part_comes_first_then_notes_then_the_role(language: Language) -> None:
    prompt = text(language)
    assert prompt.startswith(f"{CAPABILITIES}\n{fixed_part(language, may_spawn=True)}\n")
    assert prompt.endswith(f"file_permission: read, write\n{ROLE}\n{INSTRUCTIONS[language]}")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_leaf_reads_nothing_of_spawning_but_all_of_reporting(language: Language) -> None:
    leaf = fixed_part(language, may_spawn=False)
    assert "sys_spawn_agent" not in leaf
    assert "sys_wait_agent" not in leaf
    for words in ("sys_finish_task", "created_files", "sys_lock_file", "{agent_name}_{filename}"):
        assert words in leaf


async def leading(folder: Path, **may: bool) -> list[Tool]:
    """The tools of Fibre."""
    async with tree(folder, ScriptedModels(main=[])) as agent:
        return FibreTools(agent._orchestrator, agent.agents["main"]).tools(**may)


async def test_each_tool_and_each_parameter_is_explained_in_both_languages(tmp_path: Path) -> None:
    for tool in await leading(tmp_path):
        for language in LANGUAGES:
            said = fixed_part(language, may_spawn=True)
            assert tool.name in said
            assert all(name in said for name in tool.arguments.schema["properties"])


def test_notes_are_one_line_each_and_bounded_and_empty_ones_are_left_out() -> None:
    prompt = text("en", notes={"parent_task": f"first\n{ROLE}\n" + "x" * 1_000, "available_agents": "  "})
    assert "available_agents" not in prompt
    assert prompt.count(f"\n{ROLE}\n") == 1
    assert len(prompt) < len(text("en", notes={})) + 300


class TestLength:
    """The embedded model reads 2,048 tokens, and the greater part has to be left for the task."""

    async def tokens(self, server: Process, words: str) -> int:
        async with AsyncClient(server.url) as client:
            return (await ServerCounter(client).count([words]))[0]

    @pytest.mark.parametrize("language", LANGUAGES)
    @pytest.mark.parametrize(("may_spawn", "most"), [(True, 1_120), (False, 720)])
    async def test_prompt_and_tools_leave_room(
        self, model_server: Process, tmp_path: Path, language: Language, may_spawn: bool, most: int
    ) -> None:
        handle = InMemoryFileSystem().create_handle(agent_grants())
        shell = AsyncPersistentShell(ShellSettings(directory=tmp_path))
        files = {
            each.name: each for each in [*FileTools(handle).tools(), *CommandTools(shell, tmp_path, handle).tools()]
        }
        leads = await leading(tmp_path / "tree", may_spawn=may_spawn, may_finish=not may_spawn)
        told = described([*leads, *(files[name] for name in DEFAULT_FILE_TOOLS)])
        assert await self.tokens(model_server, f"{text(language, may_spawn=may_spawn)}\n{told}") <= most

    @pytest.mark.parametrize("language", LANGUAGES)
    async def test_a_report_is_short(self, model_server: Process, language: Language) -> None:
        facts = (Change("a.txt", "created", "main/a_writer"),)
        report = Report("main/a_writer", "success", "Wrote a.txt.", facts=facts)
        assert await self.tokens(model_server, report.text(language)) <= 60


def described(tools: list[Tool]) -> str:
    """The tools as the embedded model's template tells them: their names, and those of their parameters."""
    lines = [json.dumps({"name": each.name, "parameters": [*each.arguments.schema["properties"]]}) for each in tools]
    return "\n".join(["Tools:", *lines])
