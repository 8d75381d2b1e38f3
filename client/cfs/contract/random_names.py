"""Names for sessions without one: `calm-otter-3`. Each word is short, easy to spell and to say, and friendly."""

import re
from collections.abc import Iterator
from random import SystemRandom

ADJECTIVES = re.findall(
    r"\w+",
    """
    able agile airy amber apt azure bold brave breezy bright brisk bronze calm candid clear clever cosy crisp
    curly dapper deft eager early fair fancy fleet fond fresh gentle glad golden grand green happy hardy honest
    humble ivory jolly keen kind lively loyal lucky lunar mellow merry mild misty modest neat nimble noble patient
    plucky polite proud quick quiet ready rosy royal ruby serene shiny silent silver smart snowy solar spry steady
    sunny swift tidy tranquil vivid warm wise witty
    """,
)

ANIMALS = re.findall(
    r"\w+",
    """
    alpaca badger bat bear beaver bee bison camel cat cheetah crane cricket deer dolphin dove duck eagle egret elk
    falcon ferret finch fox frog gecko gibbon goose hare hawk hedgehog heron horse ibis ibex jay koala lark lemur
    lion lizard llama lynx magpie marten mole moose newt octopus okapi orca osprey otter owl ox panda parrot
    pelican penguin pigeon pony puffin quail rabbit raven robin salmon seal sparrow squid stork swallow swan tapir
    tern tiger toad trout turtle vole walrus whale wolf wombat wren yak zebra
    """,
)

_NAMES_OF_A_SIZE = 8


def random_names() -> Iterator[str]:
    """Yield random names of sessions; their numbers grow, so that a free one is found soon among many sessions."""
    random, highest = SystemRandom(), 9
    while True:
        for _ in range(_NAMES_OF_A_SIZE):
            yield f"{random.choice(ADJECTIVES)}-{random.choice(ANIMALS)}-{random.randint(1, highest)}"
        highest = min(highest * 4, 10**9)


_SUFFIX = "0123456789abcdefghjkmnpqrstvwxyz"
_SUFFIX_LENGTH = 11


def unique_name() -> str:
    """Return a name such as `calm-otter-7k3mq9xt2vb`, which no other session has: it has 67 random bits.

    No server is asked whether it is free, so that a session can be named before a server is reached.
    """
    random = SystemRandom()
    suffix = "".join(random.choices(_SUFFIX, k=_SUFFIX_LENGTH))
    return f"{random.choice(ADJECTIVES)}-{random.choice(ANIMALS)}-{suffix}"
