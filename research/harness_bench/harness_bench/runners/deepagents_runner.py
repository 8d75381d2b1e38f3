"""Runs one task with deepagents: URL DIRECTORY STATE TASK [--resume]. Exit code 0 when it reports success."""

import sys

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

url, directory, state, task = sys.argv[1:5]
model = ChatOpenAI(model="oracle", base_url=f"{url}/v1", api_key="none")
with SqliteSaver.from_conn_string(f"{state}/checkpoints.db") as saver:
    backend = LocalShellBackend(root_dir=directory, virtual_mode=True, inherit_env=True)
    project = {"memory": ["/AGENTS.md"], "skills": ["/.agents/skills/"]}
    agent = create_deep_agent(model=model, backend=backend, checkpointer=saver, **project)
    config = {"configurable": {"thread_id": "one"}, "recursion_limit": 200}
    resumed = "--resume" in sys.argv and saver.get_tuple(config) is not None
    given = None if resumed else {"messages": [{"role": "user", "content": task}]}
    result = agent.invoke(given, config)
last = result["messages"][-1]
sys.exit(0 if last.type == "ai" and not last.tool_calls else 1)
