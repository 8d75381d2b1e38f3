"""Long results of a sub-agent go to files that its tools can read, and stay whole in its `messages.json` (O1, O2)."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from cfs_agents.main.testing import calls, says
from tests.agents.fibre.trees import Script, ScriptedModels, finish, late, messages, spawn, tree, wait

LINES = [f"{number}: the quick brown fox" for number in range(1500)]
PLACE = "/workspace/.cfs/offloaded/a/tool_result/read_file/call_1"
READS: Script = [
    calls("read_file", path="big.txt"),
    calls("list_directory"),  # what it has not seen yet stays in its sight
    calls("read_file", path=f"{PLACE}.txt", start_line=1400),
]


async def lay(folder: Path) -> None:
    """Put a long file into the shared workspace."""
    workspace = folder / "main/agent_workspace"
    workspace.mkdir(parents=True)
    await asyncio.to_thread((workspace / "big.txt").write_text, "\n".join(LINES))


async def test_a_long_result_is_read_back_by_the_agents_own_tool(tmp_path: Path) -> None:
    await lay(tmp_path)
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[*READS, finish()])
    async with tree(tmp_path, scripted) as agent:
        assert (await agent.run("go")).ok
        report = agent.agents["a"].report
        assert report is not None
        assert report.facts == ()  # its own drawer is no change of the workspace
    placeholder, _, part = (
        message.content for message in scripted.models["a"].asked[-1].messages if message.role == "tool"
    )
    assert placeholder.splitlines()[:2] == ["[Content offloaded]", f"Path: {PLACE}.txt"]
    assert LINES[1450] in part
    assert LINES[1450] in (await messages(tmp_path, "a"))[2]["content"]


async def test_what_was_off_loaded_is_so_after_a_kill(tmp_path: Path) -> None:
    await lay(tmp_path)
    scripted = ScriptedModels(main=[spawn("a"), wait("a"), says("ok")], a=[*READS, late(finish())])
    async with tree(tmp_path, scripted) as agent, aclosing(agent.run_stream("go")) as chunks:
        read = 0
        async for chunk in chunks:
            if (read := read + (chunk.name == "read_file" and chunk.kind == "result")) == 2:
                break
    again = ScriptedModels(main=[wait("a"), says("ok")], a=[finish()])
    async with tree(tmp_path, again) as agent:
        assert (await agent.resume()).ok
    (asked,) = again.models["a"].asked
    contents = [message.content for message in asked.messages if message.role == "tool"]
    assert contents[0].startswith("[Content offloaded]")
    assert LINES[1450] in contents[2]
