"""Estimated token counts, for use without a tokenizer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cfs.contract import wire
from cfs.contract.transcript import shown

_BYTES_PER_TOKEN = 3.6
"""Bytes per token: English prose has more than 4, source code and Chinese about 3."""

MESSAGE_TOKENS = 4
"""Estimated tokens that a chat template adds to a message."""


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text; 0 for an empty text."""
    return tokens_of_size(len(text.encode(errors="replace")))


def estimate_inputs(inputs: Iterable[str | Sequence[int]]) -> int:
    """Estimate the number of tokens of texts; one that is given as its tokens is counted."""
    return sum(estimate_tokens(text) if isinstance(text, str) else len(text) for text in inputs)


def tokens_of_size(size: int) -> int:
    """Estimate the number of tokens of so many bytes of text."""
    return math.ceil(size / _BYTES_PER_TOKEN)


def estimate_prompt(messages: Iterable[wire.Message], tools: Iterable[Mapping[str, Any]] = ()) -> int:
    """Estimate the number of tokens of a conversation with tools."""
    tokens = sum(MESSAGE_TOKENS + estimate_tokens(shown(message)) for message in messages)
    return tokens + sum(estimate_tokens(str(tool)) for tool in tools)
