"""Runs one task with mini-swe-agent: URL DIRECTORY STATE TASK [options]. Exit code 0 when it reports success."""

import os
import sys
from pathlib import Path

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", sys.argv[3])

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.agents.interactive import InteractiveAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

url, directory, state, task = sys.argv[1:5]
config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
settings = {name: value for name, value in config["agent"].items() if name in ("system_template", "instance_template")}
wording = {name: value for name, value in config["model"].items() if name.endswith("_template")}
model = LitellmModel(
    model_name="openai/oracle",
    model_kwargs={"api_base": f"{url}/v1", "api_key": "none"},
    cost_tracking="ignore_errors",
    **wording,
)
kind, asks = (InteractiveAgent, {"confirm_exit": False}) if "--ask" in sys.argv else (DefaultAgent, {})
agent = kind(
    model,
    LocalEnvironment(cwd=directory),
    step_limit=100,
    output_path=Path(state) / "trajectory.json",
    **settings,
    **asks,
)
result = agent.run(task)
sys.exit(0 if result.get("exit_status") == "Submitted" else 1)
