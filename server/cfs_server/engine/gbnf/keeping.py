"""Which keywords of a schema its grammar does not keep, for those who ask before the grammar is used."""

import asyncio
import json
from functools import lru_cache
from typing import Any

from cfs_server.engine.gbnf.schemas import grammar

REMEMBERED = 256
"""Schemas whose answer is kept: an agent asks with the same few again and again."""


async def unkept(schema: dict[str, Any]) -> tuple[str, ...]:
    """Name the keywords, in a thread as large schemas take a while; none of a schema that is refused anyway."""
    return await asyncio.to_thread(_unkept, json.dumps(schema))


@lru_cache(REMEMBERED)
def _unkept(text: str) -> tuple[str, ...]:
    try:
        return grammar(json.loads(text)).unkept
    except ValueError:
        return ()
