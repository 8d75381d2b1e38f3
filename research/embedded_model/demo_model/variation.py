"""How people type: choices between words, politeness, slips of the finger, upper and lower case.

A pattern has alternatives in brackets, which may be nested: `[create|make] [a|the] file #`. What a scene fills in later
(`#`, `*`, `@`, `~`, `+` and names in braces) is never changed here.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"(?<![{\w#*@~+.'])[a-z]{4,}(?![}\w#*@~+'])")
_SHORT_FORMS = {
    "what is": "what's", "What is": "What's", "I am": "I'm", "do not": "don't", "it is": "it's", "name is": "name's",
    "you are": "you're", "where is": "where's", "I would": "I'd", "let us": "let's", "please": "pls", "you": "u",
}  # fmt: skip
_BEFORE = [
    "please ", "Please ", "please, ", "can you ", "could you ", "Could you please ", "can you please ", "would you ",
    "hey, ", "Hi, ", "ok, ", "now ", "I want you to ", "I'd like you to ", "I need you to ", "go ahead and ",
    "kindly ", "just ", "Would you mind to ", "Hello! Please ", "next, ", "Okay now ", "time to ", "you should ",
]  # fmt: skip
_AFTER = [
    ", please", " please", " please.", ", thanks", ", thank you!", " for me", " for me, please", " now", " if you can",
    ". Thanks.", " asap", ", ok?", " :)", ". Thank you", " right away", "!",
]  # fmt: skip
_BEFORE_ZH = [
    "请",
    "请你",
    "麻烦",
    "麻烦你",
    "帮我",
    "请帮我",
    "能不能",
    "可以",
    "现在",
    "我想让你",
    "你好，",
    "给我",
    "劳驾",
    "接下来",
]
_AFTER_ZH = ["，谢谢", "，谢谢！", "吧", "吧。", "，好吗？", "。谢谢你", "，麻烦了", "，多谢"]
_ENDS = re.compile(r"[.?!。？！]+$")


def vary(rng: Random, pattern: str) -> str:
    """Choose between the alternatives of a pattern."""
    while (found := _INNERMOST.search(pattern)) is not None:
        chosen = rng.choice(found[1].split("|"))
        pattern = pattern[: found.start()] + chosen + pattern[found.end() :]
    return re.sub(r"  +", " ", pattern).strip().lstrip(",，！、| ")


def polite(rng: Random, text: str, language: str) -> str:
    """Put a request into more words: before it, after it, or both."""
    before, after = (_BEFORE_ZH, _AFTER_ZH) if language == "zh" else (_BEFORE, _AFTER)
    if rng.random() < 0.35:
        first = text if text[:2] in ("I ", "I'") or not text[:2].istitle() else text[:1].lower() + text[1:]
        text = rng.choice(before) + first
    if rng.random() < 0.2:
        text = _ENDS.sub("", text) + rng.choice(after)
    return text


def typed(rng: Random, text: str, language: str) -> str:
    """The text as people type it: marks left out, another case, short forms, a slip; slots stay as they are."""
    if rng.random() < 0.4:
        text = _ENDS.sub("", text) + rng.choice(("", "", "", "?", ".", "!", "...") if language != "zh" else ("", "。"))
    if language == "zh":
        if rng.random() < 0.1:
            text = (
                text.replace("，", rng.choice((",", " ", ", ")))
                .replace("？", "?")
                .replace("：", rng.choice((":", ": ")))
            )
        return text
    if rng.random() < 0.25:
        for long, short in _SHORT_FORMS.items():
            if rng.random() < 0.5:
                text = re.sub(rf"\b{long}\b", short, text)
    pick = rng.random()
    if pick < 0.25:
        text = text[:1].lower() + text[1:]
    elif pick < 0.33:
        text = _outside_slots(text, str.lower)
    elif pick < 0.37:
        text = _outside_slots(text, str.upper)
    if rng.random() < 0.12:
        text = text.replace("'", "", 1)
    if rng.random() < 0.14 and (found := list(_PLAIN.finditer(text))):
        word = rng.choice(found)
        text = text[: word.start()] + slip(rng, word[0]) + text[word.end() :]
    return text


def slip(rng: Random, word: str) -> str:
    """A word with a typing error: a letter missing, doubled, or two that changed places."""
    at = rng.randrange(1, len(word) - 1)
    kind = rng.random()
    if kind < 0.4:
        return word[:at] + word[at + 1 :]
    return word[:at] + (word[at] + word[at:] if kind < 0.6 else word[at + 1] + word[at] + word[at + 2 :])


def _outside_slots(text: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"(\{\w+\})", text)
    return "".join(part if part.startswith("{") else change(part) for part in parts)


class Wordings(list[str]):
    """Phrases, and wider patterns for the same: training draws from both, the old examination from the phrases.

    A sentence of the examination in own words is never drawn.
    """

    def __init__(self, phrases: list[str], wider: str, request: bool = False) -> None:
        super().__init__(phrases)
        self.wider = [line for line in wider.strip().split("\n") if line]
        self.request = request

    def draw(self, rng: Random, language: str) -> str:
        """A phrase as somebody might type it."""
        while True:
            text = rng.choice(self) if self and rng.random() < 0.3 else vary(rng, rng.choice(self.wider))
            if is_examined(text):
                continue
            if self.request and rng.random() < 0.5:
                text = polite(rng, text, language)
            text = typed(rng, text, language)
            if not is_examined(text):
                return text


# -- what is kept away from training ----------------------------------------------------------------------------------

_SLOTS = re.compile(r"(\{\w+\}|[#@*~])")
_MARKS = re.compile(r"""[\s.,;:?!'"“”‘’「」`，。；：？！、]+""")


@cache
def examined_tools() -> frozenset[str]:
    """The names of the tools of the examination in own words."""
    tools = (tool for item in _data("requests") for tool in item["body"].get("tools", ()))
    return frozenset(tool["function"]["name"] for tool in tools)


def _data(part: str) -> list[dict[str, Any]]:
    folder = Path(__file__).resolve().parents[1] / "own_words"
    found: list[dict[str, Any]] = json.loads((folder / f"{part}.json").read_text())
    return found


@cache
def _examined() -> tuple[str, ...]:
    """All that people say in the examination in own words."""
    found = []
    for part in ("prompts", "agents", "trees", "requests"):
        for item in _data(part):
            body = [message["content"] for message in item.get("body", {}).get("messages", ())]
            found += [*item.get("say", ()), *body, *filter(None, (item.get("task"), item.get("system")))]
    return tuple(map(_plain, found))


def _plain(text: str) -> str:
    return _MARKS.sub(" ", text).strip().lower()


def is_examined(template: str) -> bool:
    """Whether a sentence of the examination in own words could be made of this template."""
    parts = _SLOTS.split(_plain(template))
    if "".join(parts[::2]).strip() == "":
        return False
    fill = dict.fromkeys("#@", r"\S+(?: \S+){0,2}")
    made = (fill.get(part, r"\S+(?: \S+){0,4}") if index % 2 else re.escape(part) for index, part in enumerate(parts))
    fits = re.compile("".join(made)).fullmatch
    return any(fits(text) for text in _examined())
