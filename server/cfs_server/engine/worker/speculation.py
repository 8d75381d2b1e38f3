"""Speculation: guesses the next tokens of streams, and decides how many are worth verifying.

Guesses come from lookup, and from grammars: where a grammar leaves one text only, it spells that text.

A step computes guessed tokens (a draft) with the token before them. The sampler then chooses from the model's own
distribution at each place, and goes on while its choice is the guessed token. So each token is drawn as without a
draft, from the same random numbers. The cells of refused tokens are removed.

How often guesses are right is measured at each token, whether or not it was drafted, by the number of tokens that
agree before it. The cost of a step is measured too. A step gets the number of draft tokens that promises most tokens a
second, which is often none.
"""

import heapq
from array import array
from collections.abc import Iterable, Mapping

import numpy as np
from cachetools import LRUCache

from cfs_server.engine.llama.cost_model import TILE, StepCost
from cfs_server.engine.llama.model import LoadedModel
from cfs_server.engine.worker.generation import Generation
from cfs_server.engine.worker.lookup import Drafter, HitRates, Siblings
from cfs_server.engine.worker.stream_cost import StreamCost

MOST_TOKENS = TILE - 1
"""Tokens of a step with drafts. In a full tile attention rounds otherwise, and then greedy texts differ."""
ALWAYS_TOKENS = 8
"""Draft tokens of each turn when costs do not matter: for tests."""
_OWNERS = 1024
"""Owners whose hit rates are known."""
_UNLIKELY = 0.02
"""Draft tokens that are less likely to be needed are left out."""
_GAIN, _GAIN_BESIDE = 1.03, 0.03
"""Promised tokens a second, relative to those without drafts, from which a draft is made: predictions have errors. Each
stream beside it raises that. Cells of drafts come in no regular order. The library then takes longer to find a stream's
own cells among all, also in later steps: measured up to 1.3 times with 32 streams."""
_PATIENCE = 8
"""After so many more draft tokens that promise fewer tokens a second, no more are considered."""
_LONGER = 1.5
"""A step with drafts may take so many times longer than one without, where that is too long already."""
_FORCED_RATE = 0.9
"""First guess of how often a model cuts a forced text into the same tokens."""
_RATE = 0.1
"""How fast the rate of forced tokens is learned."""


class Speculation:
    """Makes the drafts of a step, and learns from each step."""

    def __init__(self, model: LoadedModel, prompts: StepCost) -> None:
        mode = model.options.speculation
        self.on = model.context.partial and (mode in ("on", "always") or (mode == "auto" and model.rounds_alike))
        self._always = mode == "always"
        self._vocabulary = model.vocabulary
        self._cost = StreamCost(prompts, tiled=model.context.tiled)
        self._siblings = Siblings()
        self._rates: LRUCache[str, HitRates] = LRUCache(_OWNERS)
        self._forced_rate = _FORCED_RATE
        self.drafted = self.accepted = 0

    def drafts(self, turns: Iterable[Generation], most_seconds: float) -> "dict[Generation, array[int]]":
        """Guess the next tokens of streams, as many as pay in a step that takes `most_seconds` at most."""
        streams = list(turns)
        if not self.on or not (self._always or self._cost.known):
            return {}
        guesses: dict[Generation, array[int]] = {}
        for turn in streams:
            drafter = self._drafter(turn)
            drafter.follow(self._siblings.of(turn.owner, turn.cache_key))
            max_tokens = min(turn.left - 1, ALWAYS_TOKENS if self._always else MOST_TOKENS)
            if max_tokens > 0 and (guess := self._guess(turn, drafter, max_tokens)):
                guesses[turn] = guess
        if not guesses:
            return {}
        if self._always:
            counts = dict.fromkeys(list(guesses)[: (MOST_TOKENS - len(streams)) // ALWAYS_TOKENS], ALWAYS_TOKENS)
        else:
            counts = self._worthwhile(guesses, streams, most_seconds)
        drafts = {turn: self._text_only(guesses[turn][:count]) for turn, count in counts.items()}
        return {turn: draft for turn, draft in drafts.items() if draft}

    def saw_step(self, turns: Iterable[Generation], tokens: int, seconds: float) -> None:
        """Learn from a step of streams alone."""
        if self.on:
            depths = [len(turn.log) for turn in turns]
            self._cost.saw(tokens, sum(depths) / len(depths), seconds)

    def verified(self, turn: Generation, drafted: int, accepted: int) -> None:
        """Count the tokens of a draft, and learn from those that a grammar forced."""
        forced = min(drafted, turn.forced)
        for index in range(min(forced, accepted + 1)):
            self._forced_rate += _RATE * ((index < accepted) - self._forced_rate)
        if not forced and turn.drafter is not None:
            turn.drafter.verified(accepted)
        turn.drafted += drafted
        turn.accepted += accepted
        self.drafted += drafted
        self.accepted += accepted

    def ended(self, turn: Generation) -> None:
        """Keep the tokens of a turn that others had not, for turns of the same owner."""
        turn.drafter = None
        if self.on and not turn.forgotten and len(turn.log) - turn.spared > 1:
            self._siblings.add(turn.owner, turn.cache_key, np.array(turn.log[turn.spared :], dtype=np.int32))

    def forget(self, key: str) -> None:
        """Drop the tokens of a deleted session."""
        self._siblings.forget(key)

    def _guess(self, turn: Generation, drafter: Drafter, most: int) -> "array[int]":
        """Guess what the grammar forces, and what was found if it begins with that."""
        forced = array("i", turn.sampler.forced()[:most])
        turn.forced = len(forced)
        guess = drafter.guess(most)
        return guess if guess[: len(forced)] == forced else forced

    def _drafter(self, turn: Generation) -> Drafter:
        if turn.drafter is None:
            rates = self._rates[turn.owner] = self._rates.get(turn.owner) or HitRates()
            turn.drafter = Drafter(turn.log, rates)
        return turn.drafter

    def _worthwhile(
        self,
        guesses: "Mapping[Generation, array[int]]",
        streams: list[Generation],
        most_seconds: float,
    ) -> dict[Generation, int]:
        """Choose the number of draft tokens of each turn that promises most tokens a second."""
        count = len(streams)
        depth = sum(len(turn.log) for turn in streams) / count
        promised = float(count)
        plain = self._cost.seconds(count, depth)
        gain = _GAIN + _GAIN_BESIDE * (count - 1)
        best, limit = gain * promised / plain, max(most_seconds, _LONGER * plain)
        order: list[tuple[Generation, float]] = []
        highest, highest_at = promised / plain, 0
        size = 0
        open_drafts = [(-self._first(turn), number, turn) for number, turn in enumerate(guesses)]
        heapq.heapify(open_drafts)
        counts = dict.fromkeys(guesses, 0)
        while open_drafts and count + len(order) < MOST_TOKENS:
            chance, number, turn = heapq.heappop(open_drafts)
            if -chance < _UNLIKELY:
                break
            order.append((turn, -chance))
            counts[turn] += 1
            promised -= chance
            seconds = self._cost.seconds(count + len(order), depth)
            rate = promised / seconds
            if seconds <= limit and rate > best:
                best, size = rate, len(order)
            if rate > highest:
                highest, highest_at = rate, len(order)
            elif len(order) - highest_at >= _PATIENCE:
                break
            if counts[turn] < len(guesses[turn]):
                heapq.heappush(open_drafts, (-self._next(turn, counts[turn], -chance), number, turn))
        chosen: dict[Generation, int] = {}
        for turn, chance in order[:size]:
            if turn not in chosen:
                self._drafter(turn).promised = 0.0
            self._drafter(turn).promised += chance
            chosen[turn] = chosen.get(turn, 0) + 1
        return chosen

    def _first(self, turn: Generation) -> float:
        return self._next(turn, 0, 1.0 if turn.forced else self._drafter(turn).rates.trust)

    def _next(self, turn: Generation, place: int, chance: float) -> float:
        if place < turn.forced:
            return chance * self._forced_rate
        drafter = self._drafter(turn)
        return chance * drafter.rates.of(drafter.matched + place)

    def _text_only(self, draft: "array[int]") -> "array[int]":
        """Cut a draft before a token that ends replies."""
        ends = self._vocabulary.ends_of_turns
        return draft[: next((index for index, token in enumerate(draft) if token in ends), len(draft))]
