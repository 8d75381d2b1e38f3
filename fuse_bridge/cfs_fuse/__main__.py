"""`python -m cfs_fuse DIRECTORY` is `cfs mount DIRECTORY`."""

from cfs_fuse.cli import app

app(prog_name="cfs mount")
