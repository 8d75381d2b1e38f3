"""How the library's attention on processors counts tokens: in tiles of 64, or one by one where there are fewer.

Every token of a tile looks at all cells that any of them needs, so the prompts of others in a tile are paid twice, and
a tile that is not full costs what a full one does. One by one, a token looks at its own cells only, but each look costs
`ONE_BY_ONE` times as much (measured: docs/engine.md). So few tokens far into a prompt are computed sooner when
others, which nobody needs, fill up their tile.
"""

from cfs_server.engine.llama.costs import StepCost

TILE = 64
"""Tokens that flash attention computes together (`GGML_FA_TILE_Q` of the library)."""
ONE_BY_ONE = 11
"""What a look costs outside of a tile, by what it costs inside."""


def whole(tokens: int) -> int:
    """Round down to full tiles."""
    return tokens // TILE * TILE


def padding(tokens: int, looks: float, cost: StepCost) -> int:
    """Say how many tokens that nobody needs make a step of fewer than a tile shorter, if any do."""
    if not 0 < tokens < TILE:
        return 0
    more = TILE - tokens
    saved = cost.per_look * looks * (ONE_BY_ONE - TILE / tokens)
    return more if saved > cost.per_token * more else 0


def counted(needed: int, size: int, looks: float) -> float:
    """Count the looks of `needed` tokens, filled up to a step of `size`, in the price of a look inside of a tile."""
    return looks * (size / needed if size >= TILE else ONE_BY_ONE)
