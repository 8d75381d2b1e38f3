"""The console of an agent: prints its events, text as it comes, calls and results once, in few lines (A8)."""

import hashlib
import sys
from collections import Counter
from typing import TextIO

from cfs.wire import Usage
from cfs_agents.base.events import (
    AgentEvent,
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
from cfs_agents.loop.model import Chunk, CompleteResponse
from cfs_agents.main.blocks import Block, DiscardedReply, Passage, StreamProcessor
from cfs_agents.main.formatting import (
    FormattedBlock,
    counted,
    file_of,
    format_call,
    format_result,
    listed,
    output_of,
    shown_value,
    went_wrong,
)
from cfs_agents.main.page import ConsolePage
from cfs_agents.tree.tool_names import SYNC_CONTEXT

_THINKS = "~ "
_CALLS = "> "
_RESULTS = "< "
_BELOW = "    "

_ENDS: dict[EndReason, str] = {
    "answered": "",
    "unverified": "unverified",
    "rounds": "stopped at the limit of steps",
    "interrupted": "interrupted",
    "failed": "failed",
}


class IncrementalOutputFormatter:
    """Formats blocks as text and prints them, one conversation after the other."""

    def __init__(self, out: TextIO) -> None:
        self._page = ConsolePage(out)
        self.reset()

    def reset(self) -> None:
        """Begin another conversation: counts and known outputs are cleared."""
        self._page.begin_line()
        self._kind = ""
        self._operations: Counter[str] = Counter()
        self._outputs: set[bytes] = set()
        self._rounds = 0
        self._usage = Usage()
        self._waiting = False

    @property
    def closed(self) -> bool:
        """Whether the reader has left."""
        return self._page.closed

    def print(self, block: Block) -> None:
        """Print a block at once."""
        if self._waiting and not isinstance(block, DiscardedReply | Warned | Finished):
            self._waiting = False
            self._remark("the model answers again")
        match block:
            case Passage(kind, text):
                self._words(kind, text)
                return
            case CallStarted(call) if call.name == SYNC_CONTEXT and self._is_repeated(
                "call", shown_value(call.arguments)
            ):
                self._tell(_CALLS, FormattedBlock(call.name, ["[the same context window as before]"]), "cyan")
            case CallStarted(call):
                path = file_of(call)
                if path is not None:
                    self._operations[path] += 1
                self._tell(_CALLS, format_call(call, self._operations[path] if path is not None else 0), "cyan")
            case CallFinished(call, result):
                repeated = self._is_repeated(call.name, output_of(call, result))
                formatted = format_result(call, result, repeated=repeated)
                self._tell(_RESULTS, formatted, "red" if went_wrong(call, result) else "green")
            case ContextUpdated(lines, number):
                self._remark(f"context window number {number:,}: {counted(lines, 'line')}")
            case ContextShortened(before, after, summarised):
                how = "summed up" if summarised else "shortened"
                self._remark(f"the conversation was {how}: {before:,} tokens to {after:,}")
            case Warned(text):
                self._remark(f"warning: {text}", "yellow")
            case DiscardedReply(reason, _, shown):
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

    def _tell(self, mark: str, block: FormattedBlock, colour: str) -> None:
        self._page.line(block.heading, prefix=mark, colour=colour)
        for line in block.lines:
            self._page.line(line, prefix=_BELOW, dim=mark == _RESULTS)

    def _remark(self, text: str, colour: str = "") -> None:
        self._page.line(f"[{' '.join(text.split())}]", colour=colour, dim=not colour)

    def _is_repeated(self, tool: str, text: str) -> bool:
        key = hashlib.blake2b(f"{tool}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        repeated = key in self._outputs
        self._outputs.add(key)
        return repeated

    def _count(self, usage: Usage) -> None:
        self._usage += usage

    def _end(self, reason: EndReason, detail: str) -> None:
        if how := ": ".join(filter(None, (_ENDS[reason], detail))):
            self._remark(how)
        used = self._usage
        self._remark(
            f"{counted(self._rounds, 'step')}, {counted(used.prompt_tokens, 'token')} read "
            f"({used.cached_tokens:,} of them known), {used.completion_tokens:,} written"
        )
        self._rounds, self._usage = 0, Usage()


class ConsoleStreamHandler:
    """Shows what an agent does, on standard output by default.

        console = ConsoleStreamHandler()
        async for event in agent.run("Tidy up."):
            console.show(event)

    It also takes the chunks and replies of a model. Failures of the output raise nothing; if the reader of a pipe has
    left, `closed` is true.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._stream = StreamProcessor()
        self._printer = IncrementalOutputFormatter(out or sys.stdout)

    @property
    def closed(self) -> bool:
        """Whether the reader has left."""
        return self._printer.closed

    def show(self, event: AgentEvent | Chunk | CompleteResponse) -> None:
        """Show the blocks that an event completes."""
        for block in self._stream.feed(event):
            self._printer.print(block)

    def reset(self) -> None:
        """Show what is held back and begin another conversation; counts start again."""
        for block in self._stream.finish():
            self._printer.print(block)
        self._stream = StreamProcessor()
        self._printer.reset()


__all__ = ["Block", "ConsoleStreamHandler", "DiscardedReply", "Passage", "StreamProcessor"]
