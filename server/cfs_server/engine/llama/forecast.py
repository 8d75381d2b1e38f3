"""How long a turn that came now would wait: learnt from what turns cost here (back-pressure in seconds)."""

from collections.abc import Collection

from cfs_server.engine.llama.budget import PromptBudget
from cfs_server.engine.llama.sequences import Generation

_LEARNING_RATE = 0.1
_FIRST_GUESS = 128.0


class Forecast:
    """Learns the length of replies; asks the budget what prompts and steps cost."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget
        self._reply_tokens = _FIRST_GUESS

    def saw_reply(self, tokens: int) -> None:
        """Learn from a turn that ended."""
        self._reply_tokens += _LEARNING_RATE * (tokens - self._reply_tokens)

    def wait(self, running: Collection[Generation], waiting: Collection[Generation], parallel: int) -> float:
        """Predict in seconds: the first of those that run must end, and all that wait must be served."""
        if len(running) < parallel:
            return 0.0
        each = self._budget.cost.seconds(parallel) / parallel
        first = min((self._seconds(turn, each) for turn in running), default=0.0)
        return first + sum(self._seconds(turn, each) for turn in waiting)

    def _seconds(self, turn: Generation, each: float) -> float:
        """Predict what is left of a turn, of whose reply a token takes so many seconds of the engine."""
        prompt = max(0, turn.prompt_tokens - turn.computed) if not turn.completion_tokens else 0
        reply = max(1.0, min(self._reply_tokens, turn.max_tokens) - turn.completion_tokens)
        return self._budget.seconds(prompt) + reply * each
