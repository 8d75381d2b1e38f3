"""Numbers in a range as grammar: all that are in it, and none besides."""

import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfs_server.engine.gbnf.digits import integers
from cfs_server.engine.gbnf.values import number_rule

BOUND = st.one_of(st.integers(-120, 120), st.integers(-(10**20), 10**20))


def plain(rule: str) -> re.Pattern[str]:
    """Read a rule that has no names in it as a regular expression."""
    return re.compile(re.sub(r'"([^"]*)"', lambda found: re.escape(found[1]), rule).replace(" ", ""))


@settings(deadline=None)
@given(BOUND, BOUND, st.data())
def test_integers_of_a_range_match_and_no_others(one: int, other: int, data: st.DataObject) -> None:
    """Ends and their neighbours, numbers between them, and numbers from anywhere."""
    low, high = sorted((one, other))
    rule = plain(integers(low, high))
    near = {end + step for end in (low, high) for step in range(-12, 13)}
    drawn = {data.draw(st.integers(low, high)), data.draw(BOUND), data.draw(st.integers(-(10**21), 10**21))}
    for number in near | drawn:
        assert bool(rule.fullmatch(str(number))) == (low <= number <= high), (low, high, number)


@settings(deadline=None)
@given(st.integers(-40, 40), st.integers(0, 60))
def test_every_integer_of_a_small_range_matches(low: int, length: int) -> None:
    """Written as JSON writes it: no plus, no zeros in front, no minus before zero."""
    rule = plain(integers(low, low + length))
    texts = [f"{number}" for number in range(-1200, 1200)] + ["-0", "00", "01", "+1", "", "-", "1.0"]
    assert [text for text in texts if rule.fullmatch(text)] == [str(each) for each in range(low, low + length + 1)]


@settings(deadline=None)
@given(BOUND)
def test_an_open_end_is_beyond_every_bound(bound: int) -> None:
    """Whatever the other bound is, there are numbers behind it, and they end somewhere."""
    least, most = plain(integers(bound, None)), plain(integers(None, bound))
    for step in range(100):
        assert least.fullmatch(str(bound + step))
        assert not least.fullmatch(str(bound - step - 1))
        assert most.fullmatch(str(bound - step))
        assert not most.fullmatch(str(bound + step + 1))
    assert not least.fullmatch("9" * 40)


@pytest.mark.parametrize(
    ("schema", "numbers"),
    [
        ({"minimum": 1, "maximum": 3}, [1, 2, 3]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2]),
        ({"minimum": 0.5, "maximum": 2.5}, [1, 2]),
        ({"exclusiveMinimum": -2.5, "maximum": -1}, [-2, -1]),
        ({"minimum": 0, "exclusiveMinimum": 0, "maximum": 9, "exclusiveMaximum": 2}, [1]),
        ({"minimum": 4, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": True}, [5]),
        ({"minimum": -1, "exclusiveMinimum": False, "maximum": 1}, [-1, 0, 1]),
    ],
    ids=str,
)
def test_all_forms_of_bounds_are_kept(schema: dict[str, object], numbers: list[int]) -> None:
    """Also bounds that are no integers, several at once, and those that older drafts write as true."""
    rule = plain(number_rule(schema, whole=True))
    assert [each for each in range(-50, 50) if rule.fullmatch(str(each))] == numbers


@pytest.mark.parametrize(
    "schema", [{"minimum": 2, "maximum": 1}, {"exclusiveMinimum": 1, "exclusiveMaximum": 2}], ids=str
)
def test_a_range_without_an_integer_is_refused(schema: dict[str, object]) -> None:
    """It would be a grammar that allows nothing."""
    with pytest.raises(ValueError, match="no integer lies between"):
        number_rule(schema, whole=True)


DECIMAL = st.decimals(-200, 200, places=3, allow_nan=False)


@settings(deadline=None)
@given(DECIMAL, DECIMAL, st.booleans(), st.booleans(), st.data())
def test_numbers_of_a_range_match_and_no_others(
    one: Decimal, other: Decimal, open_low: bool, open_high: bool, data: st.DataObject
) -> None:
    """Up to as many digits behind the point as the bounds have."""
    low, high = sorted((one, other))
    schema = {
        "exclusiveMinimum" if open_low else "minimum": float(low),
        "exclusiveMaximum" if open_high else "maximum": float(high),
    }
    if low == high and (open_low or open_high):
        with pytest.raises(ValueError, match="no number lies between"):
            number_rule(schema, whole=False)
        return
    rule = plain(number_rule(schema, whole=False))
    for number in (low, high, low + (high - low) / 2, *(data.draw(DECIMAL) for _ in range(20))):
        number = number.quantize(Decimal("0.001"))
        inside = low < number < high or (number == low and not open_low) or (number == high and not open_high)
        text = f"{number:f}".replace("-0.000", "0.000")
        assert bool(rule.fullmatch(text)) == inside, (schema, text)
