"""The prompts of all unfinished turns: what several of them begin with is computed, and waited for, once."""

from collections.abc import Iterable

from cfs_server.engine.llama.residency import Residency, tokens_of
from cfs_server.engine.llama.sequences import Generation
from cfs_server.engine.prefixes.tree import PrefixTree


class Prompts:
    """Tells each turn, when it comes, how much of its prompt others compute before it or have computed.

    It is told once: should those others be cancelled, the forecast is too low by their prompt until this turn begins.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._tree = PrefixTree()

    def arrive(self, turn: Generation) -> None:
        """Take in a turn and note what of its prompt it need not compute (`Generation.spared`)."""
        if turn.solo:
            return
        tokens = tokens_of(turn.log, turn.prompt_tokens)
        coming = self._tree.match(turn.owner, tokens[:-1]).length if self._residency.partial else 0
        turn.spared = max(coming, self._residency.known(turn.owner, turn.log))
        if (node := self._tree.insert(turn.owner, tokens)) is not None:
            self._tree.attach(turn.id, node)

    def gone(self, turn: Generation) -> None:
        """Forget the prompt of a turn that is over."""
        for node in self._tree.unwanted(self._tree.detach(turn.id)):
            self._tree.remove(node)

    def check_integrity(self, turns: Iterable[Generation]) -> list[str]:
        """Compare the prompts with the unfinished turns; every line is a violation."""
        problems = self._tree.check_integrity()
        ends = {turn.id: self._tree.end_of(turn.id) for turn in turns if not turn.solo}
        if any(node is None for node in ends.values()):
            problems.append("the prompt of an unfinished turn is missing")
        if any(not node.children and not node.sessions for node in self._tree):
            problems.append("a prompt is kept that no unfinished turn has")
        return problems
