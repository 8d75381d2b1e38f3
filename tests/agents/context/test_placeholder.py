"""What the model sees in place of what is on disk (O2, O7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfs_agents.context.documents import ItemRecord
from cfs_agents.context.headline import LONGEST, headline
from cfs_agents.context.placeholder import beginning, ending, placeholder
from cfs_agents.context.tokens import estimate
from tests.agents.context.support import assistant, call, item, result, user

RECORD = ItemRecord("item_1", "tool_result", "a.json", 1_767_323_045, 12_000, 48_213, 50_000, "", "shell: ls")


def test_the_three_lines_come_first() -> None:
    """To the letter; then the size, and the line that says what it is."""
    text = placeholder(RECORD, "/root_of/a.txt", "one\ntwo\n")
    assert text.splitlines()[:3] == ["[Content offloaded]", "Path: /root_of/a.txt", "Use Read tool to view details."]
    assert text.splitlines()[3:] == ["Size: 48,213 bytes, 2 lines, 12,000 tokens", "Summary: shell: ls"]


def test_the_preview_shows_both_ends_in_whole_lines() -> None:
    """And says how much is between them."""
    content = "".join(f"line {number}\n" for number in range(1000))
    text = placeholder(RECORD, "/a.txt", content, preview=40)
    head, _, tail = text.partition("Beginning:\n")[2].partition("\n[... ")
    assert content.startswith(head + "\n")
    assert head.startswith("line 0\nline 1\n")
    assert tail.endswith("End:\n" + "\n".join(f"line {number}" for number in range(992, 1000)))
    assert " characters ...]" in tail


def test_a_few_enormous_lines_have_a_preview_too() -> None:
    """Where no line is short enough, it is cut."""
    content = "a" * 500_000 + "\n" + "b" * 500_000
    text = placeholder(RECORD, "/a.txt", content, preview=40)
    assert "Beginning:\n" + "a" * 80 + "\n" in text
    assert text.endswith("End:\n" + "b" * 80)
    assert estimate(text) < 120


def test_a_preview_that_shows_all_is_no_preview() -> None:
    """A short content stands there as it is."""
    assert placeholder(RECORD, "/a.txt", "short", preview=40).endswith("Content:\nshort")


def test_it_says_what_is_missing() -> None:
    """Secrets that are not in the file."""
    record = ItemRecord(**{name: getattr(RECORD, name) for name in RECORD.__slots__} | {"redactions": {"password": 2}})
    assert "Secrets were taken out: 2 × password" in placeholder(record, "/a.txt")


texts = st.text(st.sampled_from("ab\n é中🙂\u0301\u200d\ufe0f\U0001f3fd\r"), max_size=200)


@given(texts, st.integers(0, 40))
def test_both_ends_are_parts_of_the_text_and_short(text: str, tokens: int) -> None:
    """Never more than was asked for, but for what belongs to the first character that is cut."""
    head, tail = beginning(text, tokens), ending(text, tokens)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert estimate(head) <= tokens
    assert estimate(tail) <= tokens


@pytest.mark.parametrize("character", ["e\u0301", "👍🏽", "❤\ufe0f", "👩\u200d💻", "\r\n"])
def test_a_cut_separates_no_character_from_its_parts(character: str) -> None:
    """Accents, skin tones, joined signs: wherever the cut would fall."""
    text = "x" + character * 40
    for tokens in range(1, 40):
        assert (len(beginning(text, tokens)) - 1) % len(character) == 0 or beginning(text, tokens) == text
        assert len(ending(text, tokens)) % len(character) == 0 or ending(text, tokens) == text


def test_the_line_says_which_call_it_answers_and_how_it_begins() -> None:
    """A tool, what it was asked, and the first line that is not blank."""
    answer = item(result("\n\n  total 12\ndrwx"))
    assert headline(answer, call(command="ls -l")) == 'shell {"command": "ls -l"}: total 12'
    assert headline(answer) == "shell: total 12"
    assert headline(item(user("\nhello  there\nmore"))) == "hello there"
    assert headline(item(assistant("Let me see", call(a=1)))) == 'Let me see -> shell {"a": 1}'


@given(st.text(max_size=400), st.text(max_size=400))
def test_the_line_is_one_and_short(content: str, argument: str) -> None:
    """Whatever is in the content and the arguments."""
    line = headline(item(result(content * 3)), call(text=argument))
    assert len(line) <= LONGEST
    assert line.splitlines() == [line]
