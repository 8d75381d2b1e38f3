"""Finds where the newest tokens of a reply occurred before. What followed them there is a guess of what follows now.

Sources are the reply's own session and the sessions of the same owner whose turns ended last. Sources never cross
owners: a correct guess makes a reply faster, which would reveal what others have written.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from cfs_server.engine.llama.ffi import Tokens

SHORTEST = 3
"""Tokens that must agree before a guess is made."""
LONGEST = 64
"""Agreeing tokens that are counted at most: more say no more about the next token."""
_CANDIDATES = 8
"""Earlier occurrences that are compared; the most recent ones."""
_BITS = 21
"""Bits of a token in a key. The largest vocabularies have about 2 ** 18 tokens."""
_MASK = (1 << (_BITS * SHORTEST)) - 1

SESSIONS = 32
"""Sessions of an owner that are searched; each takes a look at a dictionary for each token."""
OWNER_TOKENS = 1 << 16
"""Tokens of an owner that are searched; each takes about 100 bytes."""
ALL_TOKENS = 1 << 18
"""Tokens of all owners together."""


_FIRST_RATES = (0.1, 0.1, 0.15, 0.35, 0.65, 0.85, 0.95, 0.97)
"""First guesses of how often a lookup is right, by the bits of the number of agreeing tokens."""
_RATE_OF_HITS = 0.03
_FIRST_RATE_OF_HITS = 0.2
"""The first tokens say more than the first guess; each later one changes it less."""
_RATE_OF_TRUST, _RATE_OF_RECOVERY = 0.1, 0.002
"""How fast trust follows the drafts, and how fast it comes back without any: a draft that is not made says nothing."""
_LEAST_TRUST = 0.3


class TokenIndex:
    """An index of all runs of `SHORTEST` tokens. The tokens may grow: `extend` takes in what is new."""

    def __init__(self, tokens: "array[int]") -> None:
        self.tokens = tokens
        self._newest: dict[int, int] = {}
        self._earlier = array("i")
        self._key = 0
        self._size = 0
        if len(tokens) > SHORTEST:
            self._build()

    def extend(self) -> None:
        """Take in the tokens that were appended."""
        earlier, newest, key = self._earlier, self._newest, self._key
        for position, token in enumerate(islice(self.tokens, self._size, None), self._size):
            if position >= SHORTEST:
                earlier.append(newest.get(key, -1))
                newest[key] = position
            else:
                earlier.append(-1)
            key = (key << _BITS | token) & _MASK
        self._key, self._size = key, len(self.tokens)

    def find(self, log: "array[int]", key: int) -> tuple[int, int]:
        """Find the longest earlier occurrence of a log's end, whose key is given.

        Returns the place behind it and the number of agreeing tokens; (-1, 0) if there is none. Of equally long ones
        it is the most recent.
        """
        position, best, length = self._newest.get(key, -1), -1, 0
        if position < 0:
            return best, length
        for _ in range(_CANDIDATES):
            if position < 0:
                break
            same = self._agreeing(log, position)
            if same > length:
                best, length = position, same
            position = self._earlier[position]
        return best, length

    @property
    def key(self) -> int:
        """The key of the last tokens."""
        return self._key

    def _agreeing(self, log: "array[int]", place: int) -> int:
        tokens, end = self.tokens, len(log)
        max_length = min(LONGEST, place, end)
        return next((size for size in range(max_length) if tokens[place - 1 - size] != log[end - 1 - size]), max_length)

    def _build(self) -> None:
        """Do what `extend` does for many tokens at once."""
        tokens = np.array(self.tokens, dtype=np.int64)
        keys = np.zeros(len(tokens) - SHORTEST + 1, dtype=np.int64)
        for offset in range(SHORTEST):
            keys = keys << _BITS | tokens[offset : offset + len(keys)]
        self._key, self._size = int(keys[-1]), len(tokens)
        keys = keys[:-1]
        order = np.argsort(keys, kind="stable")
        same = keys[order[1:]] == keys[order[:-1]]
        earlier = np.full(len(tokens), -1, dtype=np.int32)
        earlier[order[1:][same] + SHORTEST] = order[:-1][same] + SHORTEST
        self._earlier = array("i", earlier.tobytes())
        self._newest = dict(zip(keys.tolist(), range(SHORTEST, len(tokens)), strict=True))


class Siblings:
    """The tokens of the sessions of each owner whose turns ended last, for as long as the sessions exist."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, OrderedDict[str, TokenIndex]] = OrderedDict()
        self._owner_of: dict[str, str] = {}

    def add(self, owner: str, key: str, tokens: Tokens) -> None:
        """Append tokens to a session; what was used longest ago gives way."""
        sessions = self._owners.setdefault(owner, OrderedDict())
        self._owners.move_to_end(owner)
        index = sessions.get(key)
        if index is None:
            index = sessions[key] = TokenIndex(array("i"))
            self._owner_of[key] = owner
        sessions.move_to_end(key)
        index.tokens.frombytes(tokens[-OWNER_TOKENS:].tobytes())
        index.extend()
        while len(sessions) > SESSIONS or (len(sessions) > 1 and self._size(owner) > OWNER_TOKENS):
            self.forget(next(iter(sessions)))
        if len(index.tokens) > OWNER_TOKENS:
            sessions[key] = TokenIndex(index.tokens[-OWNER_TOKENS // 2 :])
        while sum(map(self._size, self._owners)) > ALL_TOKENS:
            self.forget(next(iter(next(iter(self._owners.values())))))

    def forget(self, key: str) -> None:
        """Drop the tokens of a session."""
        owner = self._owner_of.pop(key, None)
        if owner is not None:
            del self._owners[owner][key]
            if not self._owners[owner]:
                del self._owners[owner]

    def of(self, owner: str, key: str) -> Iterator[TokenIndex]:
        """Yield the indexes of an owner's sessions except one."""
        for other, index in self._owners.get(owner, {}).items():
            if other != key:
                yield index

    def _size(self, owner: str) -> int:
        return sum(len(index.tokens) for index in self._owners[owner].values())


class HitRates:
    """How often a lookup is right behind so many agreeing tokens, for one owner."""

    def __init__(self) -> None:
        self._rates = list(_FIRST_RATES)
        self._seen = [0] * len(_FIRST_RATES)
        self._promised = self._accepted = 1.0

    @property
    def trust(self) -> float:
        """What drafts bring, as a part of what the rates promise: what repeats by chance ends sooner."""
        return min(self._accepted / self._promised, 1.0)

    def verified(self, promised: float, accepted: int) -> None:
        """Learn from a draft of which `promised` tokens were expected to be accepted."""
        by_rates = promised / self.trust
        self._promised += _RATE_OF_TRUST * (by_rates - self._promised)
        self._accepted += _RATE_OF_TRUST * (max(accepted, _LEAST_TRUST * by_rates) - self._accepted)

    def saw(self, matched: int, *, hit: bool) -> None:
        """Learn from one token."""
        self._accepted += _RATE_OF_RECOVERY * (self._promised - self._accepted)
        row = _row(matched)
        self._seen[row] += 1
        rate = max(_RATE_OF_HITS, _FIRST_RATE_OF_HITS / self._seen[row] ** 0.5)
        self._rates[row] += rate * (hit - self._rates[row])

    def of(self, matched: int) -> float:
        """Estimate the probability that the next token is right."""
        return self._rates[_row(matched)]


@dataclass(slots=True)
class Drafter:
    """The lookup of one turn: where in which source its newest tokens occurred before."""

    log: "array[int]"
    rates: HitRates
    index: TokenIndex = field(init=False)
    source: "array[int] | None" = None
    place: int = -1
    matched: int = 0
    promised: float = 0.0
    _seen: int = field(init=False)

    def __post_init__(self) -> None:
        self.index = TokenIndex(self.log)
        self._seen = len(self.log)

    def follow(self, siblings: Iterable[TokenIndex]) -> None:
        """Take in the newest tokens: learn from the guesses, and search when the last one was wrong."""
        log, source = self.log, self.source
        for token in log[self._seen :]:
            if source is None:
                continue
            hit = self.place < len(source) and source[self.place] == token
            if self.place < len(source):
                self.rates.saw(self.matched, hit=hit)
            if hit:
                self.place, self.matched = self.place + 1, self.matched + 1
            else:
                source = None
        self._seen = len(log)
        self.index.extend()
        self.source = source
        if source is None:
            self._search(siblings)

    def verified(self, accepted: int) -> None:
        """Learn from a draft of which `promised` tokens were expected to be accepted."""
        if self.promised:
            self.rates.verified(self.promised, accepted)

    def guess(self, count: int) -> "array[int]":
        """Return at most so many guessed tokens."""
        return self.source[self.place : self.place + count] if self.source is not None else array("i")

    def _search(self, siblings: Iterable[TokenIndex]) -> None:
        key, best = self.index.key, 0
        for index in (self.index, *siblings):
            position, length = index.find(self.log, key)
            if length > best and position < len(index.tokens):
                self.source, self.place, self.matched, best = index.tokens, position, length, length


def _row(matched: int) -> int:
    return min(matched.bit_length(), len(_FIRST_RATES) - 1)
