"""Serves a logical file system over WebDAV."""

from cfs_webdav.app import Mount, WebDavRequest
from cfs_webdav.storage import PersistentDocuments
from cfs_webdav.tree import Conditions, HandleTree, MountView, Resource

__all__ = ["Conditions", "HandleTree", "Mount", "MountView", "PersistentDocuments", "Resource", "WebDavRequest"]
