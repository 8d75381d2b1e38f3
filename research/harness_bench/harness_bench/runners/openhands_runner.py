"""Runs one task with the OpenHands SDK: URL DIRECTORY STATE TASK [--resume]. Exit code 0 when it reports success."""

import sys
import uuid

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

url, directory, state, task = sys.argv[1:5]
llm = LLM(model="openai/oracle", base_url=f"{url}/v1", api_key=SecretStr("none"))
terminal = Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"})  # a tmux would outlive a kill
agent = Agent(llm=llm, tools=[terminal, Tool(name=FileEditorTool.name)])
conversation = Conversation(
    agent=agent,
    workspace=directory,
    persistence_dir=f"{state}/conversations",
    conversation_id=uuid.UUID(int=1),
    visualizer=None,
)
if "--resume" not in sys.argv:
    conversation.send_message(task)
conversation.run()
status = conversation.state.execution_status.value
conversation.close()
sys.exit(0 if status == "finished" else 1)
