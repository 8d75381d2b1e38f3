"""The tokens that replies have used. No I/O."""

from cfs.wire import Usage


def added(first: Usage, second: Usage) -> Usage:
    """Add the tokens of two replies; times are dropped."""
    return Usage(
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
    )


def tokens(usage: Usage) -> int:
    """Return the tokens that a usage counts: all that were read, cached or not, and written."""
    return usage.prompt_tokens + usage.completion_tokens
