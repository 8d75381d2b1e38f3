"""Loads the tools of a user's Python files, whose code runs in the process of the agent, with the user's rights."""

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from cfs.errors import InvalidRequest
from cfs_agents.tools import Tool
from cfs_agents.tools.commands import COMMAND
from cfs_agents.tools.files import EDIT_FILE, LIST_DIRECTORY, READ_FILE, SEARCH_FILES, WRITE_FILE
from cfs_agents.tree.tool_names import SYNC_CONTEXT

_RESERVED = frozenset({READ_FILE, WRITE_FILE, EDIT_FILE, LIST_DIRECTORY, SEARCH_FILES, COMMAND, SYNC_CONTEXT})
_RESERVED_PREFIX = "sys_"


def load_tools(paths: Iterable[Path]) -> list[Tool]:
    """Run Python files and return the tools that they define or import, in their order.

    Raises `InvalidRequest` for a file that cannot be read or run, for one without a tool, and for a name that two
    tools have.
    """
    tools: dict[str, Tool] = {}
    for path in paths:
        values = [value for value in vars(_run(path)).values() if isinstance(value, Tool)]
        if not values:
            raise InvalidRequest(f"{path} has no tool: write @tool() of cfs_agents.tools above a function")
        for tool in values:
            is_reserved = tool.name in _RESERVED or tool.name.startswith(_RESERVED_PREFIX)
            if is_reserved or tools.setdefault(tool.name, tool) is not tool:
                raise InvalidRequest(f"{path}: there is another tool called {tool.name}: rename yours")
    return list(tools.values())


def _run(path: Path) -> ModuleType:
    file = str(path.absolute())
    module = ModuleType(file)
    module.__file__ = file
    sys.modules[file] = module  # dataclasses and pydantic look up the module of a class
    try:
        code = compile(path.read_bytes(), file, "exec")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise InvalidRequest(f"{path}, line {error.lineno}: {error.msg}") from None
    try:
        exec(code, vars(module))  # noqa: S102 - the user names the file in order to run it
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        raise InvalidRequest(f"{path}, line {lines[-1] if lines else 1}: {type(error).__name__}: {error}") from error
    return module
