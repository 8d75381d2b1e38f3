"""The prices of public model servers, from the data of `genai-prices`. Nothing is fetched."""

from datetime import UTC, datetime
from decimal import Decimal

from cfs.wire import CURRENCY, Price


def default_price(url: str | None, model: str) -> Price | None:
    """Return the price of a model at the address of its server; None if the server or the model is not known.

    Of a price that depends on the length of the prompt, it is the one of short prompts.
    """
    if url is None:
        return None
    from genai_prices import Usage, calc_price

    def cost(usage: Usage) -> Decimal:
        now = datetime.now(UTC)
        return calc_price(usage, model, provider_api_url=url, genai_request_timestamp=now).total_price

    try:
        prompt = cost(Usage(input_tokens=_TOKENS))
        cached = cost(Usage(input_tokens=_TOKENS, cache_read_tokens=_TOKENS))
        completion = cost(Usage(output_tokens=_TOKENS))
    except (LookupError, ValueError):
        return None
    parts = {"prompt": prompt, "cached": cached, "completion": completion}
    return Price(**{name: float(part) * 1e6 / _TOKENS for name, part in parts.items()}, currency=CURRENCY)


_TOKENS = 1_000
"""Tokens of the usage that is priced: below the lengths at which prices change."""
