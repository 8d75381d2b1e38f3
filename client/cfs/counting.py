"""How many tokens a text may have, where no tokenizer can be asked. Pure: no I/O."""

import math

_BYTES_PER_TOKEN = 3.6
"""Between English prose (over 4) and source code (about 3); Chinese has 3 bytes a character, and about that a token."""

MESSAGE_TOKENS = 4
"""What a chat's template puts around a message, about."""


def estimate_tokens(text: str) -> int:
    """Guess how many tokens a text has; an empty one has none."""
    return math.ceil(len(text.encode(errors="replace")) / _BYTES_PER_TOKEN)
