"""The error classes of CFS, raised by the server, the SDK, file systems, WebDAV and the mount."""

from cfs.contract.errors import *  # noqa: F403 - the public path of the same names
