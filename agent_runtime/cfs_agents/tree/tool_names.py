"""The names of the tools that lead other agents, and what calls of tools do to files."""

from cfs_agents.guards.digest import WAIT
from cfs_agents.tools.files import LIST_DIRECTORY, READ_FILE, SEARCH_FILES, WRITE_FILE
from cfs_agents.tools.plan import UPDATE_PLAN

SPAWN = "sys_spawn_agent"
SEND = "sys_send_message"
FINISH = "sys_finish_task"
LOCK = "sys_lock_file"
UNLOCK = "sys_unlock_file"
SYNC_CONTEXT = "sync_context"

REPEATABLE = frozenset(
    {SPAWN, SEND, WAIT, FINISH, LOCK, UNLOCK, UPDATE_PLAN, READ_FILE, WRITE_FILE, LIST_DIRECTORY, SEARCH_FILES}
)
"""Calls that may be made twice: after a kill in their middle they are simply made again."""

CHANGES_NO_FILES = REPEATABLE - {WRITE_FILE} | {SYNC_CONTEXT}
"""Calls that change no files of the workspace."""

NEEDS_NO_FILES = CHANGES_NO_FILES - {READ_FILE, LIST_DIRECTORY, SEARCH_FILES}
"""Calls that neither read nor change files of the workspace."""
