"""Rules: whether a call of a tool is allowed, asked or denied, and the gate that carries it out (A11)."""

from cfs_agents.guards.rules.calls import GatedCall, Scope
from cfs_agents.guards.rules.decisions import Decision, Defaults, Rules, Verdict
from cfs_agents.guards.rules.gate import Policy, RulesGate
from cfs_agents.guards.rules.remembered import Remembered, remembered_path
from cfs_agents.guards.rules.rules_file import RulesError, load_rules, user_rules_path

__all__ = [
    "Decision",
    "Defaults",
    "GatedCall",
    "Policy",
    "Remembered",
    "Rules",
    "RulesError",
    "RulesGate",
    "Scope",
    "Verdict",
    "load_rules",
    "remembered_path",
    "user_rules_path",
]
