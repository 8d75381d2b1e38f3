"""Runs one task with deepagents: URL DIRECTORY STATE TASK [options]. Exit code 0 when it reports success."""

import sys
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from harness_bench.runners.person import Person, option

url, directory, state, task = sys.argv[1:5]
model = ChatOpenAI(model="oracle", base_url=f"{url}/v1", api_key="none")
with SqliteSaver.from_conn_string(f"{state}/checkpoints.db") as saver:
    backend = LocalShellBackend(root_dir=directory, virtual_mode=True, inherit_env=True)
    project: dict[str, Any] = {"memory": ["/AGENTS.md"], "skills": ["/.agents/skills/"]}
    asked = option(sys.argv, "--ask")
    if asked:
        project["interrupt_on"] = {"execute": True}
    agent = create_deep_agent(model=model, backend=backend, checkpointer=saver, **project)
    config = {"configurable": {"thread_id": "one"}, "recursion_limit": 200}
    resumed = "--resume" in sys.argv and saver.get_tuple(config) is not None
    given = None if resumed else {"messages": [{"role": "user", "content": task}]}
    result = agent.invoke(given, config)
    person = Person(state, int(asked or 0))
    while questions := result.get("__interrupt__"):
        count = sum(len(question.value["action_requests"]) for question in questions)
        for _ in range(count):
            person.consent()
        result = agent.invoke(Command(resume={"decisions": [{"type": "approve"}] * count}), config)
last = result["messages"][-1]
sys.exit(0 if last.type == "ai" and not last.tool_calls else 1)
