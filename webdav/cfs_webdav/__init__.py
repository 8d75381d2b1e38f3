"""Serves a logical file system over WebDAV."""

from cfs_webdav.app import Call, Mount
from cfs_webdav.storage import Documents
from cfs_webdav.tree import Conditions, Entry, HandleTree, Tree

__all__ = ["Call", "Conditions", "Documents", "Entry", "HandleTree", "Mount", "Tree"]
