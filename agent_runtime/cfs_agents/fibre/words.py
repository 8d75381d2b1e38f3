"""What Fibre itself says to agents and to those who read their sessions, in English and in Chinese. Pure: no I/O."""

from dataclasses import dataclass

from cfs_agents.sentences import Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The sentences in one language; `{}` stands for what differs.

    - `taken`: the reply to a message whose agent has meanwhile taken the next one.
    - `letter`: a message of another agent (who, what). `news`: a child is done (its report).
    - `at_work`: an agent answers while its children (names) are at work.
    - `called`: a wait ends early, as somebody has written (whose report was waited for).
    - `sent`: a message was given to an agent. `silent`: a child answered, and never reported.
    - `no_answer` (how many rounds), `too_long` (seconds), `stopped`, `parent_over`: why an agent was ended.
    """

    taken: str
    letter: str
    news: str
    at_work: str
    called: str
    sent: str
    silent: str
    no_answer: str
    too_long: str
    stopped: str
    parent_over: str


_FIBRE_ENGLISH = Words(
    taken="[A newer message has come; the work goes on with it.]",
    letter="[Message from {}]\n{}",
    news="[A sub-agent is done.]\n{}",
    at_work="[These agents are still at work: {}. Wait for them, or answer again to end them.]",
    called="{} is still at work. A message has come for you: read it, then wait again.",
    sent="{} has the message.",
    silent="it answered without a report",
    no_answer="it came to no end in {} turns",
    too_long="it took longer than {:g} s",
    stopped="it was cancelled",
    parent_over="its parent has ended",
)

_FIBRE_CHINESE = Words(
    taken="[有新消息，工作从新消息继续。]",
    letter="[来自 {} 的消息]\n{}",
    news="[一个子智能体已结束。]\n{}",
    at_work="[这些智能体仍在工作：{}。请等待它们，或再次回答以结束它们。]",
    called="{} 仍在工作。有一条给你的消息：请先阅读，再继续等待。",
    sent="{} 已收到消息。",
    silent="它回答了，但没有报告",
    no_answer="{} 轮内没有结束",
    too_long="用时超过 {:g} 秒",
    stopped="它被取消了",
    parent_over="它的上级已结束",
)


def words(language: Language) -> Words:
    """Return Fibre's sentences in a language."""
    return _FIBRE_CHINESE if language == "zh" else _FIBRE_ENGLISH
