"""What replies cost, added up. Pure: no I/O."""

from cfs.wire import Usage


def added(first: Usage, second: Usage) -> Usage:
    """Add what two replies have cost; how long they took is not kept."""
    return Usage(
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
    )
