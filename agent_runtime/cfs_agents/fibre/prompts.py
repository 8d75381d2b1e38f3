"""The system prompt of an agent that may lead others, in English and in Chinese (B6). Pure: no I/O.

The fixed part comes first and is the same for all agents of a tree, so that an engine computes it once. It is short,
because small models have to read it beside everything else; the schemas of the tools add little to what is said here.
The goal of a sub-agent is its first message and never stands in here.
"""

from collections.abc import Mapping

from cfs_agents.messages import Language

CAPABILITIES = "=== SYSTEM CAPABILITIES (IMMUTABLE) ==="
ROLE = "=== SPECIFIC ROLE INSTRUCTIONS ==="

_LONGEST_NOTE = 200

_LEADS = {
    "en": """\
You are an autonomous agent. At run time you can orchestrate other agents: create a team and manage it.
Run in parallel what can be parallel: one agent for each part.
You and all sub-agents share one workspace. A file that one writes is readable by all at once: say who writes what, \
never overwrite others' files, name yours {agent_name}_{filename}.
Contexts are isolated: you see nothing of a child's thinking, only its report.
sys_spawn_agent creates a child and returns its agent_id at once.
- agent_name: unique name
- role_description: one line, for your own tracking
- system_instruction: the most important: the child's system prompt: persona, limits, abilities, \
as "You are a tester. Write only to tests/."
- task_goal: its first message
- max_turns, timeout (seconds), budget (tokens): its limits
sys_send_message(agent_id, content): correct an agent, or give it more.
sys_wait_agent(agent_id): wait for its report.
sys_finish_task: a sub-agent reports and ends.
- status: success or failed
- summary: what was done
- details: {"created_files": [paths], "logs": text}
sys_lock_file(path), sys_unlock_file(path): reserve a file, release it.
Work flow: spawn, wait for the report, check it, then accept it or send feedback.
Golden rule: conduct, do not play. When a task is complex, delegate it.""",
    "zh": """\
你是自主的智能体，能在运行时编排其他智能体：创建团队并管理它。
能并行的就并行：每部分一个智能体。
你和所有子智能体共享一个工作区。一个写的文件，其他立刻能读：说好谁写什么，不要覆盖别人的成果，\
文件取名 {agent_name}_{filename}。
上下文相互隔离：你看不到子智能体的思考，只看到它的报告。
sys_spawn_agent 创建子智能体，立刻返回 agent_id。
- agent_name：唯一的名字
- role_description：一行，供你自己记录
- system_instruction：最重要；它成为子智能体的系统提示：角色、限制、能力。例如：“你是测试员，只写 tests/。”
- task_goal：它的第一条消息
- max_turns、timeout（秒）、budget（token）：它的限额
sys_send_message(agent_id, content)：纠正一个智能体，或给它更多任务。
sys_wait_agent(agent_id)：等待它的报告。
sys_finish_task：子智能体报告并结束。
- status：success 或 failed
- summary：做了什么
- details：{"created_files": [路径], "logs": 文本}
sys_lock_file(path)、sys_unlock_file(path)：占用文件，释放文件。
流程：创建，等报告，检查，然后接受或发回意见。
黄金法则：指挥，不要亲自演奏。任务复杂就委派。""",
}

_LEAF = {
    "en": """\
You are an autonomous agent in a team. You work alone: you create no agents.
You and all agents share one workspace. A file that one writes is readable by all at once: \
never overwrite others' files, name yours {agent_name}_{filename}.
Contexts are isolated: others see nothing of your thinking, only your report.
sys_send_message(agent_id, content): tell another agent something.
sys_finish_task: you report and end.
- status: success or failed
- summary: what was done
- details: {"created_files": [paths], "logs": text}
sys_lock_file(path), sys_unlock_file(path): reserve a file, release it.""",
    "zh": """\
你是团队中自主的智能体。你独自工作：不创建智能体。
你和所有智能体共享一个工作区。一个写的文件，其他立刻能读：不要覆盖别人的成果，文件取名 {agent_name}_{filename}。
上下文相互隔离：别人看不到你的思考，只看到你的报告。
sys_send_message(agent_id, content)：告诉另一个智能体一件事。
sys_finish_task：你报告并结束。
- status：success 或 failed
- summary：做了什么
- details：{"created_files": [路径], "logs": 文本}
sys_lock_file(path)、sys_unlock_file(path)：占用文件，释放文件。""",
}


def system_prompt(
    language: Language, instruction: str, *, may_spawn: bool, notes: Mapping[str, str], common: str = ""
) -> str:
    """Put a system prompt together: the fixed part, what is known of the place (`notes`), the agent's own instruction.

    An agent that may not spawn reads nothing of spawning. Notes are one line each, in their order, without empty ones;
    a long one is shortened. What is `common` to all agents of a tree comes before what differs, so that an engine
    computes it once.
    """
    parts = [CAPABILITIES, fixed_part(language, may_spawn=may_spawn), *([common.strip()] if common.strip() else [])]
    parts += [f"{name}: {_line(value)}" for name, value in notes.items() if value.strip()]
    return "\n".join([*parts, ROLE, instruction.strip()])


def fixed_part(language: Language, *, may_spawn: bool) -> str:
    """Return what every agent of a tree is told; a leaf of the tree gets it without spawning."""
    return (_LEADS if may_spawn else _LEAF)[language]


def _line(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _LONGEST_NOTE else f"{line[:_LONGEST_NOTE]}..."
