"""Puts the questions of agents to the user of a terminal while a reply is awaited (A5, C10)."""

import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Self

from cfs import api
from cfs.cli.actions.questions import as_lines, discard_typed, match_choice, sessions_with_questions
from cfs.cli.base.output import is_terminal, note, print_error
from cfs.contract.errors import CfsError, Conflict
from cfs.contract.invisible import shapely
from cfs.contract.wire import Question
from cfs.state.question_text import WISHES
from cfs.state.stream import StreamEvent
from cfs.transports.http import Client

_INPUT = 0
_SIGNAL = signal.SIGUSR1


class UnansweredQuestion(BaseException):
    """An agent asks something, and there is no terminal. The text says how to answer. Like an interrupt, not caught."""


class TerminalQuestions:
    """Asks the user the open questions of a session's agent, and of the agents below it, during a `with` block.

    A thread shows one question at a time and reads its answer, so that the reply goes on meanwhile, and a question that
    is answered elsewhere is dropped. Without a terminal the first question raises `UnansweredQuestion`.
    """

    def __init__(self, client: Client, session: str) -> None:
        self.session = session
        self._client = client
        self._interactive = is_terminal(sys.stdin) and is_terminal(sys.stderr)
        self._open: dict[str, tuple[str, Question]] = {}
        self._closed: dict[str, str | None] = {}
        """The answers of questions that need no answer from here; None where the user has declined to give one."""
        self._lock = threading.Lock()
        self._waiting: int | None = None
        self._wakeup: int | None = None
        """The ends of a pipe that wakes the thread; None outside of the block."""
        self._active = False
        self._following = False
        self._thread: threading.Thread | None = None
        self._before: Any = None

    def watch(self, event: StreamEvent) -> None:
        """Take note of an event of the awaited turn: its questions, and signs that other agents may ask."""
        self._take(event)
        calls = event.type == "message.added" and event.data["message"].get("tool_calls")
        if not self._following and (event.type in ("state.changed", "question.asked") or calls):
            self._following = True
            threading.Thread(target=self._follow, daemon=True).start()

    def __enter__(self) -> Self:
        self._active = True
        if self._interactive:
            self._waiting, self._wakeup = os.pipe()
            self._thread = threading.Thread(target=self._ask_all, args=(self._waiting,), daemon=True)
            self._thread.start()
        else:
            self._before = signal.signal(_SIGNAL, self._give_up)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = False
        if self._thread is not None:
            self._wake()
            self._thread.join()
            with self._lock:  # the thread that follows the tree goes on, and finds no pipe to write to
                for descriptor in (self._waiting, self._wakeup):
                    if descriptor is not None:
                        os.close(descriptor)
                self._waiting = self._wakeup = None
        else:
            signal.signal(_SIGNAL, self._before)

    def _follow(self) -> None:
        """Follow the questions of the whole tree until the client is closed."""
        stream = replace(api.events(), announce=True)
        with suppress(CfsError, RuntimeError), closing(self._client.events(stream, attempts=float("inf"))) as events:
            for event in events:
                if event.type in ("connected", "stale"):
                    self._list()
                elif event.session == self.session or event.session.startswith(f"{self.session}/"):
                    self._take(event)

    def _list(self) -> None:
        with suppress(CfsError):
            for session in sessions_with_questions(self._client, self.session):
                for question in self._client.call(api.questions(session)):
                    self._add(session, question)

    def _take(self, event: StreamEvent) -> None:
        if event.type == "question.asked":
            self._add(event.session, _question_of(event))
        elif event.type == "question.answered":
            with self._lock:
                self._open.pop(event.data["id"], None)
                self._closed.setdefault(event.data["id"], event.data.get("answer"))
            self._wake()

    def _add(self, session: str, question: Question) -> None:
        with self._lock:
            if question.id in self._open or question.id in self._closed:
                return
            self._open[question.id] = session, question
        if self._interactive:
            self._wake()
        elif self._active:  # the main thread waits for the server: a signal interrupts that
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _give_up(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is fixed
        session, question = next(iter(self._open.values()))
        raise UnansweredQuestion(how_to_answer(session, question))

    def _wake(self) -> None:
        with self._lock:
            if self._wakeup is not None:
                os.write(self._wakeup, b".")

    def _ask_all(self, wakeup: int) -> None:
        """Ask one question after the other until the block ends.

        `__exit__` closes the pipe: the last one to wake the thread may do so when it has ended.
        """
        while self._active:
            with self._lock:
                session, question = next(iter(self._open.values()), ("", None))
            if question is None:
                os.read(wakeup, 4096)
            else:
                self._ask(session, question, wakeup)

    def _ask(self, session: str, question: Question, wakeup: int) -> None:
        discard_typed()  # what was typed before the question is no answer to it
        prompt = f"{_choices(question)}? "
        _write(as_lines(session, question) + prompt)
        while True:
            ready, _, _ = select.select([_INPUT, wakeup], [], [])
            if wakeup in ready:
                os.read(wakeup, 4096)
                if not self._active:
                    _write("\n")
                    return
                if question.id not in self._open:
                    note(f"\n[{_closed(self._closed[question.id])}]")
                    return
            if _INPUT in ready:
                line = os.read(_INPUT, 4096)
                answer = match_choice(line.decode(errors="replace").strip(), question)
                if answer or not line:
                    self._close(session, question, answer)
                    return
                _write(prompt)

    def _close(self, session: str, question: Question, answer: str | None) -> None:
        with self._lock:
            self._open.pop(question.id, None)
            self._closed.setdefault(question.id, answer)
        if answer is None:
            note(f"\n[{how_to_answer(session, question)}]")
            return
        try:
            self._client.call(api.answer(session, question.id, answer))
        except Conflict as error:
            note(f"[{error.detail}]")
        except CfsError as error:
            print_error(f"{error.detail}; {how_to_answer(session, question)}")


def how_to_answer(session: str, question: Question) -> str:
    """Return one line that says what an agent asks, and the command that answers it."""
    text = shapely(" ".join(question.text.split()))
    text = text if len(text) <= 200 else f"{text[:200]}..."
    first, *others = question.choices
    answers = f"{first} (or {', '.join(others)})" if others else first
    command = f"cfs answer {shapely(session)} {question.id[:8]} {answers}"
    return f"{shapely(session)} asks whether to {WISHES[question.kind]} {text!r}: {command}"


def _question_of(event: StreamEvent) -> Question:
    data: Mapping[str, Any] = {"asked_at": event.time, "state": "open", **event.data}
    return Question.model_validate(data)


def _choices(question: Question) -> str:
    *others, last = question.choices
    return f"{', '.join(others)} or {last}" if others else last


def _closed(answer: str | None) -> str:
    return "withdrawn" if answer is None else f"answered elsewhere: {answer}"


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
