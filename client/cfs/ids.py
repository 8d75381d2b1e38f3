"""Validates session ids: a file name, or a path of sub-sessions below one (S1).

Clients validate an id before they use it in a URL or a path, so that it cannot reach another resource. The server
validates it again.
"""

import re
from collections.abc import Iterator
from random import SystemRandom

from cfs.errors import InvalidIdentifier
from cfs.wire import MAX_SESSION_ID_BYTES, ROUTE_WORDS

# Names of temporary files. Pure: no I/O.
#
# Editors, desktops and copying programs create such files next to the one that they work on. Mounts store them as
# ordinary files, so that they do not become sessions (F4, W1).

_SCRATCH = re.compile(
    r"\..*"  # dot files: swap files, locks, `rsync` and `gio` temporaries, .DS_Store, ._*, .Trash
    r"|.*~"  # backups
    r"|.*\.sw[a-z]"  # vim
    r"|4913"  # vim tests with it whether it may create a file
    r"|#.*#"  # emacs
    r"|sed[A-Za-z0-9]{6}"  # sed -i
    r"|.*\.partial"  # rclone, before it renames the file
    r"|Thumbs\.db|desktop\.ini",
    re.DOTALL,
)


def is_scratch(name: str) -> bool:
    """Return whether this is the name of a program's temporary file, not of a session."""
    return _SCRATCH.fullmatch(name) is not None


# Names for sessions that nobody named: `calm-otter-3`. Each word is short, easy to spell and to say, and friendly.

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
    random, most = SystemRandom(), 9
    while True:
        for _ in range(_NAMES_OF_A_SIZE):
            yield f"{random.choice(ADJECTIVES)}-{random.choice(ANIMALS)}-{random.randint(1, most)}"
        most = min(most * 4, 10**9)


_SUFFIX = "0123456789abcdefghjkmnpqrstvwxyz"
_SUFFIX_LENGTH = 11


def unique_name() -> str:
    """Return a name such as `calm-otter-7k3mq9xt2vb`, which no other session has: it has 67 random bits.

    Nobody is asked whether it is free, so that a session can be named before a server is reached.
    """
    random = SystemRandom()
    suffix = "".join(random.choices(_SUFFIX, k=_SUFFIX_LENGTH))
    return f"{random.choice(ADJECTIVES)}-{random.choice(ANIMALS)}-{suffix}"


_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_DEPTH = 16


def check_id(session_id: str) -> str:
    """Return the id if it is legal; raise `InvalidIdentifier` with the reason if not (S1)."""
    root, *components = session_id.split("/")
    _check_root(root)
    if len(components) >= _MAX_DEPTH:
        raise InvalidIdentifier(f"sub-sessions may be nested {_MAX_DEPTH} deep at most")
    for component in components:
        if not _COMPONENT.fullmatch(component):
            raise InvalidIdentifier(
                f"the sub-session name {component[:80]!r} must be 1 to 64 letters, digits, '_' or '-' (no trailing '/')"
            )
        if component in ROUTE_WORDS:
            raise InvalidIdentifier(f"a sub-session cannot be called {component!r}: it is a part of the API's routes")
    return session_id


def name_below(root: str, session_id: str) -> str:
    """Return a sub-session's flat name: `coder.tester` for `main/coder/tester` in the directory of `main` (F5, W3)."""
    return session_id.removeprefix(root + "/").replace("/", ".")


def id_below(root: str, name: str) -> str:
    """Return the id for such a name, without validating it."""
    return f"{root}/{name.replace('.', '/')}"


def _check_root(root: str) -> None:
    try:
        size = len(root.encode())
    except UnicodeEncodeError:
        raise InvalidIdentifier("a session id must be valid UTF-8") from None
    if not 1 <= size <= MAX_SESSION_ID_BYTES:
        raise InvalidIdentifier(f"a session id has 1 to {MAX_SESSION_ID_BYTES} bytes; this one has {size}")
    if root.startswith("."):
        raise InvalidIdentifier("a session id must not begin with '.': such names are control files")
    if _CONTROL.search(root):
        raise InvalidIdentifier("a session id must not contain control characters")
