"""How long a turn that came now would wait: learnt from what turns cost here (back-pressure in seconds)."""

from collections.abc import Collection

from cfs_server.engine.llama.budget import PromptBudget
from cfs_server.engine.llama.sequences import Generation

_LEARNING_RATE = 0.1
_FIRST_GUESS = 128.0


class Forecast:
    """Learns the length of replies and the time that a token of them takes; asks the budget what prompts cost."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._reply_tokens = _FIRST_GUESS
        self._seconds_per_token = 0.0

    def saw_step(self, streams: int, tokens: int, seconds: float) -> None:
        """Learn from a step in which nothing but streams was computed."""
        if streams == tokens:
            rate = _LEARNING_RATE if self._seconds_per_token else 1.0
            self._seconds_per_token += rate * (seconds / tokens - self._seconds_per_token)

    def saw_reply(self, tokens: int) -> None:
        """Learn from a turn that ended."""
        self._reply_tokens += _LEARNING_RATE * (tokens - self._reply_tokens)

    def wait(self, running: Collection[Generation], waiting: Collection[Generation], parallel: int) -> float:
        """Predict in seconds: the first of those that run must end, and all that wait must be served."""
        if len(running) < parallel:
            return 0.0
        return min(map(self._cost, running), default=0.0) + sum(map(self._cost, waiting))

    def _cost(self, turn: Generation) -> float:
        prompt = max(0, turn.prompt_tokens - turn.computed) if not turn.completion_tokens else 0
        reply = max(1.0, min(self._reply_tokens, turn.max_tokens) - turn.completion_tokens)
        return prompt * self._budget.seconds_per_token + reply * self._seconds_per_token
