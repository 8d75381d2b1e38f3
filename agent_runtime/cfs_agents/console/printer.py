"""Prints blocks: words as they come, calls and results once, in few lines (A8)."""

import hashlib
from collections import Counter
from typing import TextIO

from cfs.wire import Usage
from cfs_agents.console.page import Page
from cfs_agents.console.stream import Block, Passage, Void
from cfs_agents.console.telling import Told, counted, file_of, listed, output_of, told_call, told_result, went_wrong
from cfs_agents.events import (
    CallFinished,
    CallStarted,
    ContextShortened,
    ContextUpdated,
    EndReason,
    FileChanges,
    Finished,
    RoundStarted,
    TurnUsage,
    Warned,
)
from cfs_agents.usage import added

_THINKS = "~ "
_CALLS = "> "
_RESULTS = "< "
_BELOW = "    "

_ENDS: dict[EndReason, str] = {
    "answered": "",
    "unverified": "unverified",
    "rounds": "stopped at the limit of rounds",
    "interrupted": "interrupted",
    "failed": "failed",
}


class Printer:
    """Prints one conversation after the other."""

    def __init__(self, out: TextIO) -> None:
        self._page = Page(out)
        self.reset()

    def reset(self) -> None:
        """Forget what was printed: another conversation begins."""
        self._page.begin_line()
        self._kind = ""
        self._operations: Counter[str] = Counter()
        self._outputs: set[bytes] = set()
        self._rounds = 0
        self._usage = Usage()
        self._waiting = False

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self._page.closed

    def print(self, block: Block) -> None:
        """Print a block at once."""
        if self._waiting and not isinstance(block, Void | Warned | Finished):
            self._waiting = False
            self._remark("the model answers again")
        match block:
            case Passage(kind, text):
                self._words(kind, text)
                return
            case CallStarted(call):
                path = file_of(call)
                if path is not None:
                    self._operations[path] += 1
                self._tell(_CALLS, told_call(call, self._operations[path] if path is not None else 0), "cyan")
            case CallFinished(call, result):
                repeated = self._is_repeated(call.name, output_of(call, result))
                told = told_result(call, result, repeated=repeated)
                self._tell(_RESULTS, told, "red" if went_wrong(call, result) else "green")
            case ContextUpdated(lines, number):
                self._remark(f"context window number {number:,}: {counted(lines, 'line')}")
            case ContextShortened(before, after, summarised):
                how = "summed up" if summarised else "shortened"
                self._remark(f"the conversation was {how}: {before:,} tokens to {after:,}")
            case Warned(text):
                self._remark(f"warning: {text}", "yellow")
            case Void(reason, _, shown):
                void = "; its unfinished reply is discarded" if shown else ""
                if not self._waiting or shown:  # once, however often it is asked
                    self._remark(f"waiting to ask the model again: {reason}{void}")
                self._waiting = True
            case RoundStarted():
                self._rounds += 1
            case TurnUsage(usage):
                self._count(usage)
            case FileChanges():
                for what in ("created", "changed", "deleted"):
                    if paths := getattr(block, what):
                        self._remark(f"{what}: {listed(paths)}")
            case Finished(reason, detail):
                self._end(reason, detail)
        self._kind = ""

    def _words(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self._page.begin_line()
            self._kind = kind
        if kind == "thinking":
            self._page.write(text, prefix="" if self._page.colours else _THINKS, dim=True)
        else:
            self._page.write(text)

    def _tell(self, mark: str, told: Told, colour: str) -> None:
        self._page.line(told.heading, prefix=mark, colour=colour)
        for line in told.lines:
            self._page.line(line, prefix=_BELOW, dim=mark == _RESULTS)

    def _remark(self, text: str, colour: str = "") -> None:
        self._page.line(f"[{' '.join(text.split())}]", colour=colour, dim=not colour)

    def _is_repeated(self, tool: str, text: str) -> bool:
        key = hashlib.blake2b(f"{tool}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        repeated = key in self._outputs
        self._outputs.add(key)
        return repeated

    def _count(self, usage: Usage) -> None:
        self._usage = added(self._usage, usage)

    def _end(self, reason: EndReason, detail: str) -> None:
        if how := ": ".join(filter(None, (_ENDS[reason], detail))):
            self._remark(how)
        used = self._usage
        self._remark(
            f"{counted(self._rounds, 'round')}, {counted(used.prompt_tokens, 'token')} read "
            f"({used.cached_tokens:,} of them known), {used.completion_tokens:,} written"
        )
        self._rounds, self._usage = 0, Usage()
