"""The system prompt of Fibre's agents (B6): each rule, in both languages and both forms; and how long it is."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from cfs.transports.async_http import AsyncClient
from cfs_agents.base.messages import LANGUAGES, Language
from cfs_agents.guards.report import ChangedFile, Report
from cfs_agents.loop.model import SMALL_CONTEXT
from cfs_agents.loop.server_model import ServerCounter, ServerModel
from cfs_agents.main.testing import says
from cfs_agents.tools import AsyncPersistentShell, CommandTools, FileTools, ShellSettings, Tool, agent_grants
from cfs_agents.tree.config import DEFAULT_FILE_TOOLS
from cfs_agents.tree.fibre_rules import PromptForm, form_for, full_part, short_part
from cfs_agents.tree.fibre_tools import FibreTools
from cfs_agents.tree.prompts import CAPABILITIES, ROLE, fibre_prompt
from cfs_filesystem import InMemoryFileSystem
from tests.agents.fibre.trees import ScriptedModels, finish, spawn, tree, wait
from tests.server.support import Process

FORMS: tuple[PromptForm, ...] = get_args(PromptForm)

POINTS = {
    "autonomous, orchestrates others at run time": (("autonomous agent", "orchestrate"), ("自主的智能体", "编排")),
    "creates and manages a team": (("create a team", "manage it"), ("创建", "团队", "管理它")),
    "parallel what can be parallel": (("parallel",), ("能并行的",)),
    "one workspace for all": (("you and all sub-agents", "share"), ("共享", "工作区")),
    "a file is readable by the others at once": (("by all", "at once"), ("其他", "立刻能读")),
    "coordinate, do not overwrite": (("never overwrite",), ("覆盖", "说好谁写")),
    "names that do not collide": (("{agent_name}_{filename}",), ("{agent_name}_{filename}",)),
    "the name is unique": (("agent_name:", "unique"), ("agent_name：", "唯一的名字")),
    "the role is one line for one's own tracking": (
        ("role_description: one line", "your own tracking"),
        ("role_description：一行", "供你自己记录"),
    ),
    "the instruction matters most and is the system prompt": (
        ("system_instruction: the most important", "system prompt"),
        ("system_instruction：最重要", "成为子智能体的系统提示"),
    ),
    "it defines persona, limits, abilities": (("persona", "limits", "abilities"), ("角色", "限制", "能力")),
    "with an example": (("you are a ", "tester"), ("你是", "测试员")),
    "the goal is the first message": (("task_goal:", "first message"), ("task_goal：", "第一条消息")),
    "limits": (
        ("max_turns", "timeout", "seconds", "budget", "tokens"),
        ("max_turns", "timeout", "秒", "budget", "token"),
    ),
    "message an agent to correct it or give it more": (("sys_send_message", "correct", "more"), ("纠正", "更多任务")),
    "wait for a report": (("sys_wait_agent", "wait"), ("sys_wait_agent", "等待")),
    "a sub-agent reports by finishing": (("sys_finish_task", "report"), ("sys_finish_task", "报告")),
    "status, summary, details": (("- status", "- summary", "- details"), ("- status", "- summary", "- details")),
    "details hold paths of files made, and logs": (('"created_files": [paths]', "logs"), ("created_files", "logs")),
    "locks": (("sys_lock_file", "sys_unlock_file"), ("sys_lock_file", "sys_unlock_file")),
    "contexts are isolated, only the report is seen": (("isolated", "only its report"), ("隔离", "只看到它的报告")),
    "work flow": (
        ("spawn", "wait for the report", "check", "accept", "send feedback"),
        ("创建", "报告", "检查", "接受", "意见"),
    ),
    "golden rule": (("golden rule: conduct", "play", "complex, delegate"), ("黄金法则：指挥", "演奏", "复杂就委派")),
}

GOAL = "make a.txt with X and b.txt with Y in parallel"
NOTES = {"current_time": "2026-11-22 20:10 UTC", "file_workspace": "/workspace", "file_permission": "read, write"}
INSTRUCTIONS = {"en": "You help with files.", "zh": "你帮助处理文件。"}


def text(
    language: Language, *, may_spawn: bool = True, notes: dict[str, str] | None = None, form: PromptForm = "short"
) -> str:
    notes = NOTES if notes is None else notes
    return fibre_prompt(language, INSTRUCTIONS[language], may_spawn=may_spawn, notes=notes, form=form)


def fixed(language: Language, form: PromptForm) -> str:
    return full_part(language) if form == "full" else short_part(language, may_spawn=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("point", POINTS)
def test_the_fixed_part_makes_each_point(language: Language, point: str, form: PromptForm) -> None:
    said = fixed(language, form).lower()
    for words in POINTS[point][LANGUAGES.index(language)]:
        assert words.lower() in said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_fixed_part_comes_first_then_notes_then_the_role(language: Language, form: PromptForm) -> None:
    prompt = text(language, form=form)
    assert prompt.startswith(f"{CAPABILITIES}\n{fixed(language, form)}\n")
    assert prompt.endswith(f"file_permission: read, write\n{ROLE}\n{INSTRUCTIONS[language]}")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_leaf_reads_nothing_of_spawning_in_the_short_form_but_all_of_reporting(language: Language) -> None:
    leaf = short_part(language, may_spawn=False)
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
            for form in FORMS:
                said = fixed(language, form)
                assert tool.name in said
                explained = tool.arguments.schema["properties"].keys() - tool.contexts.keys()
                assert all(name in said for name in explained)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_full_form_begins_alike_for_all_agents_of_a_tree(tmp_path: Path, language: Language) -> None:
    """So that a server computes it once: for the root, for an agent in the middle, and for one of the last level."""
    scripted = ScriptedModels(
        main=[spawn("a"), wait("a"), says("ok")], a=[spawn("b"), wait("b"), finish()], b=[finish()]
    )
    async with tree(tmp_path, scripted, language=language) as agent:
        await agent.run("go")
    for model in scripted.models.values():
        system = model.asked[0].messages[0].content
        assert system.startswith(f"{CAPABILITIES}\n{full_part(language)}\nagent_name: ")


def test_a_small_context_gets_the_short_form() -> None:
    forms = [form_for(window) for window in (None, 2_048, SMALL_CONTEXT - 1, SMALL_CONTEXT, 128_000)]
    assert forms == ["full", "short", "short", "full", "full"]


class WithWindow:
    """A model that reads so many tokens."""

    def __init__(self, model: Any, window: int | None) -> None:
        self._model = model
        self._window = window

    async def context_window(self) -> int | None:
        return self._window

    def stream(self, messages: Any, tools: Any = ()) -> Any:
        return self._model.stream(messages, tools)


@pytest.mark.parametrize(
    ("window", "chosen", "form"),
    [
        (2_048, None, "short"),
        (32_768, None, "full"),
        (None, None, "full"),
        (2_048, "full", "full"),
        (None, "short", "short"),
    ],
)
async def test_the_form_follows_the_model_unless_it_is_configured(
    tmp_path: Path, window: int | None, chosen: PromptForm | None, form: PromptForm
) -> None:
    scripted = ScriptedModels(main=[says("ok")])
    async with tree(tmp_path, lambda name: WithWindow(scripted(name), window), prompt=chosen) as agent:
        await agent.run("go")
    system = scripted.models["main"].asked[0].messages[0].content
    assert system.startswith(f"{CAPABILITIES}\n{fixed('en', form)}\n")


async def test_a_server_says_how_much_its_model_reads(model_server: Process) -> None:
    """The embedded model gets the words that it was trained on."""
    async with AsyncClient(model_server.url) as client:
        window = await ServerModel(client).context_window()
    assert window is not None
    assert form_for(window) == "short"


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

    @pytest.mark.parametrize(("language", "most"), [("en", 1_650), ("zh", 1_350)])
    async def test_the_full_form_is_not_long(self, model_server: Process, language: Language, most: int) -> None:
        assert await self.tokens(model_server, full_part(language)) <= most

    @pytest.mark.parametrize("language", LANGUAGES)
    async def test_a_report_is_short(self, model_server: Process, language: Language) -> None:
        facts = (ChangedFile("a.txt", "created", "main/a_writer"),)
        report = Report("main/a_writer", "success", "Wrote a.txt.", facts=facts)
        assert await self.tokens(model_server, report.text(language)) <= 60


def described(tools: list[Tool]) -> str:
    """The tools as the embedded model's template tells them: their names, and those of their parameters."""
    lines = [json.dumps({"name": each.name, "parameters": [*each.arguments.schema["properties"]]}) for each in tools]
    return "\n".join(["Tools:", *lines])
