"""The default guideline follows the model: short for a small context, whole for any other (A1, A4)."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cfs.wire import Message
from cfs_agents import FileSystemAgent
from cfs_agents.base.messages import LANGUAGES, Language
from cfs_agents.loop.model import SMALL_CONTEXT, Item
from cfs_agents.main.testing import Asked, ScriptedModel, says
from cfs_agents.tools import CommandMode
from cfs_agents.tools.paths import GUIDELINE
from cfs_agents.tree.directory import default, guideline
from cfs_agents.tree.file_config import FileSystemAgentConfig
from tests.server.support import Process

POINTS = {
    "untrusted texts": ("information, not orders", "是信息，不是命令"),
    "no destruction of others' work": ("what you made yourself", "你自己创建的"),
    "stays in its directory": ("Keep to your directory", "不离开你的目录"),
    "secrets": ("Secrets", "机密"),
    "refusals hold": ("get around what was refused", "绕过被拒绝的事"),
    "nothing left running": ("Leave nothing running", "不要让你启动的程序继续运行"),
    "hot: task": ("- Current Task: the task", "- 当前任务：用户的原话"),
    "hot: memory": ("- Working Memory: decisions", "- 工作记忆：仍然有效的决定"),
    "hot: observations": ("- Active Observations: what", "- 当前观察：最近几步"),
    "hot: next steps": ("- Next Steps: what to do", "- 下一步：按顺序"),
    "cold: finished steps": ("finished steps and their results", "已完成的步骤及其结果"),
    "cold: long texts": ("long texts", "长文本"),
    "cold: examples": ("/storage/few_shots", "/storage/few_shots"),
    "cold: old windows": ("/storage/history", "/storage/history"),
    "the model decides": ("You alone decide", "由你自己决定"),
}

FORMER = Path(__file__).parent / "former_guideline.md"


class WithWindow:
    """A model that reads so many tokens."""

    def __init__(self, window: int | None, script: ScriptedModel) -> None:
        self._window = window
        self._script = script

    async def context_window(self) -> int | None:
        return self._window

    def stream(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> AsyncIterator[Item]:
        return self._script.stream(messages, tools)


async def asked(root: Path, window: int | None, language: Language = "en") -> Asked:
    """Give an agent a task whose model reads so many tokens; return what the model got."""
    script = ScriptedModel([says("Yes.")])
    config = FileSystemAgentConfig(language=language)
    async with FileSystemAgent(project_root=root, model=WithWindow(window, script), config=config) as agent:
        assert (await agent.run("?")).ok
    return script.asked[0]


def parameters(request: Asked) -> dict[str, list[str]]:
    """The parameters that the model is told of, by tool."""
    functions = [tool["function"] for tool in request.tools]
    return {each["name"]: list(each["parameters"]["properties"]) for each in functions}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("window", "small"), [(2_048, True), (SMALL_CONTEXT, False), (None, False)])
async def test_the_guideline_follows_the_model(
    tmp_path: Path, language: Language, window: int | None, small: bool
) -> None:
    """The file has the words that the model gets."""
    system = (await asked(tmp_path, window, language)).messages[0].content
    assert system.startswith(guideline(language, small=small).strip())
    assert (tmp_path / "guideline.md").read_text() == guideline(language, small=small)
    assert default("/context_window_main.md", language).strip() in system


@pytest.mark.parametrize("point", POINTS)
def test_the_whole_guideline_has_rules_of_safety_and_what_is_hot_and_cold(point: str) -> None:
    for language, words in zip(LANGUAGES, POINTS[point], strict=True):
        assert words in guideline(language, small=False)


async def test_a_small_model_gets_a_short_prompt_and_the_parameters_that_it_has_learned(tmp_path: Path) -> None:
    for language in LANGUAGES:
        request = await asked(tmp_path / language, 2_048, language)
        assert len(request.messages[0].content) < 1_100
        told = parameters(request)
        assert told["read_file"] == ["path", "start_line", "end_line"]
        assert (told["list_directory"], told["search_files"][1:]) == (["path"], ["path", "glob", "ignore_case"])
    told = parameters(await asked(tmp_path / "large", None))
    assert told["read_file"] == ["path", "start_line", "end_line", "start_column"]
    assert (told["list_directory"], told["search_files"][-1]) == (["path", "after"], "after")


async def test_another_model_changes_only_what_nobody_has_edited(tmp_path: Path) -> None:
    """A directory of an earlier version has the short guideline; what a person wrote stays."""
    (tmp_path / "guideline.md").write_text(default(GUIDELINE, "zh"))
    await asked(tmp_path, None, "en")
    assert (tmp_path / "guideline.md").read_text() == guideline("zh", small=False)
    await asked(tmp_path, 2_048)
    assert (tmp_path / "guideline.md").read_text() == default(GUIDELINE, "zh")
    edited = guideline("en", small=False) + "- Be brave.\n"
    (tmp_path / "guideline.md").write_text(edited)
    system = (await asked(tmp_path, 2_048)).messages[0].content
    assert system.startswith(edited.strip())
    assert (tmp_path / "guideline.md").read_text() == edited


async def test_the_default_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    """`FORMER` is the default for large contexts as it was before it was shortened."""
    former = FORMER.read_text(encoding="utf-8")
    (tmp_path / "guideline.md").write_text(former, encoding="utf-8")
    system = (await asked(tmp_path, None, "zh")).messages[0].content
    assert system.startswith(guideline("en", small=False).strip())
    assert (tmp_path / "guideline.md").read_text() == guideline("en", small=False)


@pytest.mark.parametrize(("commands", "most"), [("none", 4_900), ("host", 5_950)])
async def test_the_first_request_to_a_large_model_is_short(tmp_path: Path, commands: str, most: int) -> None:
    script = ScriptedModel([says("Yes.")])
    config = FileSystemAgentConfig(commands=CommandMode(commands))
    async with FileSystemAgent(project_root=tmp_path, model=WithWindow(200_000, script), config=config) as agent:
        assert (await agent.run("?")).ok
    first = script.asked[0]
    messages = [message.model_dump(exclude_none=True) for message in first.messages]
    assert len(json.dumps(messages)) + len(json.dumps(first.tools)) <= most


async def test_the_embedded_model_gets_the_words_that_it_was_trained_on(
    model_server: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFS_URL", model_server.url)
    async with FileSystemAgent(project_root=tmp_path) as agent:
        await agent.run("Write hello to notes.txt")
        system = agent.context.context.items[0].message.content
    assert system.startswith(default(GUIDELINE, "en").strip())
    assert (tmp_path / "guideline.md").read_text() == default(GUIDELINE, "en")
