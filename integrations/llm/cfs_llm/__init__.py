"""The plugin of CFS for `llm`: its models, and conversations that are sessions."""

from cfs_llm.models import CFS, AsyncCFS, register_models

__all__ = ["CFS", "AsyncCFS", "register_models"]
