"""Sessions in notebooks: the magics `%cfs` and `%%cfs`, after `%load_ext cfs_jupyter`."""

from typing import Any as _Any

from cfs_jupyter.magics import CFSMagics

__all__ = ["CFSMagics", "load_ipython_extension"]


def load_ipython_extension(shell: _Any) -> None:
    """Register the magics; IPython calls this for `%load_ext cfs_jupyter`."""
    shell.register_magics(CFSMagics)
