"""The tokens that replies have used, and their cost. No I/O."""

from cfs.wire import Usage


def added(first: Usage, second: Usage) -> Usage:
    """Add the tokens of two replies, and their costs as far as they have one; times are dropped."""
    costs = [usage.cost for usage in (first, second) if usage.cost is not None]
    return Usage(
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        cost=round(sum(costs), 9) if costs else None,
    )


def since(total: Usage, before: Usage) -> Usage:
    """Return what was used after `before` was counted."""
    return Usage(
        prompt_tokens=total.prompt_tokens - before.prompt_tokens,
        cached_tokens=total.cached_tokens - before.cached_tokens,
        completion_tokens=total.completion_tokens - before.completion_tokens,
        cost=None if total.cost is None else round(total.cost - (before.cost or 0.0), 9),
    )


def tokens(usage: Usage) -> int:
    """Return the tokens that a usage counts: all that were read, cached or not, and written."""
    return usage.prompt_tokens + usage.completion_tokens
