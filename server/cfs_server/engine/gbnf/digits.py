"""Numbers in a range, written digit by digit, as GBNF. Pure: no I/O."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

DIGITS = 15
"""An open end is where numbers of so many digits end: every program reads those exactly, and none runs on for ever."""
LONGEST = 320
"""Longer than that is no number, as floating point goes; what is refused here would make a grammar huge."""
FRACTION = 4
"""A bounded number has at most so many digits behind the point more than its bounds."""

Classes = tuple[tuple[int, int], ...]
"""One way to write a number: for each place the lowest and the highest digit."""

_ANY = (0, 9)


def integers(low: int | None, high: int | None) -> str:
    """Write a rule for the integers from `low` to `high`; None: an open end. Raises `ValueError` if there are none."""
    return " | ".join(_signed(*_ends(low, high), places=0))


def decimals(low: Decimal | None, high: Decimal | None, *, open_low: bool = False, open_high: bool = False) -> str:
    """Write a rule for numbers from `low` to `high`, with a few digits behind the point and without an exponent.

    `open_low`, `open_high`: the bound itself is left out. Raises `ValueError` if there is no such number.
    """
    low = None if low is not None and low <= -(10**DIGITS) else low
    high = None if high is not None and high >= 10**DIGITS else high
    found = []
    for places in range(min(FRACTION + max(_places(low), _places(high)), DIGITS) + 1):
        least = None if low is None else _scaled(low, places, ROUND_CEILING, open_low)
        most = None if high is None else _scaled(high, places, ROUND_FLOOR, open_high)
        if least is None or most is None or least <= most:
            found += _signed(*_ends(least, most, DIGITS + places), places)
    if not found:
        raise ValueError("no number lies between the bounds")
    return " | ".join(found)


def spans(low: int, high: int, width: int = 1) -> list[Classes]:
    """List the ways to write the integers from `low` to `high`, both at least 0, with no less than `width` digits."""
    found = []
    while low <= high:
        length = max(width, len(str(low)))
        last = min(high, 10**length - 1)
        found += _same_length(f"{low:0{length}}", f"{last:0{length}}")
        low = last + 1
    return found


def _same_length(low: str, high: str) -> list[Classes]:
    if not low:
        return [()]
    first, last = int(low[0]), int(high[0])
    rest = len(low) - 1
    if first == last:
        return [((first, first), *tail) for tail in _same_length(low[1:], high[1:])]
    found = []
    if low[1:] != "0" * rest:
        found += [((first, first), *tail) for tail in _same_length(low[1:], "9" * rest)]
        first += 1
    upper = []
    if high[1:] != "9" * rest:
        upper = [((last, last), *tail) for tail in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        found.append(((first, last), *[_ANY] * rest))
    return found + upper


def _signed(low: int, high: int, places: int) -> list[str]:
    """Write the integers of a range, the point `places` digits before their end."""
    found = []
    if low < 0:
        found += [f'"-" {each}' for each in _texts(spans(max(1, -high), -low, places + 1), places)]
    if high >= 0:
        found += _texts(spans(max(0, low), high, places + 1), places)
    return found


def _texts(ways: list[Classes], places: int) -> list[str]:
    """Write ways, those with any digits of some lengths as one: each way costs time with every token."""
    free = [way for way in ways if len(way) > places + 1 and set(way[1:]) == {_ANY} and way[0] == (1, 9)]
    found = [_text(way, places) for way in ways if way not in free]
    if free:
        least, most = len(free[0]) - places - 1, len(free[-1]) - places - 1
        found.append(f"[1-9] [0-9]{{{least},{most}}}" + (f' "." {_run(free[0][-places:])}' if places else ""))
    return found


def _text(classes: Classes, places: int) -> str:
    whole = len(classes) - places
    return _run(classes[:whole]) + (f' "." {_run(classes[whole:])}' if places else "")


def _run(classes: Classes) -> str:
    words: list[tuple[str, int]] = []
    for low, high in classes:
        word = f'"{low}"' if low == high else f"[{low}-{high}]"
        if words and words[-1][0] == word:
            words[-1] = (word, words[-1][1] + 1)
        else:
            words.append((word, 1))
    return " ".join(word if times == 1 else f"{word}{{{times}}}" for word, times in words)


def _ends(low: int | None, high: int | None, digits: int = DIGITS) -> tuple[int, int]:
    """Put ends where there are none, in reach of the other one."""
    most = 10 ** max(digits, len(str(abs(low or 0))) + 1, len(str(abs(high or 0))) + 1) - 1
    low, high = -most if low is None else low, most if high is None else high
    if max(abs(low), abs(high)) >= 10**LONGEST:
        raise ValueError(f"a bound has more than {LONGEST - 2} digits")
    if low > high:
        raise ValueError(f"no integer lies between {low} and {high}")
    return low, high


def _places(bound: Decimal | None) -> int:
    exponent = 0 if bound is None else bound.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _scaled(bound: Decimal, places: int, rounding: str, leave_out: bool) -> int:
    exact = bound.scaleb(places) if places else bound  # scaling rounds to the context's 28 digits
    whole = int(exact.to_integral_value(rounding=rounding))
    if leave_out and whole == exact:
        whole += 1 if rounding == ROUND_CEILING else -1
    return whole
