"""Waiting work in seconds, estimated from the cost of earlier turns."""

from collections.abc import Collection

from cfs_server.engine.contract.backlog import Backlog
from cfs_server.engine.llama.prompt_budget import PromptBudget
from cfs_server.engine.worker.generation import Generation

_LEARNING_RATE = 0.1


_FIRST_GUESS = 128.0


class Forecast:
    """Learns the length of replies; gets the cost of prompts and steps from the budget."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._reply_tokens = _FIRST_GUESS

    def saw_reply(self, tokens: int) -> None:
        """Learn from a turn that ended."""
        self._reply_tokens += _LEARNING_RATE * (tokens - self._reply_tokens)

    def backlog(self, running: Collection[Generation], waiting: Collection[Generation], parallel: int) -> Backlog:
        """Predict the work before a new turn. Without a free place a running turn must end first."""
        if len(running) < parallel:
            return Backlog()
        prompt, reply = self._budget.seconds(1), self._budget.reply_seconds(parallel)
        place = min((self._seconds(turn, prompt, reply) for turn in running), default=0.0)
        return Backlog.of(place, ((*turn.share[:2], self._seconds(turn, prompt, reply)) for turn in waiting))

    def _seconds(self, turn: Generation, per_prompt_token: float, per_reply_token: float) -> float:
        known = max(turn.computed, turn.spared)
        prompt = max(0, turn.prompt_tokens - known) if not turn.completion_tokens else 0
        reply = max(1.0, min(self._reply_tokens, turn.max_tokens) - turn.completion_tokens)
        return prompt * per_prompt_token + reply * per_reply_token
