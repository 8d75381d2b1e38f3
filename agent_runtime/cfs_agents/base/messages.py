"""The message catalogue: every sentence that the runtime itself sends to a model, in English and in Chinese. No I/O.

The loop, the file-system agent, the guards and Fibre take their sentences from here, so a Chinese agent reads Chinese
wherever the runtime speaks. Descriptions and errors of tools are the tools' own. Weights of the embedded model depend
on these exact words (docs/development.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cfs_agents.base.events import FileChanges

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

_MOST_PATHS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The sentences in one language; each `{}` is filled in.

    The loop:

    - `go_on`: a task continues after its steps were used up.
    - `cut_off`, `think_less`, `shorter_call`: a reply reached its limit of tokens in words, before any words, or in the
      middle of a call.
    - `sum_up`: asks for a summary of a conversation.
    - `perhaps_run`, `not_run` (name): results of calls that had begun, or had not, before a kill.
    - `no_result` (reason): result of a call that has none.
    - `taken_out` (number), `summary`, `on_disk` (path of the list): replace messages that have left.
    - `files`: heading of a prompt. `synced`, `dropped` (names of calls): after a sync. `sync_turn`: only a sync is
      possible now.
    - `empty`, `repeated`: a reply was useless and is asked for again.
    - `repeats` (calls, times), `same_error` (times): why a task ends.
    - `unmade` (names, changes): an answer claims files that were not written. The changes are `created`, `changed` and
      `deleted`, or `nothing_done`.
    - `job_ended` (job, status, path), `jobs_lost` (jobs): before the next step. `jobs_at_work` (jobs): an answer comes
      while jobs run. `job_stopped` (job), `process_left` (process): what the end of a task names.
    - `finish`: a sub-agent answered without a report and is asked for it once.

    The guards:

    - `missing`, `claimed_empty`, `still_there`, `not_its_own`, `unchanged`, `no_path` (paths), `no_paths` (key): what
      is wrong with a claim. `finished_twice`: a second report does not count.
    - `stale` (path, agent, lines, call), `read_in_part` (path, lines, call): a write is refused; the call reads the
      lines. `somebody`: an unknown agent. `over`: the agent has ended.
    - `locked`, `renewed` (path, seconds), `locked_by` (path, agent, seconds), `unlocked`, `not_locked` (path).
    - `too_deep` (levels), `too_many_alive`, `too_many` (number): why a spawn is refused.
    - `tried_often`, `all_failed` (number): why one more spawn for a goal is refused.
    - `budget` (agent, used, limit), `money` (spent, limit, next step): why the model is not asked. `more_budget`: how
      the root's task goes on, `larger_budget`: how that of a single agent does.

    Fibre:

    - `superseded`: reply to a message whose agent has taken the next one already.
    - `inbox_message` (sender, text), `child_done` (report): what comes into an inbox.
    - `at_work` (names): an agent answers while its children work.
    - `wait_ends` (agent): a wait ends early because of a message. `sent` (agent): a message was delivered.
    - `no_report`: a child answered and never reported.
    - `merge_conflict` (path, files): both have changed a file. `not_merged` (folder): why an isolated child's changes
      are missing. `merge_failed` (reason): they are merged at the next start. `merged_late` (agent): that was done.
    - `no_answer` (turns), `too_long` (seconds), `stopped`, `parent_over`, `lost` (files): why an agent was ended.
    """

    go_on: str
    cut_off: str
    think_less: str
    shorter_call: str
    sum_up: str
    perhaps_run: str
    not_run: str
    no_result: str
    taken_out: str
    summary: str
    on_disk: str
    files: str
    synced: str
    dropped: str
    sync_turn: str
    empty: str
    repeated: str
    repeats: str
    same_error: str
    unmade: str
    nothing_done: str
    created: str
    changed: str
    deleted: str
    job_ended: str
    jobs_lost: str
    jobs_at_work: str
    job_stopped: str
    process_left: str
    finish: str
    missing: str
    claimed_empty: str
    still_there: str
    not_its_own: str
    unchanged: str
    no_paths: str
    no_path: str
    finished_twice: str
    stale: str
    read_in_part: str
    somebody: str
    over: str
    locked: str
    renewed: str
    locked_by: str
    unlocked: str
    not_locked: str
    too_deep: str
    too_many_alive: str
    too_many: str
    tried_often: str
    all_failed: str
    budget: str
    money: str
    more_budget: str
    larger_budget: str
    superseded: str
    inbox_message: str
    child_done: str
    at_work: str
    wait_ends: str
    sent: str
    no_report: str
    merge_conflict: str
    not_merged: str
    merge_failed: str
    merged_late: str
    no_answer: str
    too_long: str
    stopped: str
    parent_over: str
    lost: str


_ENGLISH = Messages(
    go_on="[Go on with the task.]",
    cut_off="[Your reply was cut off at its limit of length. Go on exactly where it stopped, and repeat nothing.]",
    think_less="[Your reply was cut off at its limit of length before it said anything. Think less, and answer.]",
    shorter_call="[Your reply was cut off at its limit of length in the middle of a call, which was not run. Make the"
    " call again, and shorter: write a long file in several parts.]",
    sum_up="Sum up this part of a conversation between a user and an assistant that works with tools."
    " Keep what the next steps need: the task, what was decided and found, names of files, exact values, what is still"
    " open. Leave out greetings and whatever was only on the way. At most 200 words, no headings.",
    perhaps_run="Error: {} was begun and then interrupted. It may or may not have happened: look before you do it"
    " again.",
    not_run="Error: {} was not run, as the work was interrupted before it. Call it again if it is still needed.",
    no_result="[No result: {}]",
    taken_out="[Earlier messages of this conversation have been taken out: {}]",
    summary="[Summary of this conversation so far]",
    on_disk="They are on disk; the list with their paths is {}. Use Read tool to view details.",
    files="[Files]",
    synced="[The context window is replaced. Go on with the current task.]",
    dropped="These calls came after the sync and were not run: {}.",
    sync_turn="[Call sync_context now: write what is done, what was found, and the next steps. Nothing else is kept.]",
    empty="[Your reply was empty. Call a tool, or answer.]",
    repeated="[Your reply repeated itself and was stopped. Answer shorter, or call a tool.]",
    repeats="it repeated itself: {}, {} times without anything new",
    same_error="it got the same error {} times",
    unmade="[Your answer says that these files were made or changed, but since the task began they were not: {}. What"
    " was: {}. Do what is missing, or correct your answer.]",
    nothing_done="nothing",
    created="created {}",
    changed="changed {}",
    deleted="deleted {}",
    job_ended="[Job {} has ended: {}. Its output is in {}.]",
    jobs_lost="[These jobs are lost, as the program that ran them has ended: {}.]",
    jobs_at_work="[These jobs still run: {}. Wait for them, or stop them. If you end the task now, they are stopped.]",
    job_stopped="job {} was stopped, as the task has ended",
    process_left="a command left process {} in the background; it ends with the agent",
    finish="[Call sys_finish_task now: status, summary, details.]",
    missing="claimed, but not there: {}",
    claimed_empty="claimed, but empty: {}",
    still_there="claimed as deleted, but there: {}",
    not_its_own="claimed, but made by others: {}",
    unchanged="claimed, but nothing changed: {}",
    no_paths="{} is no list of paths",
    no_path="claimed, but no path of the workspace: {}",
    finished_twice="it reported more than once; the first report counts",
    stale="{} was changed by {} since you last read it, and is not overwritten. You have not read its lines {}."
    " Read them: {}. Then write what both need.",
    read_in_part="{} is not overwritten: you have read only a part of it, and not its lines {}. Read them: {}."
    " Or change lines that you have read with edit_file.",
    somebody="somebody outside",
    over="you have ended: nothing is written any more",
    locked="{} is yours for {:g} s",
    renewed="{} is yours for {:g} s more",
    locked_by="{} is reserved by {} for {:g} s more at most: do something else, then try again",
    unlocked="{} is free",
    not_locked="{} was not reserved by you",
    too_deep="no agent was started: {} levels of agents are the most. Do it yourself.",
    too_many_alive="no agent was started: {} are at work, which is the most. Wait for one of them.",
    too_many="no agent was started: there have been {} already, which is the most. Do it yourself.",
    tried_often="no agent was started: {} agents have failed at this goal. Do it yourself, or say what is in the way.",
    all_failed="no agent was started: the last {} agents have failed. Do it yourself, or say what is in the way.",
    budget="the token budget of {} is used up: {} of {}",
    money="the budget of the task is used up: {} of {} are spent, and the next step may cost {}",
    more_budget="Send a message to go on with as much again",
    larger_budget="resume the task with a larger budget to continue",
    superseded="[A newer message has come; the work goes on with it.]",
    inbox_message="[Message from {}]\n{}",
    child_done="[A sub-agent is done.]\n{}",
    at_work="[These agents are still at work: {}. Wait for them, or answer again to end them.]",
    wait_ends="{} is still at work. A message has come for you: read it, then wait again.",
    sent="{} has the message.",
    no_report="it answered without a report",
    merge_conflict="conflict: {} was changed by both; see {}",
    not_merged="its files are not merged; they are in {}",
    merge_failed="its files are not merged yet: {}",
    merged_late="The files of {} are merged now.",
    no_answer="it came to no end in {} turns",
    too_long="it took longer than {:g} s",
    stopped="it was cancelled",
    parent_over="its parent has ended",
    lost="it is lost, as these files of it were damaged: {}",
)

_CHINESE = Messages(
    go_on="[请继续任务。]",
    cut_off="[你的回复达到长度上限，被截断了。请从停下的地方继续写，不要重复。]",
    think_less="[你的回复达到长度上限，还没有说出任何内容就被截断了。请少想一些，直接回答。]",
    shorter_call="[你的回复在一次调用的中间达到长度上限，被截断了，调用没有执行。"
    "请重新调用，并写得短一些：长文件请分几次写。]",
    sum_up="请概括用户与使用工具的助手之间的这段对话。保留下一步需要的内容：任务、已作的决定、发现、文件名、确切的数值、"
    "尚未完成的事。省略寒暄和中间过程。最多 300 字，不用标题。",
    perhaps_run="错误：{} 已开始，随后中断。它可能已经执行，也可能没有：再次执行前请先查看。",
    not_run="错误：{} 没有执行，工作在它之前中断了。如果仍然需要，请再次调用。",
    no_result="[没有结果：{}]",
    taken_out="[本对话较早的消息已移出：{} 条]",
    summary="[到目前为止的对话摘要]",
    on_disk="它们在磁盘上；路径列表见 {}。可用读取工具查看。",
    files="[文件]",
    synced="[上下文窗口已替换。请继续当前任务。]",
    dropped="这些调用在同步之后，没有执行：{}。",
    sync_turn="[现在请调用 sync_context：写明已完成的事、发现和下一步。其他内容不会保留。]",
    empty="[你的回复是空的。请调用工具，或作答。]",
    repeated="[你的回复在重复，已被停止。请简短作答，或调用工具。]",
    repeats="它在重复：{}，{} 次，没有任何新结果",
    same_error="它 {} 次得到同样的错误",
    unmade="[你的回答说这些文件已创建或修改，但任务开始以来并没有：{}。实际的变化：{}。请完成缺少的部分，或更正你的回答。]",
    nothing_done="无",
    created="新建 {}",
    changed="修改 {}",
    deleted="删除 {}",
    job_ended="[后台任务 {} 已结束：{}。输出在 {}。]",
    jobs_lost="[这些后台任务已丢失，因为运行它们的程序已结束：{}。]",
    jobs_at_work="[这些后台任务仍在运行：{}。请等待它们，或停止它们。如果现在结束任务，它们会被停止。]",
    job_stopped="任务已结束，后台任务 {} 被停止",
    process_left="一个命令在后台留下了进程 {}；它会随智能体结束",
    finish="[现在请调用 sys_finish_task：status、summary、details。]",
    missing="声称有，但不存在：{}",
    claimed_empty="声称有，但为空：{}",
    still_there="声称已删除，但仍在：{}",
    not_its_own="声称有，但由他人所作：{}",
    unchanged="声称有，但没有变化：{}",
    no_paths="{} 不是路径列表",
    no_path="声称有，但不是工作区的路径：{}",
    finished_twice="它多次报告；以第一次为准",
    stale="你上次读取之后，{} 已被 {} 修改，没有覆盖。你没有读过其中的第 {} 行。请先读取：{}，再写入双方都需要的内容。",
    read_in_part="{} 没有覆盖：你只读过它的一部分，没有读过第 {} 行。请先读取：{}。也可以用 edit_file 修改你读过的行。",
    somebody="外部某人",
    over="你已结束：不再写入任何内容",
    locked="{} 归你使用 {:g} 秒",
    renewed="{} 再归你使用 {:g} 秒",
    locked_by="{} 已被 {} 占用，最多还有 {:g} 秒：请先做别的，再重试",
    unlocked="{} 已释放",
    not_locked="{} 并未被你占用",
    too_deep="没有启动智能体：最多 {} 层。请自己完成。",
    too_many_alive="没有启动智能体：已有 {} 个在工作，达到上限。请先等待其中一个。",
    too_many="没有启动智能体：总共已有 {} 个，达到上限。请自己完成。",
    tried_often="没有启动智能体：已有 {} 个智能体没有完成这个目标。请自己完成，或说明障碍。",
    all_failed="没有启动智能体：最近 {} 个智能体都失败了。请自己完成，或说明障碍。",
    budget="{} 的 token 预算已用完：{} / {}",
    money="智能体树的预算已用完：已花费 {} / {}，下一步最多需要 {}",
    more_budget="发送一条消息，即可再用同样多的预算继续",
    larger_budget="提高预算后恢复任务即可继续",
    superseded="[有新消息，工作从新消息继续。]",
    inbox_message="[来自 {} 的消息]\n{}",
    child_done="[一个子智能体已结束。]\n{}",
    at_work="[这些智能体仍在工作：{}。请等待它们，或再次回答以结束它们。]",
    wait_ends="{} 仍在工作。有一条给你的消息：请先阅读，再继续等待。",
    sent="{} 已收到消息。",
    no_report="它回答了，但没有报告",
    merge_conflict="冲突：双方都改动了 {}；请看 {}",
    not_merged="它的文件没有合并；它们在 {}",
    merge_failed="它的文件尚未合并：{}",
    merged_late="{} 的文件现在已合并。",
    no_answer="{} 轮内没有结束",
    too_long="用时超过 {:g} 秒",
    stopped="它被取消了",
    parent_over="它的上级已结束",
    lost="它已丢失，因为它的这些文件已损坏：{}",
)


def catalogue(language: Language) -> Messages:
    """Return the messages in a language."""
    return _CHINESE if language == "zh" else _ENGLISH


def format_changes(files: FileChanges, say: Messages) -> str:
    """Return what has changed; of each kind the first paths."""
    groups = ((say.created, files.created), (say.changed, files.changed), (say.deleted, files.deleted))
    listed = [
        words.format(", ".join(paths[:_MOST_PATHS]) + (", ..." if len(paths) > _MOST_PATHS else ""))
        for words, paths in groups
        if paths
    ]
    return "; ".join(listed) or say.nothing_done


def after_sync(language: Language, dropped: Sequence[str]) -> str:
    """Return the first message of a conversation after a sync; `dropped` names calls that were not run."""
    say = catalogue(language)
    return say.synced if not dropped else f"{say.synced}\n{say.dropped.format(', '.join(dropped))}"
