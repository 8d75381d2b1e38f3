"""The price of a long conversation: ten turns of one session, tokens evaluated and time to the first token of each."""

from dataclasses import dataclass

from cfs.wire import Message
from engine_bench.bench import Bench
from engine_bench.prompts import assistant
from engine_bench.sides import Setup, Turn
from engine_bench.tables import Verdict, table

NEW_TOKENS, REPLY = 100, 16
BAR = 1.05


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of the conversation."""

    number: int
    prompt_tokens: int
    new_tokens: int
    evaluated: int
    first_token_seconds: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """All turns."""

    turns: list[Measured]

    def markdown(self) -> str:
        """Write the table."""
        columns = ["turn", "prompt tokens", "new", "evaluated", "first token s"]
        rows = [[t.number, t.prompt_tokens, t.new_tokens, t.evaluated, t.first_token_seconds] for t in self.turns]
        return table(columns, rows, left=0)

    def verdicts(self) -> list[Verdict]:
        """Judge by the turn that evaluated most beside what was new."""
        worst = max(turn.evaluated / turn.new_tokens for turn in self.turns)
        return [Verdict("tokens evaluated over new ones, worst turn", worst, BAR)]


async def run(bench: Bench) -> Conversation:
    """Hold one conversation."""
    model = bench.models.large
    prompts = bench.models.prompts(model)
    history: list[Message] = []
    measured: list[Measured] = []
    # The last token of a reply was chosen, and nothing was computed from it: it is new to the next turn.
    known = 0
    async with bench.ours(Setup(model, bench.threads, 1, 4096)) as side:
        for number in range(1, 4 if bench.smoke else 11):
            history.append(prompts.message(f"turn {number}", NEW_TOKENS, history))
            before = await side.evaluated()
            answer = await side.ask(Turn("conversation", tuple(history), REPLY))
            evaluated = await side.evaluated() - before
            new = answer.prompt_tokens - known
            measured.append(Measured(number, answer.prompt_tokens, new, evaluated, answer.first_token_seconds))
            known = answer.prompt_tokens + answer.tokens - 1
            history.append(assistant(answer.text))
    return Conversation(measured)
