"""Runs one task with the OpenHands SDK: URL DIRECTORY STATE TASK [options]. Exit code 0 when it reports success."""

import json
import sys
import uuid
from pathlib import Path

from openhands.sdk import LLM, Agent, AgentContext, LocalConversation, Tool
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.security.confirmation_policy import AlwaysConfirm
from openhands.sdk.skills import load_project_skills
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.preset.default import register_builtins_agents
from openhands.tools.task import TaskToolSet
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

from harness_bench.runners.person import Person, option

url, directory, state, task = sys.argv[1:5]
PRICE = {"input_cost_per_token": 5e-6, "output_cost_per_token": 20e-6}
llm = LLM(model="openai/oracle", base_url=f"{url}/v1", api_key=SecretStr("none"), **PRICE)
terminal = Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"})  # a tmux would outlive a kill
tools = [terminal, Tool(name=FileEditorTool.name)]
if "--children" in sys.argv:
    register_builtins_agents(enable_browser=False)
    tools.append(Tool(name=TaskToolSet.name))
servers = Path(state).parent / "mcp.json"
agent = Agent(
    llm=llm,
    tools=tools,
    tool_concurrency_limit=8 if "--children" in sys.argv else 1,
    mcp_config=json.loads(servers.read_text(encoding="utf-8"))["mcpServers"] if servers.exists() else {},
    agent_context=AgentContext(skills=skills) if (skills := load_project_skills(directory)) else None,
)
budget = option(sys.argv, "--budget")
conversation = LocalConversation(
    agent=agent,
    workspace=directory,
    persistence_dir=f"{state}/conversations",
    conversation_id=uuid.UUID(int=1),
    visualizer=None,
    max_budget_per_run=float(budget) if budget else None,
)
person = Person(state, int(option(sys.argv, "--ask") or 0))
if "--ask" in sys.argv:
    conversation.set_confirmation_policy(AlwaysConfirm())
if "--resume" not in sys.argv:
    conversation.send_message(task)
while True:
    if conversation.state.execution_status.value == "waiting_for_confirmation":
        person.consent()
    conversation.run()
    if conversation.state.execution_status.value != "waiting_for_confirmation":
        break
errors = [event.detail for event in conversation.state.events if isinstance(event, ConversationErrorEvent)]
Path(state, "last-words.txt").write_text("\n".join(errors), encoding="utf-8")
status = conversation.state.execution_status.value
conversation.close()
sys.exit(0 if status == "finished" else 1)
