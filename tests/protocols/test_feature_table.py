"""The table of clients and features says what the marks of the tests say."""

import pytest

from make_feature_table import Mark, features, marks_of, version_of

MARKED = '@pytest.mark.feature("openai", "chat", "chat", "stop")\ndef test(): ...\n'


def test_marks_are_read_from_the_source() -> None:
    assert list(marks_of("a.py", MARKED)) == [Mark("openai", "chat", ("chat", "stop"), "a.py")]


@pytest.mark.parametrize("words", ['"openai", "chat", "flying"', '"openai", "chat"', '"openai", "chat", "chat", x="y"'])
def test_a_mark_that_says_nothing_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"a\.py:1"):
        list(marks_of("a.py", f"pytest.mark.feature({words})"))


def test_a_row_names_the_pinned_version_and_links_its_tests() -> None:
    found = features([Mark("openai", "chat", ("chat",), "tests/a.py")], "openai==1.2.3\n")
    assert found.splitlines()[-1] == f"| `openai` | 1.2.3 | chat | [yes](../tests/a.py) |{'  |' * 9}"


def test_a_package_without_a_pinned_version_is_refused() -> None:
    assert version_of("curl", "") == ""
    with pytest.raises(ValueError, match="no version of 'somebody'"):
        version_of("somebody", "openai==1.2.3\n")
