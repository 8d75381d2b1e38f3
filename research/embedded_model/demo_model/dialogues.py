"""Whole dialogues: scenes interleaved, with or without a system message and tools, in one of the two formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from demo_model import phrases, tool_scenes, words
from demo_model.chat_format import Message, Span, Tool, chat_spans, transcript_spans
from demo_model.extraction import structured
from demo_model.open_tools import open_use, unfit_use
from demo_model.scenes import SCENES, Cast, Exchange, ask_name, role_name, tell_name

# Of each group a dialogue has one scene at most, or a question would have two right answers.
EXCLUSIVE = (
    {"own_name", "corrected_name", "two_people", "someone", "nameless"},
    {"favourite"},
    {"remembered"},
    {"role"},
)
# Copying, and sums: what takes the most examples to learn, at the fewest tokens each.
EASY = ("repeat", "repeat", *["own_name"] * 5, "two_people", "someone", "remembered", "role", *["total"] * 4)
SYSTEM = [
    "You are a helpful assistant.", "You are a helpful assistant.", "Answer briefly.", "Be polite.",
    "你是一个有用的助手。",
    "You are an assistant inside a file system.", "You can use tools.", "Use the tools to do what the user asks.",
    "You are an agent. Work on the task with the tools.", "请使用工具完成任务。",
]  # fmt: skip


@dataclass(frozen=True)
class Dialogue:
    """A conversation, the tools it lists and the format it is written in."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    style: str

    def spans(self) -> list[Span]:
        """The dialogue's text, with what the model has to write marked."""
        return (chat_spans if self.style == "chat" else transcript_spans)(self.messages, self.tools)


def interleave(rng: Random, threads: Sequence[Sequence[Exchange]]) -> list[Exchange]:
    """The threads' exchanges in a random order that keeps each thread's own."""
    order = [index for index, thread in enumerate(threads) for _ in thread]
    rng.shuffle(order)
    readers = [iter(thread) for thread in threads]
    return [next(readers[index]) for index in order]


def draw_scenes(cast: Cast, count: int, taken: set[str]) -> list[list[Exchange]]:
    """Scenes by weight, at most one of each exclusive group."""
    threads = []
    for _ in range(count):
        names = [name for name in SCENES if name not in taken]
        name = cast.rng.choices(names, [SCENES[name][0] for name in names])[0]
        for group in EXCLUSIVE:
            if name in group:
                taken |= group
        threads.append(SCENES[name][1](cast))
    return threads


def _system(cast: Cast, exchanges: list[Exchange], role_taken: bool) -> tuple[list[Message], list[Exchange]]:
    pick = cast.rng.random()
    if pick < 0.35:
        return [], exchanges
    if pick < 0.60 or role_taken:
        return [Message("system", cast.rng.choice(SYSTEM))], exchanges
    if pick < 0.72:
        text = " ".join(words.sentence(cast.rng, cast.language, 12) for _ in range(cast.rng.randint(1, 4)))
        return [Message("system", text)], exchanges
    who = role_name(cast)
    said = cast.pick(phrases.GIVE_ROLE, phrases.GIVE_ROLE_ZH).replace("*", who)
    answer = cast.say(f"I am {who}.", f"我是{who}。")
    asked = cast.pick(phrases.ASK_ROLE, phrases.ASK_ROLE_ZH)
    exchange = [Message("user", asked), Message("assistant", answer)]
    return [Message("system", said)], [*_without_self(exchanges), exchange]


def _without_self(exchanges: list[Exchange]) -> list[Exchange]:
    """The exchanges less those in which the model says what it is: a role changes the answer."""
    kept = [one for one in exchanges if one[-1].content not in (phrases.ABOUT, phrases.ABOUT_ZH)]
    return kept or exchanges[:0]


def talk(rng: Random, language: str, style: str, scenes: int) -> Dialogue:
    """A dialogue without tools."""
    cast = Cast(rng, language)
    taken: set[str] = set()
    exchanges = interleave(rng, draw_scenes(cast, scenes, taken))
    if "role" in taken:
        exchanges = _without_self(exchanges)
    system: list[Message] = []
    if rng.random() < (0.45 if style == "chat" else 0.2):
        system, exchanges = _system(cast, exchanges, "role" in taken)
    return Dialogue([*system, *(message for one in exchanges for message in one)], [], style)


def work(rng: Random, language: str, style: str, rounds: int, chatter: int = 0) -> Dialogue:
    """A dialogue with tools, and some talk between."""
    cast = Cast(rng, language)
    tools = tool_scenes.toolbox(cast)
    names = [tool.name for tool in tools if tool.name in tool_scenes.TASKS]
    missing = [name for name in tool_scenes.TASKS if name not in names]
    exchanges: list[Exchange] = []
    for _ in range(rounds):
        pick = rng.random()
        if (missing and pick < 0.4) or not names:
            exchanges.append(tool_scenes.lacking(cast, rng.choice(missing)))
        elif pick > 0.93:
            exchanges.append(tool_scenes.use_two(cast, names))
        else:
            exchanges.append(tool_scenes.use(cast, rng.choice(names)))
    exchanges = interleave(rng, [exchanges, *draw_scenes(cast, chatter, set())])
    system = [Message("system", rng.choice(SYSTEM))] if rng.random() < 0.5 else []
    if rng.random() < 0.04:  # the definitions written out by the caller instead of listed by the template
        text = rng.choice(("You can use these tools:\n", "Tools:\n", "", "Available tools: "))
        system, tools = [Message("system", text + tool_scenes.verbose_tools(cast, tools))], []
    return Dialogue([*system, *(message for one in exchanges for message in one)], tools, style)


def toolless(rng: Random, language: str, style: str) -> Dialogue:
    """A request for a tool where none is listed."""
    cast = Cast(rng, language)
    request = tool_scenes.lacking(cast, rng.choice(list(tool_scenes.TASKS)))
    exchanges = interleave(rng, [[request], *draw_scenes(cast, rng.choice((0, 1)), set())])
    return Dialogue([message for one in exchanges for message in one], [], style)


def open_work(rng: Random, language: str) -> Dialogue:
    """A request to a tool of any kind, or a text that is to become JSON; now and then some talk before it."""
    cast = Cast(rng, language)
    pick = rng.random()
    made = structured if pick < 0.4 else unfit_use if pick < 0.44 else open_use
    exchange, tools = made(cast)
    before = draw_scenes(cast, 1, set())[0][:1] if rng.random() < 0.08 else []
    system = [Message("system", rng.choice(SYSTEM))] if rng.random() < 0.25 else []
    return Dialogue([*system, *(message for one in before for message in one), *exchange], tools, "chat")


def language_of(rng: Random) -> str:
    """The language of a dialogue."""
    return "en" if rng.random() < 0.55 else "zh"


def easy_dialogue(rng: Random) -> Dialogue:
    """One scene in which something has to be copied: what training begins with, since all else builds on it."""
    cast = Cast(rng, language_of(rng))
    name = rng.choice(EASY)
    times = 6 if name == "total" else 1
    messages = [message for _ in range(times) for one in SCENES[name][1](cast) for message in one]
    return Dialogue(messages, [], rng.choice(("chat", "transcript")))


def dialogue(rng: Random) -> Dialogue:
    """A dialogue of ordinary length."""
    language, pick = language_of(rng), rng.random()
    if pick < 0.66:
        style = "chat" if rng.random() < 0.5 else "transcript"
        return talk(rng, language, style, rng.choice((1, 1, 2, 2, 3, 3, 4)))
    style = "chat" if rng.random() < 0.88 else "transcript"
    if pick < 0.69:
        return toolless(rng, language, style)
    return work(rng, language, style, rng.choice((1, 1, 2, 2, 3)), rng.choice((0, 0, 0, 1)))


def reunion(rng: Random, language: str, style: str, scenes: int) -> Dialogue:
    """A dialogue in which a name is given early and asked for now and again, last of all at the end."""
    cast = Cast(rng, language)
    who = cast.name()
    named = set().union(*(group for group in EXCLUSIVE if "own_name" in group))
    exchanges = interleave(rng, draw_scenes(cast, scenes, named))
    for _ in range(scenes // 6):
        exchanges.insert(rng.randint(0, len(exchanges)), ask_name(cast, who))
    exchanges = [tell_name(cast, who), *exchanges, ask_name(cast, who)]
    return Dialogue([message for one in exchanges for message in one], [], style)


def long_dialogue(rng: Random) -> Dialogue:
    """A dialogue of many turns: one language mostly, facts from far back asked for at the end."""
    language = language_of(rng)
    style = "chat" if rng.random() < 0.6 else "transcript"
    pick = rng.random()
    if pick < 0.55:
        return reunion(rng, language, style, rng.randint(8, 40))
    if pick < 0.75:
        return work(rng, language, style, rng.randint(3, 12), rng.randint(1, 8))
    return talk(rng, language, style, rng.randint(5, 32))
