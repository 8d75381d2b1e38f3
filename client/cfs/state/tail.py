"""The text of a growing transcript: events in, text out. Pure: no I/O."""

import re

from cfs.contract.transcript import PREFIXES, render, render_one
from cfs.contract.wire import Message, SessionDetail
from cfs.state.stream import StreamEvent

_PREFIXES = tuple(PREFIXES.values())
_BACKSLASHES = re.compile(r"\\*")


class EscapedText:
    """The content of one message that arrives in pieces, escaped as in a transcript.

    The beginning of a line that may become a role's prefix is withheld until that is known.
    """

    def __init__(self) -> None:
        self._held: str | None = None

    def feed(self, piece: str) -> str:
        """Add a piece and return the text that can be shown now."""
        at_start = self._held is not None
        first, *lines = ((self._held or "") + piece).split("\n")
        starts = [(first, at_start), *((line, True) for line in lines)]
        last, last_at_start = starts[-1]
        self._held = last if last_at_start and _may_become_prefix(last) else None
        rendered = [_guarded(line) if guard else line for line, guard in starts]
        if self._held is not None:
            rendered[-1] = ""
        return "\n".join(rendered)

    def end(self) -> str:
        """Return the withheld text."""
        held, self._held = self._held, None
        return held or ""


class Tail:
    """Converts events of a session to additions to its transcript."""

    def __init__(self) -> None:
        self._shown: str | None = None
        self._text = EscapedText()

    def begin(self, detail: SessionDetail) -> str:
        """Return the current transcript, and continue from there."""
        self._shown = None
        return render(detail.history) + self._add(detail.partial or "")

    def feed(self, event: StreamEvent) -> str:
        """Apply the next event and return the text that it adds."""
        match event.type:
            case "token":
                return self._add(event.data["text"])
            case "message.added":
                return self._complete(Message.model_validate(event.data["message"]))
            case "history.replaced":
                return self._complete(None)
        return ""

    def _add(self, text: str) -> str:
        if not text:
            return ""
        added = ""
        if self._shown is None:
            self._shown, self._text, added = "", EscapedText(), PREFIXES["assistant"]
        added += self._text.feed(text)
        self._shown += added
        return added

    def _complete(self, message: Message | None) -> str:
        """Finish a partly shown message: with the complete message, or because another message begins."""
        rendered, self._shown = self._shown, None
        whole = render_one(message) + "\n" if message else ""
        if rendered is None:
            return whole
        return whole[len(rendered) :] if whole.startswith(rendered) else self._text.end() + "\n" + whole


def _may_become_prefix(line: str) -> bool:
    rest = line[_end_of_backslashes(line) :]
    return any(prefix != rest and prefix.startswith(rest) for prefix in _PREFIXES)


def _guarded(line: str) -> str:
    return "\\" + line if line.startswith(_PREFIXES, _end_of_backslashes(line)) else line


def _end_of_backslashes(line: str) -> int:
    match = _BACKSLASHES.match(line)
    return match.end() if match else 0
