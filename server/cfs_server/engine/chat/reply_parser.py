"""Parses the text of a reply into thinking, the answer, and tool calls. Pure: no model, no I/O.

Text arrives in pieces of any size, and the joined output does not depend on their boundaries. Text that may be the
beginning of a call is held until this is certain. Text that is no call is returned as text. Only white space around the
parts is dropped.
"""

import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cfs.wire import FinishReason
from cfs_server.engine.chat.json_calls import FoundCall
from cfs_server.engine.chat.tool_call_formats import ANYWHERE, CallFormat, FencedBlock, Parameters, Plain
from cfs_server.engine.contract.interface import CallDelta, Delta

THINK, END_THINK = "<think>", "</think>"
MARKS = (THINK, END_THINK, *(form.MARK for form in ANYWHERE), "</tool_call>", "[ARGS]", "[CALL_ID]")
"""Marks that are special tokens of some models; they must be seen here although such tokens are not text."""

_BY_MARK: dict[str, type[CallFormat]] = {form.MARK: form for form in ANYWHERE}
_FENCE = re.compile(r"(?m:^)[ \t]*(?=```)")
_MARK = re.compile("|".join(map(re.escape, _BY_MARK)))
_ID_CHARACTERS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Make a call's id: nine letters and digits, which is the one form that the templates of some models take."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


class ReplyReader:
    """Reads one reply. Calls are looked for only where there are tools; after `most_calls` nothing more is read."""

    def __init__(
        self,
        tools: Iterable[Mapping[str, Any]] = (),
        *,
        most_calls: int | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        offered = tuple(tools)
        self._parameters = Parameters(offered)
        self._reads_calls = bool(offered)
        self._most = most_calls
        self._new_id = new_id
        self._held = ""
        self._form: CallFormat | None = None
        self._stage: Callable[[bool], bool] = self._begin
        self._unmarked: Callable[[bool], bool] = self._start
        self._answer, self._thinking = _Stripped(), _Stripped()
        self._new_text, self._new_thinking = "", ""
        self._new_calls: list[CallDelta] = []
        self._tokens = 0
        self.calls = 0

    @property
    def full(self) -> bool:
        """Whether as many calls have been read as may be made."""
        return self._most is not None and self.calls >= self._most

    def open(self) -> None:
        """Begin in the middle of thinking: the prompt has opened it."""
        self._unmarked = self._think

    def feed(self, text: str, tokens: int = 0) -> Delta | None:
        """Parse the next piece; return the output that is now certain, if any."""
        self._held += text
        self._tokens += tokens
        return self._read(last=False)

    def finish(self) -> Delta | None:
        """Return the held text at the end of the input."""
        return self._read(last=True)

    def reason(self, reason: FinishReason) -> FinishReason:
        """Return the finish reason of the reply, given the reason of the text."""
        return "tool_calls" if self.calls and (reason == "stop" or self.full) else reason

    def _read(self, *, last: bool) -> Delta | None:
        while self._held and not self.full and self._stage(last):
            pass
        if self.full:
            self._held = ""
        if not (self._new_text or self._new_thinking or self._new_calls):
            return None
        delta = Delta(self._new_text, self._tokens, self._new_thinking, tuple(self._new_calls))
        self._new_text, self._new_thinking, self._new_calls, self._tokens = "", "", [], 0
        return delta

    def _begin(self, last: bool) -> bool:
        """A reply may begin with thinking, and so may the text after a call."""
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held = text[len(THINK) :]
            self._stage = self._think
        elif not THINK.startswith(text) or last:
            self._stage = self._unmarked
        else:
            return False
        return True

    def _think(self, last: bool) -> bool:
        before, mark, after = self._held.partition(END_THINK)
        if mark:
            self._held = after
            self._stage = self._unmarked = self._start
        else:
            certain = len(before) - (0 if last else _tail(before, (END_THINK,)))
            before, self._held = before[:certain], before[certain:]
        self._new_thinking += self._thinking.feed(before)
        return bool(mark)

    def _start(self, last: bool) -> bool:
        """An answer, or the rest of a reply after a call, may begin with a call in plain JSON."""
        if self._reads_calls and self._form is None:
            text = self._held.lstrip()
            bracket = text[:1] == "[" and text[1:].lstrip()[:1]
            if not text or (bracket == "" and not last):
                return False
            if text[0] == "{" or bracket == "{":
                self._take(len(self._held) - len(text))
                self._form = Plain(self._parameters)
        if self._form is not None:
            return self._judge(last)
        self._stage = self._text
        return True

    def _text(self, last: bool) -> bool:
        if not self._reads_calls:
            self._take(len(self._held))
            return False
        if self._form is None:
            position, form = self._next_mark()
            if form is None:
                self._take(len(self._held) - (0 if last else self._possible_mark()))
                return False
            self._take(position)
            self._form = form
        return self._judge(last)

    def _judge(self, last: bool) -> bool:
        """Query the current format; continue after it once it has answered."""
        verdict = self._form.read(self._held, last=last) if self._form is not None else None
        if verdict is None:
            return False
        self._form = None
        if not verdict.calls:
            self._take(verdict.end)
            self._stage = self._text
            return True
        self._held = self._held[verdict.end :]
        for call in verdict.calls:
            if not self.full:
                self._call(call)
        self._unmarked = self._start
        self._stage = self._text if self._answer.begun else self._begin
        return True

    def _next_mark(self) -> tuple[int, CallFormat | None]:
        match = _MARK.search(self._held)
        fence = self._next_fence(match.start() if match else len(self._held))
        if fence is not None:
            return fence, FencedBlock(self._parameters)
        return (match.start(), _BY_MARK[match[0]](self._parameters)) if match else (0, None)

    def _next_fence(self, before: int) -> int | None:
        for match in _FENCE.finditer(self._held, 0, before + 3):
            if match.start() > 0 or self._answer.at_line_start:
                return match.end() if match.end() < before else None
        return None

    def _possible_mark(self) -> int:
        """Length of the tail that may become a mark."""
        line = self._held[self._held.rfind("\n") + 1 :]
        begins_line = "\n" in self._held or self._answer.at_line_start
        fence = line.lstrip(" \t") if begins_line else ""
        return max(_tail(self._held, tuple(_BY_MARK)), len(fence) if fence in ("`", "``") else 0)

    def _take(self, count: int) -> None:
        """Release this much of the held input as text."""
        self._new_text += self._answer.feed(self._held[:count])
        self._held = self._held[count:]

    def _call(self, call: FoundCall) -> None:
        self._new_calls.append(CallDelta(self.calls, self._new_id(), call.name, call.json))
        self.calls += 1


class _Stripped:
    """Passes text on without the white space around the whole."""

    def __init__(self) -> None:
        self.begun = False
        self.at_line_start = True
        """Whether only blanks are between this point and the last line break."""
        self._space = ""

    def feed(self, text: str) -> str:
        """Parse text; return the part that is certain to stay."""
        _, newline, line = text.rpartition("\n")
        self.at_line_start = not line.strip() and (bool(newline) or self.at_line_start)
        whole = self._space + text
        visible = whole.rstrip()
        self._space = whole[len(visible) :]
        if not self.begun:
            visible = visible.lstrip()
            self.begun = bool(visible)
        return visible


def _tail(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest tail that begins one of the marks."""
    for size in range(min(max(map(len, marks)) - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0
