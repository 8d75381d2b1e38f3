"""The folders of a user for settings and state, as the XDG Base Directory Specification names them. No I/O."""

import os
from pathlib import Path


def config_folder() -> Path:
    """Return the folder of the user's settings for CFS, such as `~/.config/cfs`. It need not exist."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cfs"


def state_folder() -> Path:
    """Return the folder of what CFS stores for the user, such as `~/.local/state/cfs`. It need not exist."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "cfs"
