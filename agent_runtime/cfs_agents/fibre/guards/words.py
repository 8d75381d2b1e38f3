"""What the guards say to agents, in English and in Chinese. Pure: no I/O."""

from dataclasses import dataclass

from cfs_agents.sentences import Language


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardWords:
    """The sentences in one language; `{}` stands for what differs.

    - `missing`, `empty`, `still_there`, `not_its_own`, `unchanged`, `no_path` (paths), `no_paths` (a key): what is
      wrong with a claim. `finished_twice`: a second report came, and does not count.
    - `stale` (path, who): a write is refused. `somebody`: who is not known. `over`: the agent has ended.
    - `locked`, `renewed` (path, seconds), `held` (path, who, seconds), `unlocked`, `not_locked` (path).
    - `too_deep` (levels), `too_many_alive`, `too_many` (how many): why a spawn is refused.
    - `budget` (who, used, limit): why the model is not asked.
    """

    missing: str
    empty: str
    still_there: str
    not_its_own: str
    unchanged: str
    no_paths: str
    no_path: str
    finished_twice: str
    stale: str
    somebody: str
    over: str
    locked: str
    renewed: str
    held: str
    unlocked: str
    not_locked: str
    too_deep: str
    too_many_alive: str
    too_many: str
    budget: str


_GUARD_ENGLISH = GuardWords(
    missing="claimed, but not there: {}",
    empty="claimed, but empty: {}",
    still_there="claimed as deleted, but there: {}",
    not_its_own="claimed, but made by others: {}",
    unchanged="claimed, but nothing changed: {}",
    no_paths="{} is no list of paths",
    no_path="claimed, but no path of the workspace: {}",
    finished_twice="it reported more than once; the first report counts",
    stale="{} was changed by {} since you last read it, and is not overwritten. Read it, then write what both need.",
    somebody="somebody outside",
    over="you have ended: nothing is written any more",
    locked="{} is yours for {:g} s",
    renewed="{} is yours for {:g} s more",
    held="{} is reserved by {} for {:g} s more at most: do something else, then try again",
    unlocked="{} is free",
    not_locked="{} was not reserved by you",
    too_deep="no agent was started: {} levels of agents are the most. Do it yourself.",
    too_many_alive="no agent was started: {} are at work, which is the most. Wait for one of them.",
    too_many="no agent was started: there have been {} already, which is the most. Do it yourself.",
    budget="the token budget of {} is used up: {} of {}",
)

_GUARD_CHINESE = GuardWords(
    missing="声称有，但不存在：{}",
    empty="声称有，但为空：{}",
    still_there="声称已删除，但仍在：{}",
    not_its_own="声称有，但由他人所作：{}",
    unchanged="声称有，但没有变化：{}",
    no_paths="{} 不是路径列表",
    no_path="声称有，但不是工作区的路径：{}",
    finished_twice="它多次报告；以第一次为准",
    stale="你上次读取之后，{} 已被 {} 修改，没有覆盖。请先读取，再写入双方都需要的内容。",
    somebody="外部某人",
    over="你已结束：不再写入任何内容",
    locked="{} 归你使用 {:g} 秒",
    renewed="{} 再归你使用 {:g} 秒",
    held="{} 已被 {} 占用，最多还有 {:g} 秒：请先做别的，再重试",
    unlocked="{} 已释放",
    not_locked="{} 并未被你占用",
    too_deep="没有启动智能体：最多 {} 层。请自己完成。",
    too_many_alive="没有启动智能体：已有 {} 个在工作，达到上限。请先等待其中一个。",
    too_many="没有启动智能体：总共已有 {} 个，达到上限。请自己完成。",
    budget="{} 的 token 预算已用完：{} / {}",
)


def guard_words(language: Language) -> GuardWords:
    """Return the guards' sentences in a language."""
    return _GUARD_CHINESE if language == "zh" else _GUARD_ENGLISH
