"""Amounts of money as people read them. Pure: no I/O (H10)."""


def money(dollars: float) -> str:
    """Write an amount of US dollars, with cents at least."""
    text = f"{dollars:.6f}".rstrip("0")
    whole, _, cents = text.partition(".")
    return f"${whole}.{cents:0<2}"
