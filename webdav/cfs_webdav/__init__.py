"""Shows any logical file system as WebDAV."""

from cfs_webdav.app import Call, Mount
from cfs_webdav.conditions import PreconditionFailed
from cfs_webdav.files import HandleTree
from cfs_webdav.tree import Conditions, Entry, Tree

__all__ = ["Call", "Conditions", "Entry", "HandleTree", "Mount", "PreconditionFailed", "Tree"]
