"""Runs `cfs mount DIRECTORY` as `python -m cfs_fuse DIRECTORY`."""

from cfs_fuse.cli import app

app(prog_name="cfs mount")
