"""Shows characters that cannot be seen, so that a text reads as what it is."""

_SHAPELESS = frozenset(map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)))
"""Characters that are shown as nothing."""

_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def shapely(text: str) -> str:
    """Replace control characters and invisible characters by their numbers."""
    return "".join(character if _has_shape(character) else f"<U+{ord(character):04X}>" for character in text)


def _has_shape(character: str) -> bool:
    if not character.isprintable() or character in _SHAPELESS:
        return False
    return not any(ord(character) in selectors for selectors in _SELECTORS)
