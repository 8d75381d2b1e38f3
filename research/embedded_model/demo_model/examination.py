"""What the model is examined on: dialogues with names that training never saw, and the answers that count as right.

Pure: who asks the model, and how, is not known here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from demo_model import phrases, scenes, tool_scenes
from demo_model.chat_format import TOOL_CALL, Message, Tool
from demo_model.scenes import Cast, Exchange

Check = Callable[[str], bool]
LANGUAGES = ("en", "zh")
STYLES = ("chat", "transcript")
_FILLERS = ("joke", "total", "small_talk", "knowledge", "beyond", "favourite", "remembered", "repeat")


@dataclass(frozen=True)
class Turn:
    """Messages put before the model, and the check of its reply, if the reply counts."""

    given: list[Message]
    check: Check | None = None
    category: str = ""


@dataclass(frozen=True)
class Case:
    """One conversation; `turns` are put one after the other, the model's own replies between."""

    language: str
    style: str
    turns: list[Turn]
    system: str = ""
    tools: tuple[Tool, ...] = ()


def contains(wanted: str) -> Check:
    """The reply has the text in it."""
    return lambda reply: wanted in reply


def names(wanted: str) -> Check:
    """The reply says exactly this name, in either language."""
    ends = tuple(f"{before}{wanted}{after}" for before, after in ((" is ", "."), ("叫", "。")))
    return lambda reply: reply.endswith(ends)


def equals(wanted: str) -> Check:
    """The reply is the text."""
    return lambda reply: reply == wanted


def in_words(reply: str) -> bool:
    """The reply is words, not a tool call."""
    return bool(reply) and TOOL_CALL not in reply


def _ask(exchange: Exchange, check: Check | None = None, category: str = "") -> Turn:
    return Turn([exchange[0]], check, category)


def fillers(cast: Cast, count: int) -> list[Turn]:
    """Turns about other things, none of which gives a name."""
    return [_ask(scenes.SCENES[cast.rng.choice(_FILLERS)][1](cast)[0]) for _ in range(count)]


def recall(cast: Cast, gap: int) -> list[Turn]:
    """A name is given, other turns follow, the name is asked for."""
    who = cast.name()
    told, asked = scenes.tell_name(cast, who), scenes.ask_name(cast, who)
    return [_ask(told), *fillers(cast, gap), _ask(asked, names(who), f"name after {gap} other turns")]


def _two_people(cast: Cast) -> list[Turn]:
    who, other = cast.name(), cast.name()
    while other in who or who in other:
        other = cast.name()
    kin = cast.pick(phrases.KIN, phrases.KIN_ZH)
    about = cast.pick(phrases.TELL_KIN, phrases.TELL_KIN_ZH).replace("#", kin).replace("*", other)
    asked = cast.pick(phrases.ASK_KIN, phrases.ASK_KIN_ZH).replace("#", kin)
    own = Turn([scenes.ask_name(cast, who)[0]], names(who), "own name of two")
    others = Turn([Message("user", asked)], names(other), "other's name of two")
    questions = [own, others] if cast.rng.random() < 0.5 else [others, own]
    return [_ask(scenes.tell_name(cast, who)), Turn([Message("user", about)]), *questions]


def _corrected(cast: Cast) -> list[Turn]:
    thread = scenes.corrected_name(cast)
    name = thread[-1][1].content.removeprefix("Your name is ").removeprefix("你叫").rstrip(".。")
    return [*map(_ask, thread[:-1]), _ask(thread[-1], names(name), "corrected name")]


def _told(scene: str, category: str) -> Callable[[Cast], list[Turn]]:
    def make(cast: Cast) -> list[Turn]:
        told, asked = scenes.SCENES[scene][1](cast)[:2]
        return [_ask(told), *fillers(cast, 0), _ask(asked, equals(asked[1].content), category)]

    return make


def _single(scene: str, category: str) -> Callable[[Cast], list[Turn]]:
    def make(cast: Cast) -> list[Turn]:
        exchange = scenes.SCENES[scene][1](cast)[0]
        return [_ask(exchange, equals(exchange[1].content), category)]

    return make


def _joke(cast: Cast) -> list[Turn]:
    return [_ask(scenes.joke(cast)[0], lambda reply: reply in phrases.JOKES + phrases.JOKES_ZH, "joke")]


def _role(cast: Cast) -> list[Turn]:
    who = scenes.role_name(cast)
    said = cast.pick(phrases.GIVE_ROLE, phrases.GIVE_ROLE_ZH).replace("*", who)
    asked = cast.pick(phrases.ASK_ROLE, phrases.ASK_ROLE_ZH)
    return [
        Turn([Message("user", said)], contains(who), "role taken"),
        Turn([Message("user", asked)], contains(who), "role kept"),
    ]


TALK: dict[str, Callable[[Cast], list[Turn]]] = {
    "two people": _two_people,
    "corrected": _corrected,
    "favourite": _told("favourite", "favourite thing"),
    "fact": _told("remembered", "fact"),
    "repeat": _single("repeat", "repeat exactly"),
    "sum": _single("total", "sum"),
    "greeting": _single("small_talk", "greeting"),
    "joke": _joke,
    "role": _role,
}


def recall_cases(seed: int, count: int) -> Iterator[Case]:
    """Name recall: languages, formats and 0 to 3 turns between in equal parts."""
    rng = Random(f"recall {seed}")
    for index in range(count):
        language, style = LANGUAGES[index % 2], STYLES[index // 2 % 2]
        yield Case(language, style, recall(Cast(rng, language, held_out=True), index // 4 % 4))


def talk_cases(seed: int, count: int) -> Iterator[Case]:
    """Everything else without tools, `count` cases of each kind."""
    rng = Random(f"talk {seed}")
    for make in TALK.values():
        for index in range(count):
            language, style = LANGUAGES[index % 2], STYLES[index // 2 % 2]
            yield Case(language, style, make(Cast(rng, language, held_out=True)))


def tool_cases(seed: int, count: int) -> Iterator[Case]:
    """Tool use in the chat format, `count` cases of each tool: the call, then the closing answer."""
    rng = Random(f"tools {seed}")
    for tool in tool_scenes.TASKS:
        for index in range(count):
            cast = Cast(rng, LANGUAGES[index % 2], held_out=True)
            listed = [one for one in tool_scenes.toolbox(cast) if one.name != tool]
            known = next(one for one in tool_scenes.TOOLS if one.name == tool)
            listed.insert(rng.randint(0, len(listed)), known)
            request, call, result, answer = tool_scenes.use(cast, tool)
            failed = (
                "failed" if any(word in answer.content for word in ("could not", "failed", "没能", "失败")) else "done"
            )
            turns = [
                Turn([request], equals(call.text()), f"call {tool}"),
                Turn([call, result], equals(answer.content), f"answer after {tool} {failed}"),
            ]
            yield Case(cast.language, "chat", turns, tools=tuple(listed))
            others = tuple(one for one in listed if one is not known)
            yield Case(cast.language, "chat", [Turn([request], in_words, "words where no tool fits")], tools=others)


def long_cases(seed: int, count: int) -> Iterator[Case]:
    """Conversations of 16 to 40 turns: the name is given first and asked for last."""
    rng = Random(f"long {seed}")
    for index in range(count):
        cast = Cast(rng, LANGUAGES[index % 2], held_out=True)
        who = cast.name()
        turns = [_ask(scenes.tell_name(cast, who)), *fillers(cast, rng.randint(14, 38))]
        turns.append(_ask(scenes.ask_name(cast, who), names(who), "name after a long conversation"))
        yield Case(cast.language, STYLES[index // 2 % 2], turns)
