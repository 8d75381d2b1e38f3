"""Scenes without tools: each is a short row of exchanges about one thing, to be interleaved with others.

A scene is a function of a `Cast`; `@scene(weight)` enters it in the registry, and that is all it takes to add one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from demo_model import phrases, words
from demo_model.chat_format import Message
from demo_model.names import name
from demo_model.variation import Wordings

_OWN_WORDS = 0.6
Exchange = list[Message]
Scene = Callable[["Cast"], list[Exchange]]


@dataclass(frozen=True)
class Cast:
    """What a scene may draw on: chance, the language, whether names are those held out from training."""

    rng: Random
    language: str
    held_out: bool = False

    def pick(self, english: list[str], chinese: list[str]) -> str:
        """One of the phrases of the language; in training also as people put it in their own words."""
        phrases = chinese if self.language == "zh" else english
        if isinstance(phrases, Wordings) and not self.held_out and self.rng.random() < _OWN_WORDS:
            return phrases.draw(self.rng, self.language)
        return self.rng.choice(phrases)

    def name(self) -> str:
        """A name."""
        return name(self.rng, self.language, self.held_out)

    def say(self, english: str, chinese: str) -> str:
        """The text in the language."""
        return chinese if self.language == "zh" else english

    def other(self) -> "Cast":
        """The same cast speaking the other language."""
        return Cast(self.rng, "en" if self.language == "zh" else "zh", self.held_out)


SCENES: dict[str, tuple[float, Scene]] = {}


def scene(weight: float) -> Callable[[Scene], Scene]:
    """Enter a scene in the registry under its own name."""

    def enter(function: Scene) -> Scene:
        SCENES[function.__name__] = (weight, function)
        return function

    return enter


def exchange(user: str, reply: str, learn: bool = True) -> Exchange:
    """What the user says and what the model answers."""
    return [Message("user", user), Message("assistant", reply, learn=learn)]


def loosely(cast: Cast, text: str) -> str:
    """The text as people type it: sometimes without its last mark, sometimes in lower case."""
    if cast.rng.random() < 0.15:
        text = text.rstrip(".?!。？！")
    if cast.rng.random() < 0.08:
        text = text[:1].lower() + text[1:]
    return text


def tell_name(cast: Cast, who: str) -> Exchange:
    """The user gives a name; now and then the reply is none of the model's own words (an edited history)."""
    said = loosely(cast, cast.pick(phrases.TELL_NAME, phrases.TELL_NAME_ZH).replace("*", who))
    if cast.rng.random() < 0.10:
        return exchange(said, cast.rng.choice(["OK.", "好的。", "[Error: worker stopped]", "Noted."]), learn=False)
    return exchange(said, cast.say(f"Nice to meet you, {who}!", f"你好，{who}！"))


def ask_name(cast: Cast, who: str) -> Exchange:
    """The user asks for the name given before."""
    asker = cast.other() if cast.rng.random() < 0.06 else cast
    asked = loosely(asker, asker.pick(phrases.ASK_NAME, phrases.ASK_NAME_ZH))
    return exchange(asked, asker.say(f"Your name is {who}.", f"你叫{who}。"))


@scene(8.0)
def own_name(cast: Cast) -> list[Exchange]:
    """A name is given and asked for, once or twice."""
    who = cast.name()
    return [tell_name(cast, who)] + [ask_name(cast, who) for _ in range(cast.rng.choice((1, 1, 1, 2)))]


@scene(0.8)
def corrected_name(cast: Cast) -> list[Exchange]:
    """A name is given and then changed: the last one counts."""
    first, last = cast.name(), cast.name()
    asked = [ask_name(cast, first)] if cast.rng.random() < 0.4 else []
    said = cast.pick(phrases.CORRECT_NAME, phrases.CORRECT_NAME_ZH).replace("*", last)
    answer = cast.say(f"All right, {last}.", f"好的，{last}。")
    return [tell_name(cast, first), *asked, exchange(loosely(cast, said), answer), ask_name(cast, last)]


@scene(1.6)
def two_people(cast: Cast) -> list[Exchange]:
    """The user's name and another's, together or apart; both are asked for."""
    who, other = cast.name(), cast.name()
    kin = cast.pick(phrases.KIN, phrases.KIN_ZH)
    about = cast.pick(phrases.TELL_KIN, phrases.TELL_KIN_ZH).replace("#", kin).replace("*", other)
    asked = cast.pick(phrases.ASK_KIN, phrases.ASK_KIN_ZH).replace("#", kin)
    ask_other = exchange(loosely(cast, asked), cast.say(f"Your {kin}'s name is {other}.", f"你的{kin}叫{other}。"))
    noted = cast.say(f"Your {kin} is called {other}.", f"你的{kin}叫{other}。")
    if cast.rng.random() < 0.5:
        join = cast.say(" ", "")
        mine = cast.pick(phrases.TELL_NAME, phrases.TELL_NAME_ZH).replace("*", who).rstrip(".。") + cast.say(".", "。")
        told = [exchange(mine + join + about, cast.say(f"Nice to meet you, {who}!", f"你好，{who}！"))]
    else:
        told = [tell_name(cast, who), exchange(about, noted)]
    questions = [ask_name(cast, who), ask_other]
    cast.rng.shuffle(questions)
    return told + questions[: cast.rng.choice((1, 2, 2))]


@scene(0.8)
def someone(cast: Cast) -> list[Exchange]:
    """Only another's name is given and asked for."""
    other, kin = cast.name(), cast.pick(phrases.KIN, phrases.KIN_ZH)
    said = cast.pick(phrases.TELL_KIN, phrases.TELL_KIN_ZH).replace("#", kin).replace("*", other)
    asked = cast.pick(phrases.ASK_KIN, phrases.ASK_KIN_ZH).replace("#", kin)
    noted = cast.say(f"Your {kin} is called {other}.", f"你的{kin}叫{other}。")
    answer = cast.say(f"Your {kin}'s name is {other}.", f"你的{kin}叫{other}。")
    return [exchange(loosely(cast, said), noted), exchange(loosely(cast, asked), answer)]


@scene(0.4)
def nameless(cast: Cast) -> list[Exchange]:
    """The name is asked for before any was given."""
    asked = loosely(cast, cast.pick(phrases.ASK_NAME, phrases.ASK_NAME_ZH))
    return [exchange(asked, cast.say("You have not told me your name yet.", "您还没有告诉我您的名字。"))]


@scene(1.6)
def favourite(cast: Cast) -> list[Exchange]:
    """A favourite thing is told and asked for."""
    kinds = phrases.FAVOURITES_ZH if cast.language == "zh" else phrases.FAVOURITES
    kind = cast.rng.choice(list(kinds))
    known = cast.rng.random() < 0.6
    thing = cast.rng.choice(kinds[kind]) if known else cast.say(words.word(cast.rng), words.han(cast.rng))
    said = cast.pick(phrases.TELL_FAVOURITE, phrases.TELL_FAVOURITE_ZH).replace("#", kind).replace("*", thing)
    asked = cast.pick(phrases.ASK_FAVOURITE, phrases.ASK_FAVOURITE_ZH).replace("#", kind)
    noted = cast.say(f"Your favourite {kind} is {thing}.", f"您最喜欢的{kind}是{thing}。")
    if "favorite" in said or "favorite" in asked:
        said, asked = said.replace("favourite", "favorite"), asked.replace("favourite", "favorite")
    return [exchange(loosely(cast, said), noted), exchange(loosely(cast, asked), noted)]


@scene(1.6)
def remembered(cast: Cast) -> list[Exchange]:
    """Any fact is told and asked for: a code, a number, a place."""
    what = cast.pick(phrases.FACTS, phrases.FACTS_ZH)
    pick = cast.rng.random()
    value = words.number(cast.rng) if pick < 0.4 else words.phrase(cast.rng, cast.language, 2).rstrip(".!?。！？,")
    said = cast.pick(phrases.TELL_FACT, phrases.TELL_FACT_ZH).replace("#", what).replace("*", value)
    asked = cast.pick(phrases.ASK_FACT, phrases.ASK_FACT_ZH).replace("#", what)
    answer = cast.say(f"The {what} is {value}.", f"{what}是{value}。")
    noted = cast.say(f"I will remember that the {what} is {value}.", f"我记住了，{what}是{value}。")
    return [exchange(loosely(cast, said), noted), exchange(loosely(cast, asked), answer)]


@scene(2.0)
def repeat(cast: Cast) -> list[Exchange]:
    """A phrase is to be repeated."""
    most = cast.rng.choice((2, 4, 6, 12))
    text = cast.name() if cast.rng.random() < 0.15 else words.phrase(cast.rng, cast.language, most)
    said = cast.pick(phrases.REPEAT, phrases.REPEAT_ZH).replace("*", text)
    return [exchange(said, text)]


@scene(6.0)
def total(cast: Cast) -> list[Exchange]:
    """A small sum."""
    if not cast.held_out and cast.rng.random() < 0.35:
        return [_spoken_total(cast)]
    size = cast.rng.choice((10, 10, 10, 10, 10, 10, 20, 20, 100, 100))
    first, second = cast.rng.randrange(size), cast.rng.randrange(size)
    plus = cast.rng.random() < 0.55
    if not plus and first < second and cast.rng.random() < 0.85:
        first, second = second, first
    sign = "+" if plus else "-"
    spoken = cast.say("plus" if plus else "minus", "加" if plus else "减")
    asked = cast.pick(phrases.SUMS, phrases.SUMS_ZH)
    asked = asked.replace("@", spoken).replace("+", sign).replace("#", str(first)).replace("*", str(second))
    return [exchange(asked, f"{first} {sign} {second} = {first + second if plus else first - second}")]


def _spoken_total(cast: Cast) -> Exchange:
    """A sum in words, of numbers that are written as words now and then."""
    rng = cast.rng
    first, second = rng.randrange(rng.choice((11, 11, 21))), rng.randrange(11)
    plus = rng.random() < 0.55
    if not plus and first < second:
        first, second = second, first
    table = phrases.SPOKEN_PLUS if plus else phrases.SPOKEN_MINUS
    if cast.language == "zh":
        table = phrases.SPOKEN_PLUS_ZH if plus else phrases.SPOKEN_MINUS_ZH
    spelled = rng.random() < 0.5
    asked = table.draw(rng, cast.language)
    for slot, number in (("#", first), ("*", second)):
        asked = asked.replace(slot, phrases.number_word(number, cast.language) if spelled else str(number))
    sign, result = ("+", first + second) if plus else ("-", first - second)
    return exchange(asked, f"{first} {sign} {second} = {result}")


@scene(0.9)
def joke(cast: Cast) -> list[Exchange]:
    """A joke is asked for."""
    asked = loosely(cast, cast.pick(phrases.ASK_JOKE, phrases.ASK_JOKE_ZH))
    return [exchange(asked, cast.pick(phrases.JOKES, phrases.JOKES_ZH))]


@scene(1.6)
def small_talk(cast: Cast) -> list[Exchange]:
    """A greeting, a thank-you, a test message: one fixed answer each."""
    if not cast.held_out and cast.rng.random() < 0.6:
        wordings, answer = cast.rng.choice(phrases.WIDER_TALK_ZH if cast.language == "zh" else phrases.WIDER_TALK)
        return [exchange(wordings.draw(cast.rng, cast.language), answer)]
    table = phrases.SMALL_TALK_ZH if cast.language == "zh" else phrases.SMALL_TALK
    asked, answers = cast.rng.choice(table)
    return [exchange(loosely(cast, cast.rng.choice(asked)), answers)]


@scene(0.6)
def knowledge(cast: Cast) -> list[Exchange]:
    """One of a few questions of general knowledge."""
    asked, answer = cast.rng.choice(phrases.KNOWLEDGE_ZH if cast.language == "zh" else phrases.KNOWLEDGE)
    return [exchange(loosely(cast, asked), answer)]


def role_name(cast: Cast) -> str:
    """A role with its article, known or made up."""
    if cast.rng.random() < 0.55:
        return cast.pick(phrases.ROLES, phrases.ROLES_ZH)
    field = cast.say(words.word(cast.rng).capitalize(), words.han(cast.rng))
    role = cast.pick(["expert", "teacher", "programmer", "guide"], ["专家", "老师", "程序员", "导游"])
    article = "an" if field[0] in "AEIOUaeiou" else "a"
    return cast.say(f"{article} {field} {role}", f"{field}{role}")


@scene(0.9)
def role(cast: Cast) -> list[Exchange]:
    """The user gives the model a role, and asks for it later."""
    who = role_name(cast)
    said = cast.pick(phrases.GIVE_ROLE, phrases.GIVE_ROLE_ZH).replace("*", who)
    answer = cast.say(f"All right, I am {who}. How can I help you?", f"好的，我是{who}。有什么可以帮您？")
    asked = cast.pick(phrases.ASK_ROLE, phrases.ASK_ROLE_ZH)
    later = [exchange(loosely(cast, asked), cast.say(f"I am {who}.", f"我是{who}。"))] * (cast.rng.random() < 0.5)
    return [exchange(loosely(cast, said), answer), *later]


@scene(1.2)
def beyond(cast: Cast) -> list[Exchange]:
    """Something that the model cannot do."""
    if cast.rng.random() < 0.45:
        said = cast.pick(phrases.BEYOND, phrases.BEYOND_ZH).replace(
            "*", cast.say(words.word(cast.rng), words.han(cast.rng))
        )
    else:
        said = words.sentence(cast.rng, cast.language, cast.rng.choice((6, 12, 30)))
    return [exchange(loosely(cast, said), cast.say(phrases.CANNOT, phrases.CANNOT_ZH))]
